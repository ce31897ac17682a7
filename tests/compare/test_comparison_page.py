"""The page: looked at by a browser, made from numbers that nobody measured."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import compare_numbers as made
from branchwise.compare import cost
from branchwise.compare.charts import chart_svg, short, ticks
from branchwise.compare.claims import CLAIMS
from branchwise.compare.page import page
from browser import chromium, console_errors, set_scheme  # noqa: F401  # a fixture

WRONG_COST = cost.finding(replace(made.COST, trie_ms=80.0))


def unexpected_record() -> dict[str, Any]:
    """One row against expectation, one that was not measured."""
    return made.record(without="reuse", cost=WRONG_COST)


class Balance(HTMLParser):
    """Complains about tags that are not closed in order."""

    VOID = ("meta", "link", "br", "hr", "rect", "line", "path", "circle", "polygon")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag, f"</{tag}> closes nothing"


@pytest.mark.core
def test_the_page_is_whole_and_needs_nothing_else() -> None:
    text = page(unexpected_record())
    balance = Balance()
    balance.feed(text)
    assert not balance.open
    # names of XML dialects are not fetched
    addresses = re.findall(r'(?:src|href|url)\s*[=(]\s*["\']?([^"\')>\s]+)', text)
    assert {address for address in addresses if not address.startswith(("#", "data:"))} == set()
    for claim in CLAIMS:
        assert f'id="{claim.key}"' in text and f'href="#{claim.key}"' in text
    assert "Expected was “confirmed”; the numbers say “undecided”" in text
    assert "layers cannot be run apart" in text


@pytest.mark.core
def test_what_others_wrote_is_escaped() -> None:
    text = page(made.record(model="<script>alert(1)</script>"))
    assert "<script>alert" not in text and "&lt;script&gt;alert(1)" in text


@pytest.mark.core
def test_numbers_and_ticks() -> None:
    shown = [short(x) for x in (0, 0.00012, 0.5, 12.34, 1234.5, 2e6)]
    assert shown == ["0", "1.2e-04", "0.5", "12.3", "1,234", "2.0e+06"]
    assert ticks(10) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.3)[-1] >= 0.3 and ticks(0) == [0, 1]


@pytest.mark.core
def test_a_chart_shows_its_numbers_at_the_right_places() -> None:
    chart = {
        "kind": "lines",
        "title": "t",
        "x": {"label": "nodes", "unit": "", "log": True},
        "y": {"label": "time", "unit": "ms", "log": False},
        "series": [{"name": "measured", "points": [(1, 0), (2, 5), (4, 10)], "dashed": False}],
    }
    drawn = chart_svg(chart)
    places = [
        (float(x), float(y)) for x, y in re.findall(r'<circle class="mark c0" cx="([\d.]+)" cy="([\d.]+)"', drawn)
    ]
    assert "time [ms]" in drawn
    # equal ratios are equal distances, and half the height is half the value
    assert places[1][0] - places[0][0] == pytest.approx(places[2][0] - places[1][0])
    assert places[0][1] - places[1][1] == pytest.approx(places[1][1] - places[2][1])


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Any:  # noqa: F811
    file = tmp_path / "report.html"
    file.write_text(page(unexpected_record()), encoding="utf-8")
    console_errors(chromium)
    chromium.get(file.as_uri())
    return chromium


def test_it_opens_without_a_word_on_the_console(opened: Any) -> None:
    assert console_errors(opened) == []
    assert len(opened.find_elements("css selector", "#claims article")) == len(CLAIMS)
    # no picture sticks out of its figure, no text out of the page
    assert opened.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    empty = "return [...document.querySelectorAll('svg')].filter(s => !s.getBoundingClientRect().height).length"
    assert opened.execute_script(empty) == 0


def test_it_works_by_keyboard(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    def focused() -> str:
        return opened.execute_script("return document.activeElement.id")

    body = opened.find_element("tag name", "body")
    body.send_keys("j")
    assert focused() == CLAIMS[0].key
    opened.switch_to.active_element.send_keys("j")
    assert focused() == CLAIMS[1].key
    opened.switch_to.active_element.send_keys("k")
    assert focused() == CLAIMS[0].key
    button = opened.find_element("css selector", "button[data-show='not-as-expected']")
    button.send_keys(Keys.ENTER)
    shown = "return [...document.querySelectorAll('#claims article')].filter(a => !a.hidden).map(a => a.id)"
    assert opened.execute_script(shown) == ["cost"]
    assert button.get_attribute("aria-pressed") == "true"
    opened.find_element("css selector", "button[data-show='all']").send_keys(" ")
    assert len(opened.execute_script(shown)) == len(CLAIMS)
    assert console_errors(opened) == []


def test_it_follows_the_light_or_dark_setting(opened: Any) -> None:
    backgrounds, inks = set(), set()
    for scheme in ("light", "dark"):
        set_scheme(opened, scheme)
        style = "return getComputedStyle(document.querySelector('%s')).%s"
        backgrounds.add(opened.execute_script(style % ("body", "backgroundColor")))
        inks.add(opened.execute_script(style % (".chart text", "fill")))
    assert len(backgrounds) == len(inks) == 2
    assert not backgrounds & inks


def test_narrow_and_on_paper(opened: Any) -> None:
    opened.set_window_size(420, 800)
    try:
        assert opened.execute_script("return document.documentElement.scrollWidth <= window.innerWidth + 1")
        # printing as PDF must work and give pages
        assert len(opened.execute_cdp_cmd("Page.printToPDF", {})["data"]) > 10_000
    finally:
        opened.set_window_size(1400, 900)
