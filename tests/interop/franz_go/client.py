"""franz-go: the program `main.go`, built with the modules that `go.sum` pins, and kept in a cache directory."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path
from typing import Final

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.interop.case_program import CaseProgram
from tests.support.servers.cache import cached, find_program

_HERE: Final = Path(__file__).parent
_SOURCES: Final = (_HERE / "go.mod", _HERE / "go.sum", _HERE / "main.go")
_TIMEOUT_S: Final = 900
"""The first build compiles Go's own library too."""

(VERSION,) = re.findall(r"twmb/franz-go v(\S+)", _SOURCES[0].read_text())


def build_program() -> Path:
    """The directory with the program. Raises ServerUnavailableError."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in _SOURCES)).hexdigest()[:16]

    def build(work: Path) -> Path:
        go = find_program("go", "franz-go needs the Go compiler")
        target = work / "program"
        target.mkdir()
        command = [go, "build", "-o", str(target / "franz-go"), "."]
        try:
            done = subprocess.run(command, cwd=_HERE, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise ServerUnavailableError(f"Go did not build franz-go within {_TIMEOUT_S} s") from error
        if done.returncode != 0:
            raise ServerUnavailableError(f"Go could not build franz-go: {done.stderr.strip().splitlines()[-1]}")
        return target

    return cached(f"franz-go-{VERSION}-{digest}", build)


def start_program() -> CaseProgram:
    """The program, waiting for cases. Raises ServerUnavailableError."""
    return CaseProgram([str(build_program() / "franz-go")])
