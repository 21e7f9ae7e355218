"""librdkafka's members of groups while the emulator's process is killed and restarted on its data directory.

A copy in transactions, exactly once over kills, is in tests/interop/killed_copy.py, on a real Apache Kafka too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulator.api.raw_client import RawClient
from tests.emulator.killable_broker import KillableBroker
from tests.emulator.killable_broker import broker as broker
from tests.emulator.member_clients import (
    BATCHES,
    PARTITIONS,
    STRATEGIES,
    Members,
    assert_each_once,
    committed_offsets,
)


@pytest.fixture(params=STRATEGIES)
def members(request: pytest.FixtureRequest, broker: KillableBroker) -> Iterator[Members]:
    with RawClient(broker.address) as client:
        assert client.create_topic("t", PARTITIONS).error_code == 0
    made = Members(broker.address, request.param)
    yield made
    made.close()


def restart(broker: KillableBroker) -> None:
    broker.kill()
    broker.start()


def test_members_go_on(broker: KillableBroker, members: Members) -> None:
    """One is alone, then there are two, then the other one is alone; the broker is killed in between."""
    members.join()
    members.consume(0)
    restart(broker)
    members.join()
    members.wait_until_shared()
    members.consume(1)
    restart(broker)
    members.consume(2)
    members.leave()
    members.wait_until_shared()
    members.consume(3)
    assert_each_once(members)
    assert committed_offsets(broker.address) == [len(BATCHES)] * PARTITIONS
