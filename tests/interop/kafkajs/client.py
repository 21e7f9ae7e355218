"""kafkajs: the program `cases.js`, with the packages that `package-lock.json` pins in a cache directory."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Final

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.interop.case_program import CaseProgram
from tests.support.servers.cache import cached, find_program

_HERE: Final = Path(__file__).parent
_PACKAGES: Final = (_HERE / "package.json", _HERE / "package-lock.json")
_TIMEOUT_S: Final = 300

VERSION: Final[str] = json.loads(_PACKAGES[0].read_text())["dependencies"]["kafkajs"]


def fetch_packages() -> Path:
    """The directory with `node_modules`. Raises ServerUnavailableError."""
    digest = hashlib.sha256(_PACKAGES[1].read_bytes()).hexdigest()[:16]

    def install(work: Path) -> Path:
        npm = find_program("npm", "kafkajs comes from npm")
        target = work / "packages"
        target.mkdir()
        for file in _PACKAGES:
            (target / file.name).write_text(file.read_text())
        # no script of a package may run
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(target)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise ServerUnavailableError(f"npm did not fetch kafkajs within {_TIMEOUT_S} s") from error
        if done.returncode != 0:
            reason = next((line for line in done.stderr.splitlines() if "error" in line), "no reason given")
            raise ServerUnavailableError(f"npm could not fetch kafkajs: {reason}")
        return target

    return cached(f"kafkajs-{VERSION}-{digest}", install)


def start_program() -> CaseProgram:
    """The program, waiting for cases. Raises ServerUnavailableError."""
    node = find_program("node", "kafkajs needs Node.js")
    return CaseProgram([node, str(_HERE / "cases.js"), str(fetch_packages())])
