"""One emulator and one raw connection per test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator


@pytest.fixture
def config() -> BrokerConfig:
    """Return the settings of the emulator; override it for others."""
    return BrokerConfig(transaction_state_log_num_partitions=5, offsets_topic_num_partitions=5)


@pytest.fixture
def emulator(config: BrokerConfig) -> Iterator[Emulator]:
    with Emulator(config=config, topics={"t": 1}) as broker:
        yield broker
