"""Install Debian packages, if this machine runs Debian and this process is root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.servers.required import ProgramMissingError

_TIMEOUT_S: Final = 600


def install_packages(packages: Sequence[str], missing: str) -> None:
    """Install `packages`; the message of an error begins with `missing`, which names the missing program.

    Raises ServerUnavailableError if the installation fails, ProgramMissingError if this process may not install.
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
    problem = _run([apt_get, "update", "-q"]) or _run(install)  # the package lists may be old, or were never fetched
    if problem is not None:
        raise ServerUnavailableError(f"{command} failed: {problem}")


def _run(command: list[str]) -> str | None:
    """Run `command` and return why it failed, or None."""
    command = [*command, "-o", "DPkg::Lock::Timeout=300"]  # another process may be installing
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not done within {_TIMEOUT_S} s"
    return None if done.returncode == 0 else " | ".join(done.stderr.strip().splitlines()[-3:])
