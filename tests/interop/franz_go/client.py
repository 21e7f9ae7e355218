"""franz-go: the program `main.go`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.interop.go_program import GoProgram

PROGRAM: Final = GoProgram("franz-go", Path(__file__).parent, "twmb/franz-go")
VERSION: Final = PROGRAM.version
build_program = PROGRAM.build
start_program = PROGRAM.start
