"""A headless Chromium for tests of pages: no console errors, keys, pictures.

Import the fixture by name into a test module::

    from browser import chromium, console_errors  # noqa: F401

Each test module that uses it gets a browser of its own (scope "module"), with a fresh profile, so tests may run in
several processes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")
SWITCHES = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--window-size=1400,900",
)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A selenium driver; its console is empty to begin with."""
    if CHROMIUM is None or CHROMEDRIVER is None:
        # the page cannot be looked at without a browser; CI installs both
        pytest.skip("needs chromium and chromedriver on the path")
    # selenium drives that browser
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium (extra dev)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in SWITCHES:
        options.add_argument(switch)
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # Chromium's sandbox refuses to run as root
        options.add_argument("--no-sandbox")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(CHROMEDRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def console_errors(driver: Any) -> list[str]:
    """What the console said since the last call, informative messages left out."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def set_scheme(driver: Any, scheme: str) -> None:
    """Lets pages believe that the reader prefers ``"light"`` or ``"dark"``."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def picture(driver: Any, path: Path) -> None:
    """The visible part of the page as PNG."""
    driver.save_screenshot(str(path))
