"""One program for all cases of sarama."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.both_brokers import broker
from tests.interop.case_program import CaseProgram
from tests.interop.conftest import Broker
from tests.interop.program_cases import started
from tests.interop.sarama.client import start_program

__all__ = ["broker", "program", "run"]


@pytest.fixture(scope="session")
def program() -> Iterator[CaseProgram]:
    yield from started(start_program)


@pytest.fixture
def run(program: CaseProgram, broker: Broker) -> Any:
    """Runs a case of `main.go` on the broker."""
    return lambda case, **inputs: program.run(case, servers=broker.bootstrap_servers, **inputs)
