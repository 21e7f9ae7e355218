"""Three nodes for the module, and a connection to each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator

CONFIG = BrokerConfig(transaction_state_log_num_partitions=2, offsets_topic_num_partitions=2)

_names = itertools.count(1)


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with Emulator(nodes=3, config=CONFIG) as emulator:
        yield emulator


@pytest.fixture
def topic(emulator: Emulator) -> str:
    """A new topic with two partitions, on all nodes."""
    name = f"topic-{next(_names)}"
    emulator.create_topic(name, 2)
    return name
