"""A real browser for tests, without installing anything by hand: Chromium, with the driver that goes with it.

What the machine has is taken; on Debian, and as root, its packages are installed otherwise.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from dualwrite.testing.server_unavailable import ProgramMissingError, ServerUnavailableError

_PACKAGES: Final = ("chromium", "chromium-driver")
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
_TIMEOUT_S: Final = 600


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
        _install()
        found = _installed()
    if found is None:
        raise ServerUnavailableError(f"Debian's packages {' and '.join(_PACKAGES)} did not bring the programs")
    return found


def _installed() -> Chromium | None:
    browser = next((path for path in map(shutil.which, _BROWSERS) if path is not None), None)
    driver = shutil.which("chromedriver")
    return None if browser is None or driver is None else Chromium(Path(browser), Path(driver))


def _install() -> None:
    apt_get = shutil.which("apt-get")
    command = f"apt-get install {' '.join(_PACKAGES)}"
    if apt_get is None:
        raise ProgramMissingError("there is no Chromium with chromedriver on the PATH, and no apt-get to install it")
    if os.geteuid() != 0:
        raise ProgramMissingError(f"there is no Chromium with chromedriver on the PATH; as root: {command}")
    install = [apt_get, "install", "-y", "-q", "--no-install-recommends", *_PACKAGES]
    if _run(install) is None:
        return
    problem = _run([apt_get, "update", "-q"]) or _run(install)  # its lists may be old, or never fetched
    if problem is not None:
        raise ServerUnavailableError(f"{command} failed: {problem}")


def _run(command: list[str]) -> str | None:
    """What went wrong, if something did."""
    command = [*command, "-o", "DPkg::Lock::Timeout=300"]  # another process may be at it
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not done within {_TIMEOUT_S} s"
    return None if done.returncode == 0 else " | ".join(done.stderr.strip().splitlines()[-3:])
