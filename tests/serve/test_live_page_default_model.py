"""The page on the real default model: a conversation, its trees, both speeds, and a server that is killed."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from test_live_page import Page

from browser import chromium, console_errors, picture, set_scheme  # noqa: F401
from serve_process import PATIENCE_SECONDS, free_port, running, wait_until_up

pytestmark = pytest.mark.model
# likewise of a real browser, which not everybody has
Keys = pytest.importorskip("selenium.webdriver.common.keys", reason="needs selenium (extra dev)").Keys

QUESTION = "Explain in five short steps how to bake bread, then repeat the steps as a numbered list."
#: pictures for people, of this folder if it is named
PICTURES = os.environ.get("BRANCHWISE_PICTURES")


def take_pictures(page: Page, folder: Path) -> None:
    while len(page.all("#tree .bw-rejected")) < 4 or not page.all("#tree .bw-accepted"):
        assert page.text("#step-title")[:7] != "Step 1 ", "no step has a tree to show"
        page.press(Keys.ARROW_LEFT)
    page.driver.execute_script("document.activeElement.blur()")
    for width, height in ((1280, 800), (390, 844)):
        for scheme in ("light", "dark"):
            page.resize(width, height)
            set_scheme(page.driver, scheme)
            picture(page.driver, folder / f"page-{width}-{scheme}.png")
            assert (folder / f"page-{width}-{scheme}.png").stat().st_size > 20_000
    set_scheme(page.driver, "light")
    page.resize(1280, 800)


def test_a_conversation_with_the_default_model(chromium, tmp_path):  # noqa: F811
    url, log = f"http://127.0.0.1:{(port := free_port())}", tmp_path / "log"
    # a budget of its own: on a busy machine "auto" may find that trees do not pay
    with running(["serve", "--port", str(port), "--dtype", "float32", "--budget", "13"], log) as process:
        wait_until_up(process, url, log)
        page = Page(chromium, url, 96)
        page.driver.execute_script("document.querySelector('#mode input[value=both]').click()")
        page.ask(QUESTION)
        page.wait(lambda: "as fast as plain" in page.text(".verdict"), 2 * PATIENCE_SECONDS)
        assert page.text(".verdict").endswith("same text")
        said = re.match(r"(\d+) tokens in (\d+) steps", page.text(".facts"))
        assert int(said[2]) < int(said[1]) <= 96 and "flour" in page.text(".answer .text")
        assert page.all(".token.s0, .token.s1") and page.all("#tree .bw-node")
        page.press(Keys.ARROW_LEFT)
        assert page.text("#step-title") == f"Step {int(said[2]) - 1} of {said[2]}"
        take_pictures(page, Path(PICTURES) if PICTURES else tmp_path)
        assert console_errors(chromium) == []
        page.click("#new-chat")
        page.fill("max_tokens", "2000")
        page.ask("Write a very long story.")
        page.wait(lambda: len(page.all(".token")) > 3, 2 * PATIENCE_SECONDS)
        process.send_signal(signal.SIGKILL)
        assert page.failure == "The connection was lost in the middle of the answer."
        page.button("Try again").click()
        page.wait(lambda: page.failure.startswith("The server does not answer."))
