"""Three nodes, and internal topics small enough to aim at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator

NODES = 3


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(transaction_state_log_num_partitions=3, offsets_topic_num_partitions=3)
    with Emulator(nodes=NODES, config=config, topics={"t": 1, "many": 6}) as broker:
        yield broker
