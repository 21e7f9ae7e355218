"""One emulator with two topics of three partitions, and two connections, per test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from tests.emulator.api.raw_client import RawClient


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(transaction_state_log_num_partitions=5, offsets_topic_num_partitions=5)
    with Emulator(config=config, topics={"t": 3, "u": 3}) as broker:
        yield broker


@pytest.fixture
def other(emulator: Emulator) -> Iterator[RawClient]:
    with RawClient(emulator.bootstrap_servers, client_id="other") as connection:
        yield connection
