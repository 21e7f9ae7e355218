"""Clients in Go: a folder's `main.go` and the common `cases.go`, built with the modules that its `go.sum` pins.

The program is kept in a cache directory.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.interop.case_program import CaseProgram
from tests.support.servers.cache import cached, find_program

_COMMON: Final = Path(__file__).parent / "cases.go"
_TIMEOUT_S: Final = 900
"""The first build compiles Go's own library too."""


class GoProgram:
    """The program of one client: `module` is the one whose version counts."""

    def __init__(self, name: str, folder: Path, module: str) -> None:
        self.name = name
        self._sources = (_COMMON, *(folder / source for source in ("go.mod", "go.sum", "main.go")))
        (self.version,) = re.findall(rf"{re.escape(module)} v(\S+)", (folder / "go.mod").read_text())

    def build(self) -> Path:
        """The directory with the program. Raises ServerUnavailableError."""
        digest = hashlib.sha256(b"".join(source.read_bytes() for source in self._sources)).hexdigest()[:16]
        return cached(f"{self.name}-{self.version}-{digest}", self._build_in)

    def _build_in(self, work: Path) -> Path:
        go = find_program("go", f"{self.name} needs the Go compiler")
        folder, target = work / "source", work / "program"
        for directory in (folder, target):
            directory.mkdir()
        for source in self._sources:
            shutil.copy(source, folder)
        command = [go, "build", "-o", str(target / self.name), "."]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise ServerUnavailableError(f"Go did not build {self.name} within {_TIMEOUT_S} s") from error
        if done.returncode != 0:
            reason = done.stderr.strip().splitlines() or ["no reason given"]
            raise ServerUnavailableError(f"Go could not build {self.name}: {reason[-1]}")
        return target

    def start(self) -> CaseProgram:
        """The program, waiting for cases. Raises ServerUnavailableError."""
        return CaseProgram([str(self.build() / self.name)])
