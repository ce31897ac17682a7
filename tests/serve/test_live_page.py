"""The page in a browser, on the tiny model: what it shows, its keys, and what it says when something goes wrong."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager

import pytest

from branchwise import Speculator
from browser import chromium, console_errors, set_scheme  # noqa: F401
from serve_rig import RawClient, is_idle, model_and_tokenizer, serving, wait_for

# the page is looked at in a real browser, which not everybody has
By = pytest.importorskip("selenium.webdriver.common.by", reason="needs selenium (extra dev)").By
Keys = pytest.importorskip("selenium.webdriver.common.keys", reason="needs selenium (extra dev)").Keys

QUESTION = "abababab"
#: browsers are slow on machines that are busy with other things
PATIENCE_SECONDS = 120


class Page:
    """The page in the browser's window."""

    def __init__(self, driver, url: str, new_tokens: int = 40) -> None:
        self.driver = driver
        self.resize(1280, 800)
        driver.get(url)
        driver.execute_script("sessionStorage.clear()")
        driver.refresh()
        console_errors(driver)
        driver.execute_script("document.getElementById('max_tokens').value = arguments[0]", new_tokens)

    def one(self, selector: str):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.one(selector).get_property("textContent")

    def click(self, selector: str) -> None:
        self.one(selector).click()

    def button(self, text: str):
        return next(button for button in self.all("button") if button.text == text)

    def fill(self, name: str, value: str) -> None:
        if self.one("#settings").get_property("hidden"):
            self.click("#open-settings")
        field = self.one(f"#{name}")
        field.clear()
        field.send_keys(value)

    def ask(self, question: str = QUESTION) -> None:
        self.one("#question").send_keys(question, Keys.ENTER)

    def resize(self, width: int, height: int) -> None:
        """The window, as narrow as a telephone: the driver itself goes no further down than a desktop allows."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def press(self, key: str) -> None:
        self.one("#turns").send_keys(key)

    def wait(self, condition, seconds: float = PATIENCE_SECONDS) -> None:
        # seldom: every look costs the browser time
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not happen in time"
            time.sleep(0.1)

    def wait_until_answered(self) -> None:
        self.wait(lambda: self.all(".turn") and not self.one("#send").get_property("hidden"))
        self.wait(lambda: self.all(".failure") or self.text(".turn:last-of-type .facts"))

    @property
    def failure(self) -> str:
        self.wait(lambda: self.all(".failure"))
        return self.one(".failure p").text


@contextmanager
def page_on(driver, new_tokens: int = 40, **options):
    """A server of its own, and the page."""
    with serving(**options) as server:
        page = Page(driver, server.url, new_tokens)
        yield page, server
        # whoever looks at the page no longer needs the server: it must not hold its end up
        driver.get("about:blank")


@pytest.fixture(scope="module")
def server():
    with serving() as up:
        yield up


@pytest.fixture
def page(chromium, server):  # noqa: F811
    own = Page(chromium, server.url)
    yield own
    assert console_errors(chromium) == []
    wait_for(lambda: is_idle(server), PATIENCE_SECONDS)


def expected_text(chat: str = f"<|user|>{QUESTION}<|assistant|>", new_tokens: int = 40, **options) -> str:
    model, tokenizer = model_and_tokenizer()
    ids = tokenizer(chat, add_special_tokens=False).input_ids
    options = {"do_sample": False, **options}
    return Speculator(model, tokenizer, drafter="none").complete(ids, max_new_tokens=new_tokens, **options).text


# a conversation


def test_a_conversation_and_its_steps(page):
    page.ask()
    page.wait_until_answered()
    assert page.text(".answer .text") == expected_text()
    steps = int(re.fullmatch(r"40 tokens in (\d+) steps; the limit of new tokens is reached", page.text(".facts"))[1])
    assert len(page.all("#timeline g")) == steps < 40
    assert page.text("#step-title") == f"Step {steps} of {steps}"
    assert page.all("#tree .bw-root") and page.all("#tree .bw-bonus")
    legend = [item.get_property("textContent") for item in page.all("#legend li")]
    assert legend[-1] == "the model itself" and set(legend[:-1]) & {"NGngram", "RErecycling"}
    assert page.all(".token.s1, .token.s0") and page.all(".token.own"), "tinted by drafter"
    assert page.text(".speed[data-kind=trees] .figure:last-of-type") == f"{40 / steps:.2f} per step"
    first = page.text(".answer .text")
    page.fill("max_tokens", "9")
    page.fill("system", "be good")
    page.ask("hello")
    page.wait_until_answered()
    chat = f"<|system|>be good<|user|>{QUESTION}<|assistant|>{first}<|user|>hello<|assistant|>"
    assert page.text(".turn:last-of-type .text") == expected_text(chat, 9)
    assert [turn.get_attribute("aria-label") for turn in page.all(".turn")] == ["Question 1", "Question 2"]


def test_keys_and_pointer_choose_a_step(page):
    page.ask()
    page.wait_until_answered()
    steps = len(page.all("#timeline g"))

    def shown() -> tuple[str, str, str]:
        slider = page.one("#timeline")
        return (
            page.text("#step-title"),
            slider.get_attribute("aria-valuenow"),
            page.one("#follow").get_attribute("aria-pressed"),
        )

    assert shown() == (f"Step {steps} of {steps}", str(steps), "true")
    page.press(Keys.ARROW_LEFT)
    page.press(Keys.ARROW_LEFT)
    assert shown() == (f"Step {steps - 2} of {steps}", str(steps - 2), "false")
    assert {span.get_attribute("data-step") for span in page.all(".step.here")} == {str(steps - 3)}
    page.press(Keys.HOME)
    assert shown()[0] == f"Step 1 of {steps}"
    page.one("#timeline").send_keys(Keys.ARROW_RIGHT)
    assert shown()[0] == f"Step 2 of {steps}"
    assert page.one("#timeline").get_attribute("aria-valuetext").startswith(f"step 2 of {steps}: ")
    page.press(Keys.END)
    assert shown() == (f"Step {steps} of {steps}", str(steps), "true")
    word = next(token for token in page.all(".step:nth-child(-n+4) .token") if token.text.strip())
    word.click()
    step = page.driver.execute_script("return arguments[0].parentElement.dataset.step", word)
    assert shown()[0] == f"Step {int(step) + 1} of {steps}"
    page.click("#follow")
    assert shown() == (f"Step {steps} of {steps}", str(steps), "true")
    page.one("#question").send_keys("x", Keys.ARROW_LEFT)
    assert shown()[2] == "true", "arrows in a text field move in the text"


def test_a_seed_is_the_servers_seed(page):
    page.fill("temperature", "1.0")
    page.fill("seed", "18446744073709551615")
    page.ask()
    page.wait_until_answered()
    assert page.text(".answer .text") == expected_text(do_sample=True, top_k=0, seed=2**64 - 1)


def test_both_ways_one_after_the_other(page):
    page.driver.execute_script("document.querySelector('#mode input[value=both]').click()")
    page.ask()
    page.wait_until_answered()
    assert re.fullmatch(r"\d+\.\d\d. as fast as plain decoding, same text", page.text(".verdict"))
    page.click(".speed[data-kind=plain]")
    assert page.text("#step-title") == "Step 40 of 40" and len(page.all("#tree .bw-node")) == 2
    page.click(".speed[data-kind=trees]")
    assert len(page.all("#timeline g")) < 40


def test_comparing_afterwards(page):
    page.ask()
    page.wait_until_answered()
    page.button("Run it plain, to compare").click()
    page.wait(lambda: "as fast as plain" in page.text(".verdict"))
    assert page.text(".answer .text") == expected_text()
    page.driver.execute_script("document.querySelector('#mode input[value=plain]').click()")
    page.ask("abcabc")
    page.wait_until_answered()
    page.wait(lambda: page.text("#step-title") == "Step 40 of 40")
    assert page.button("Run it with trees, to compare").is_displayed()


def test_what_the_person_writes_is_text(page):
    page.ask("<img src=x onerror=alert(1)>")
    page.wait_until_answered()
    assert page.text(".question") == "<img src=x onerror=alert(1)>" and not page.all(".turn img")


def test_a_new_chat_forgets(page):
    page.ask()
    page.wait_until_answered()
    page.click("#new-chat")
    assert not page.all(".turn") and page.one("#welcome").is_displayed()
    assert page.text("#step-title") == "What a step looks like"


def test_light_and_dark(page):
    def colours() -> list[str]:
        script = "return ['body', '#chat', '.text'].map(s => getComputedStyle(document.querySelector(s)).{})"
        return [page.driver.execute_script(script.format(what)) for what in ("backgroundColor", "color")]

    page.ask()
    page.wait_until_answered()
    light = colours()
    set_scheme(page.driver, "dark")
    dark = colours()
    set_scheme(page.driver, "light")
    assert colours() == light and all(one != other for one, other in zip(light[1], dark[1], strict=True))


def test_a_narrow_window_needs_no_scrolling_to_the_side(page):
    page.resize(390, 844)
    page.ask()
    page.wait_until_answered()
    wide = page.driver.execute_script(
        "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    assert wide == 0
    assert page.one("#question").is_displayed() and page.one("#tree svg").is_displayed()


# what goes wrong


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("temperature", "9", "Input should be less than or equal to 2"),
        ("temperature", "warm", "Input should be a valid number"),
        ("max_tokens", "0", "Input should be greater than or equal to 1"),
        ("seed", "123456789012345678901234567890", "Input should be less than 18446744073709551616"),
    ],
)
def test_a_wrong_setting_is_named_by_the_server_beside_the_field(chromium, server, name, value, says):  # noqa: F811
    page = Page(chromium, server.url)
    page.fill(name, value)
    page.ask()
    page.wait(lambda: page.text(f"#{name}-error"))
    assert page.text(f"#{name}-error").startswith(says)
    assert page.one(f"#{name}").get_attribute("aria-invalid") == "true"
    assert page.one("#question").get_property("value") == QUESTION and not page.all(".turn"), "nothing is lost"
    page.fill(name, "1")
    assert page.text(f"#{name}-error") == ""
    page.one("#question").send_keys(Keys.ENTER)
    page.wait_until_answered()


def test_stopping_cancels_on_the_server(chromium):  # noqa: F811
    with page_on(chromium, 200, slow=0.1) as (page, server):
        page.ask()
        page.wait(lambda: page.all(".token"))
        page.click("#stop")
        page.wait_until_answered()
        wait_for(lambda: is_idle(server), PATIENCE_SECONDS)
        assert server.engine.statistics.finished == {"cancelled": 1}
        assert page.text(".facts").endswith("; you stopped it") and not page.all(".failure")
        page.click(
            "#new-chat"
        )  # otherwise the stopped answer is part of the next prompt, and may leave too little room
        page.ask()
        page.wait(lambda: page.all(".token"))
        page.press(Keys.ESCAPE)
        wait_for(lambda: is_idle(server), PATIENCE_SECONDS)
        assert server.engine.statistics.finished == {"cancelled": 2}


def test_a_lost_connection_and_a_server_that_is_gone(chromium):  # noqa: F811
    with page_on(chromium, 200, slow=0.1) as (page, server):
        page.ask()
        page.wait(lambda: page.all(".token"))
        listening = server.servers[0]
        for end in (listening.close, *(one.transport.abort for one in server.server_state.connections)):
            listening.get_loop().call_soon_threadsafe(end)
        assert page.failure == "The connection was lost in the middle of the answer."
        assert page.text(".facts").endswith("; it broke off") and page.all(".token")
        page.button("Try again").click()
        page.wait(lambda: page.failure.startswith("The server does not answer."))
        assert page.button("Try again").is_displayed()
        console_errors(chromium)  # the browser itself writes down that it could not connect


def test_a_server_that_ends_says_so(chromium):  # noqa: F811
    with page_on(chromium, 200, slow=0.1, grace_seconds=0.1) as (page, server):
        page.ask()
        page.wait(lambda: page.all(".token"))
        server.should_exit = True
        assert page.failure == "the server ended this request; try again"


def test_a_full_context_offers_a_new_chat(page):
    page.ask("abcdefgh " * 40)
    assert page.failure == "messages has 361 tokens and at most 255 are taken here; shorten it"
    page.button("Start a new chat").click()
    assert not page.all(".turn") and page.one("#question").get_property("value").startswith("abcdefgh")
    page.fill("max_tokens", "5000")
    page.one("#question").clear()
    page.ask()
    assert "and 5000 new ones are more than the 256 that fit here" in page.failure
    assert "ask for at most 246" in page.text("#max_tokens-error")
    console_errors(page.driver)  # the browser itself writes down every status of 400


def test_a_server_that_is_busy(chromium):  # noqa: F811
    with page_on(chromium, 5, slow=0.1, open_requests=1) as (page, server):
        other = RawClient(server)
        other.post("/v1/completions", {"prompt": "hello", "temperature": 0, "max_tokens": 200, "stream": True})
        other.read_until(b"data: ")
        page.ask()
        assert page.failure == "1 requests are in progress; try again later"
        other.close()
        wait_for(lambda: is_idle(server), PATIENCE_SECONDS)
        page.button("Try again").click()
        page.wait(lambda: not page.all(".failure"))
        page.wait_until_answered()
        assert page.text(".facts").startswith("5 tokens") and not page.all(".failure")


def test_the_key_is_asked_for_and_kept_in_the_tab_only(chromium):  # noqa: F811
    with page_on(chromium, 5, api_key="secret") as (page, _):
        page.wait(lambda: page.one("#key-dialog").is_displayed())
        page.one("#key").send_keys("wrong", Keys.ENTER)
        page.wait(lambda: page.text("#key-error") == "The server does not take this key.")
        page.one("#key").send_keys("secret", Keys.ENTER)
        page.wait(lambda: page.text("#model").startswith("tiny"))
        page.ask()
        page.wait_until_answered()
        assert page.text(".facts").startswith("5 tokens")
        kept = "return [sessionStorage.length, localStorage.length, document.cookie]"
        assert page.driver.execute_script(kept) == [1, 0, ""]


def test_without_a_key_the_question_waits_for_one(chromium):  # noqa: F811
    with page_on(chromium, 5, api_key="secret") as (page, _):
        page.wait(lambda: page.one("#key-dialog").is_displayed())
        page.click("#key-cancel")
        page.ask()
        page.wait(lambda: page.one("#key-dialog").is_displayed())
        page.one("#key").send_keys("secret", Keys.ENTER)
        page.wait_until_answered()
        assert page.text(".facts").startswith("5 tokens") and not page.all(".failure")
