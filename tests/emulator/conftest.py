"""Connections to the emulator of a test; each folder or file has an emulator of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from dualwrite.broker_emulator import Emulator
from tests.emulator.api.raw_client import RawClient

Connect = Callable[[int], RawClient]


@pytest.fixture
def client(emulator: Emulator) -> Iterator[RawClient]:
    with RawClient(emulator.bootstrap_servers) as connection:
        yield connection


@pytest.fixture
def connect(emulator: Emulator) -> Iterator[Connect]:
    """Open a new connection to a node."""
    addresses = emulator.bootstrap_servers.split(",")
    with ExitStack() as opened:
        yield lambda node_id: opened.enter_context(RawClient(addresses[node_id]))
