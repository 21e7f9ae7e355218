"""kafka-go: the program `main.go`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.interop.go_program import GoProgram

PROGRAM: Final = GoProgram("kafka-go", Path(__file__).parent, "segmentio/kafka-go")
VERSION: Final = PROGRAM.version
build_program = PROGRAM.build
start_program = PROGRAM.start
