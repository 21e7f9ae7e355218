"""sarama: the program `main.go`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.interop.go_program import GoProgram

PROGRAM: Final = GoProgram("sarama", Path(__file__).parent, "IBM/sarama")
VERSION: Final = PROGRAM.version
build_program = PROGRAM.build
start_program = PROGRAM.start
