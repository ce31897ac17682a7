"""The page in a real browser: no errors in the console, everything by keyboard, and the same drawing as in Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from branchwise.decode.statistics import Generation
from branchwise.show import generation_step
from branchwise.show.asset import asset
from branchwise.show.layout import lay_out
from branchwise.show.looks import describe
from branchwise.show.page import page_html
from branchwise.show.sources import COLOURS, badge
from branchwise.show.token_text import TokenLabels
from browser import chromium, console_errors, set_scheme  # noqa: F401  (a fixture)
from show_rig import RECORD, generation_of, random_generation

STEPS = 9


@pytest.fixture(scope="module")
def generation() -> Generation:
    return random_generation(4, STEPS, 33)


@pytest.fixture
def page(chromium: Any, generation: Generation, tmp_path: Path) -> Any:  # noqa: F811  (the fixture)
    file = tmp_path / "page.html"
    file.write_text(page_html(generation, budget=33), encoding="utf-8")
    chromium.get(file.as_uri())
    yield chromium
    assert console_errors(chromium) == []


def press(driver: Any, *keys: str) -> None:
    from selenium.webdriver.common.keys import Keys

    for key in keys:
        driver.switch_to.active_element.send_keys(getattr(Keys, key))


def where(driver: Any) -> str:
    return driver.find_element("id", "where").text


def test_keys_move_through_the_steps(page: Any) -> None:
    assert where(page) == f"step 1 of {STEPS}"
    press(page, "ARROW_RIGHT", "ARROW_RIGHT")
    assert where(page) == f"step 3 of {STEPS}"
    press(page, "ARROW_LEFT")
    assert where(page) == f"step 2 of {STEPS}"
    press(page, "END", "ARROW_RIGHT")
    assert where(page) == f"step {STEPS} of {STEPS}"
    press(page, "HOME", "ARROW_LEFT")
    assert where(page) == f"step 1 of {STEPS}"
    assert not page.find_element("id", "previous").is_enabled() and page.find_element("id", "next").is_enabled()


def test_everything_is_reached_with_the_tab_key(page: Any) -> None:
    reached = []
    for _ in range(6):
        press(page, "TAB")
        element = page.switch_to.active_element
        reached.append(element.get_attribute("id") or element.get_attribute("class").split()[0])
        outlined = page.execute_script(
            "const s = getComputedStyle(document.activeElement), b = document.activeElement.querySelector('.bw-box');"
            "return s.outlineStyle !== 'none' || (b && getComputedStyle(b).strokeWidth === '4px');"
        )
        assert outlined, f"the focus on {reached[-1]} cannot be seen"
    assert reached == ["next", "last", "slider", "run", "fit", "bw-node"]


def test_the_tree_is_walked_with_up_and_down(page: Any, generation: Generation) -> None:
    page.execute_script("document.querySelector('#tree .bw-node[tabindex=\"0\"]').focus()")
    assert "Node 0" in page.find_element("id", "told").text
    assert page.execute_script("return document.querySelectorAll('#tree .bw-sees').length") == 1
    press(page, "ARROW_DOWN")
    told = page.find_element("id", "told").text
    assert "sees 2 committed tokens and 2 of" in told or "bonus token" in told
    assert page.execute_script("return document.querySelector('#mask .bw-asked') !== null") or "bonus token" in told
    press(page, "ARROW_UP", "ARROW_UP", "ARROW_RIGHT")
    assert where(page) == f"step 2 of {STEPS}"


def test_the_node_in_hand_is_in_sight(page: Any) -> None:
    hidden = page.execute_script(
        "branchwisePage.go(1); const pane = document.getElementById('tree').getBoundingClientRect();"
        "return Array.from(document.querySelectorAll('#tree .bw-node')).filter((node) => {"
        "  node.focus(); const box = node.getBoundingClientRect();"
        "  return box.left < pane.left || box.right > pane.right || box.top < pane.top || box.bottom > pane.bottom;"
        "}).length;"
    )
    assert hidden == 0


def test_tokens_buttons_the_slider_and_the_time_line_lead_to_their_step(page: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    page.find_elements("css selector", ".run")[3].click()
    assert where(page) == f"step 4 of {STEPS}"
    assert page.find_element("css selector", ".run.now").get_attribute("data-step") == "3"
    assert len(page.find_elements("css selector", ".run.later")) == STEPS - 4
    press(page, "ARROW_RIGHT")
    # the focus goes along
    WebDriverWait(page, 20).until(lambda driver: driver.switch_to.active_element.get_attribute("data-step") == "4")
    page.find_element("id", "last").click()
    assert where(page) == f"step {STEPS} of {STEPS}"
    page.find_element("id", "slider").send_keys("")
    page.execute_script("document.getElementById('slider').focus()")
    press(page, "ARROW_LEFT")
    assert where(page) == f"step {STEPS - 1} of {STEPS}"
    page.execute_script(
        "const bars = document.getElementById('bars'), box = bars.getBoundingClientRect();"
        "bars.dispatchEvent(new MouseEvent('click', {clientX: box.left + 1, bubbles: true}));"
    )
    assert where(page) == f"step 1 of {STEPS}"


def test_pointing_at_a_token_shows_its_step(page: Any) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.support.ui import WebDriverWait

    ActionChains(page).move_to_element(page.find_elements("css selector", ".run")[5]).perform()
    WebDriverWait(page, 20).until(lambda driver: where(driver) == f"step 6 of {STEPS}")


def test_the_browser_unpacks_and_places_what_python_does(page: Any, generation: Generation) -> None:
    labels = TokenLabels(generation.tokenizer)
    for number in range(STEPS):
        step = generation_step(generation, number, 33)
        unpacked, layout, said = page.execute_script(
            "const step = branchwisePage.stepOf(arguments[0]);"
            "return [step, BranchwiseTree.layout(step), BranchwiseTree.describe(step)];",
            number,
        )
        for node in unpacked["nodes"]:
            assert node["text"] == labels(node["id"])
        assert unpacked == step
        own = lay_out(step)
        assert [[box[side] for side in ("x", "y", "width", "height")] for box in layout["boxes"]] == [
            pytest.approx([box.x, box.y, box.width, box.height]) for box in own.boxes
        ]
        assert (layout["width"], layout["height"]) == pytest.approx((own.width, own.height))
        assert said == describe(step)


def test_drafters_look_the_same_in_both(page: Any) -> None:
    for source in ("ngram", "recycling", "suffix", "model", "eagle", "medusa", "block", "early_exit", "my own", "ß"):
        mark = badge(source)
        assert page.execute_script("return BranchwiseTree.badge(arguments[0])", source) == {
            "slot": mark.slot,
            "letters": mark.letters,
        }
    for slot, (fill, ink) in enumerate(COLOURS):
        assert f"--bw-source-{slot}: {fill};" in asset("tree.css")
        assert f"--bw-letters-{slot}: {ink};" in asset("tree.css")


def test_no_token_becomes_markup(page: Any) -> None:
    for _ in range(STEPS):
        press(page, "ARROW_RIGHT")
    assert page.title == "branchwise show"
    assert page.find_elements("css selector", "img, #text script, #tree script, iframe") == []


def contrast(first: str, second: str) -> float:
    """The contrast of two colours as WCAG 2 defines it, 1 to 21."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_in_both_schemes(page: Any, scheme: str) -> None:
    set_scheme(page, scheme)
    names = ("back", "panel", "ink", "soft", "lit", "lit-back", "bonus", "bonus-back", "focus")
    colour = dict(
        zip(
            names,
            page.execute_script(
                "const s = getComputedStyle(document.body);"
                "return arguments[0].map((name) => s.getPropertyValue('--bw-' + name).trim());",
                names,
            ),
            strict=True,
        )
    )
    assert (contrast(colour["back"], "#000000") < 2) is (scheme == "dark")
    for ink, back in (("ink", "back"), ("ink", "panel"), ("ink", "lit-back"), ("ink", "bonus-back"), ("soft", "panel")):
        assert contrast(colour[ink], colour[back]) >= 4.5, (scheme, ink, back)
    for line in ("lit", "bonus", "focus"):
        assert contrast(colour[line], colour["back"]) >= 3, (scheme, line)
    for fill, ink in COLOURS:
        assert contrast(fill, ink) >= 3


def test_the_browser_draws_two_thousand_steps_of_256_nodes(chromium: Any, tmp_path: Path) -> None:  # noqa: F811
    # the text of a page that Python needs seconds to pack is made here of one packed step
    page = page_html(generation_of([RECORD]))
    small = page_html(random_generation(7, 1, 256))
    start = small.index('id="data">') + len('id="data">')
    data = json.loads(small[start : small.index("</script>", start)])
    data["steps"] = data["steps"] * 2000
    packed = json.dumps(data).replace("<", "\\u003c")
    begin = page.index('id="data">') + len('id="data">')
    file = tmp_path / "big.html"
    file.write_text(page[:begin] + packed + page[page.index("</script>", begin) :], encoding="utf-8")
    chromium.get(file.as_uri())
    press(chromium, "END")
    assert where(chromium) == "step 2000 of 2000"
    drawn = chromium.execute_script("return document.querySelectorAll('#tree .bw-node').length")
    assert drawn == len(data["steps"][0]["parents"]) + 1, "one step at a time"
    assert console_errors(chromium) == []
