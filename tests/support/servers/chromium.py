"""Chromium and its driver for tests with a real browser.

An installed Chromium is used if there is one; otherwise Debian's packages are installed, as root on Debian.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, NamedTuple

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.servers.debian_packages import install_packages

_PACKAGES: Final = ("chromium", "chromium-driver")
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")


class Chromium(NamedTuple):
    """The two programs, of the same release."""

    browser: Path
    driver: Path


def fetch_chromium() -> Chromium:
    """Return the browser and its driver, installed if needed.

    Raises ServerUnavailableError if the installation fails, ProgramMissingError if this process may not install.
    """
    found = _installed()
    if found is None:
        install_packages(_PACKAGES, "there is no Chromium with chromedriver on the PATH")
        found = _installed()
    if found is None:
        raise ServerUnavailableError(f"Debian's packages {' and '.join(_PACKAGES)} do not contain the programs")
    return found


def _installed() -> Chromium | None:
    browser = next((path for path in map(shutil.which, _BROWSERS) if path is not None), None)
    driver = shutil.which("chromedriver")
    return None if browser is None or driver is None else Chromium(Path(browser), Path(driver))
