"""A real browser without a window."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.servers.chromium import Chromium, fetch_chromium
from tests.support.unavailable import skip


class Browser:
    """Chromium, with one tab."""

    def __init__(self, chromium: Chromium) -> None:
        options = Options()
        options.binary_location = str(chromium.browser)
        options.add_argument("--headless=new")
        options.add_argument("--disable-dev-shm-usage")  # small in containers
        options.add_argument("--disable-gpu")
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")  # which root cannot have
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(str(chromium.driver)))

    def close(self) -> None:
        """End it."""
        self.driver.quit()

    def show(self, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Emulate a screen of this size, with a preference for light or dark."""
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)

    def screenshot(self, path: Path) -> None:
        """The whole page."""
        size = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        screen = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        path.parent.mkdir(parents=True, exist_ok=True)
        assert self.driver.save_screenshot(str(path))

    def run(self, script: str, *arguments: object) -> Any:
        """Return a script's result."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> WebElement:
        """The first element of a CSS selector."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements of a CSS selector."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].filter((each) => each.checkVisibility())"
            ".map((each) => each.innerText)",
            selector,
        )
        return found

    def press(self, keys: str) -> None:
        """Keys, wherever the focus is."""
        webdriver.ActionChains(self.driver).send_keys(keys).perform()

    @property
    def focused(self) -> str:
        """The name of the focused element."""
        name: str = self.run(
            "const it = document.activeElement; return it.getAttribute('aria-label') || it.id || it.innerText"
        )
        return name

    @property
    def complaints(self) -> list[str]:
        """The messages in the browser's console since the last call."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a browser for tests, which are skipped where there can be none."""
    try:
        chromium = fetch_chromium()
    except ServerUnavailableError as error:
        skip(error)
    browser = Browser(chromium)
    yield browser
    browser.close()
