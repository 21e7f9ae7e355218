"""Install Debian's packages, where this machine is a Debian and we are root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

from dualwrite.testing.server_unavailable import ProgramMissingError, ServerUnavailableError

_TIMEOUT_S: Final = 600


def install_packages(packages: Sequence[str], missing: str) -> None:
    """Install `packages`; `missing` says in an error what they are wanted for.

    Raises ServerUnavailableError where that fails, ProgramMissingError where nobody here may do it.
    """
    apt_get = shutil.which("apt-get")
    command = f"apt-get install {' '.join(packages)}"
    if apt_get is None:
        raise ProgramMissingError(f"{missing}, and no apt-get to install it")
    if os.geteuid() != 0:
        raise ProgramMissingError(f"{missing}; as root: {command}")
    install = [apt_get, "install", "-y", "-q", "--no-install-recommends", *packages]
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
