"""Three nodes, a raw connection to each, and internal topics small enough to aim at."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from tests.emulator.api.raw_client import RawClient

NODES = 3
Connect = Callable[[int], RawClient]


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(transaction_state_log_num_partitions=3, offsets_topic_num_partitions=3)
    with Emulator(nodes=NODES, config=config, topics={"t": 1, "many": 6}) as broker:
        yield broker


@pytest.fixture
def connect(emulator: Emulator) -> Iterator[Connect]:
    """A new connection to a node."""
    addresses = emulator.bootstrap_servers.split(",")
    with ExitStack() as opened:
        yield lambda node_id: opened.enter_context(RawClient(addresses[node_id]))


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Poll until `condition` holds, for effects that follow the broker's response."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
