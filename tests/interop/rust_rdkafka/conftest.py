"""One program for all cases of rust-rdkafka."""

from __future__ import annotations

from tests.interop.both_brokers import broker
from tests.interop.program_cases import program_of, run

from .client import start_program

__all__ = ["broker", "program", "run"]

program = program_of(start_program)
