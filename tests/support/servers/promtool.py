"""Prometheus's `promtool`, out of Debian's package, which would start a server if it were installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.servers.cache import cached, find_program
from tests.support.servers.required import ProgramMissingError

_WHY = "promtool is in Debian's package prometheus"


def fetch_promtool() -> Path:
    """Return the program, fetched if needed. Raises ProgramMissingError."""
    found = shutil.which("promtool")
    return Path(found) if found else cached("promtool", _unpack) / "usr" / "bin" / "promtool"


def _unpack(work: Path) -> Path:
    apt_get, dpkg = find_program("apt-get", _WHY), find_program("dpkg", _WHY)
    done = subprocess.run([apt_get, "download", "prometheus"], cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProgramMissingError(f"{_WHY}, and `apt-get download prometheus` fails: {done.stderr.strip()}")
    (package,) = work.glob("*.deb")
    subprocess.run([dpkg, "-x", str(package), str(work / "unpacked")], check=True)
    return work / "unpacked"
