"""A real browser for tests, without installing anything by hand: Chromium, with the driver that goes with it.

What the machine has is taken; on Debian, and as root, its packages are installed otherwise.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, NamedTuple

from dualwrite.testing.debian_packages import install_packages
from dualwrite.testing.server_unavailable import ServerUnavailableError

_PACKAGES: Final = ("chromium", "chromium-driver")
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")


class Chromium(NamedTuple):
    """The programs of one release."""

    browser: Path
    driver: Path


def fetch_chromium() -> Chromium:
    """The browser and its driver.

    Raises ServerUnavailableError where they are not there and cannot be installed, ProgramMissingError where nobody
    here may do that.
    """
    found = _installed()
    if found is None:
        install_packages(_PACKAGES, "there is no Chromium with chromedriver on the PATH")
        found = _installed()
    if found is None:
        raise ServerUnavailableError(f"Debian's packages {' and '.join(_PACKAGES)} did not bring the programs")
    return found


def _installed() -> Chromium | None:
    browser = next((path for path in map(shutil.which, _BROWSERS) if path is not None), None)
    driver = shutil.which("chromedriver")
    return None if browser is None or driver is None else Chromium(Path(browser), Path(driver))
