"""One program for all cases of kafkajs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.interop.both_brokers import broker
from tests.interop.case_program import CaseProgram
from tests.interop.conftest import Broker
from tests.interop.kafkajs.client import start_program
from tests.support.unavailable import skip

__all__ = ["broker", "program", "run"]


@pytest.fixture(scope="session")
def program() -> Iterator[CaseProgram]:
    try:
        started = start_program()
    except ServerUnavailableError as error:
        skip(error)
    yield started
    started.close()


@pytest.fixture
def run(program: CaseProgram, broker: Broker) -> Any:
    """Runs a case of `cases.js` on the broker."""
    return lambda case, **inputs: program.run(case, servers=broker.bootstrap_servers, **inputs)
