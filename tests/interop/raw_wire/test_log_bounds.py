"""Where a log begins and where its leader epochs end, the same on both brokers (KIP-107, KIP-320)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.emulator.api.raw_client import RawClient, plain_batch
from tests.emulator.api.test_delete_records import HIGH_WATERMARK, delete
from tests.emulator.api.test_leader_epochs import end_of_epoch
from tests.emulator.log.writers import timed
from tests.interop.conftest import Broker
from tests.interop.wire import Code, Wire, wait_for

_NOT_YET = Code.UNKNOWN_TOPIC_OR_PARTITION
"""A broker's error until it has heard from the controller."""


@pytest.fixture
def client(broker: Broker, wire: Wire, topic: str) -> Iterator[RawClient]:
    """A connection to a broker whose `topic` has ten records."""
    with RawClient(broker.bootstrap_servers) as client:
        for number in range(5):
            assert client.produce(topic, plain_batch(b"%d" % number, b"more")).error_code == 0
        yield client


def test_delete_records(client: RawClient, topic: str) -> None:
    assert delete(client, 3, topic=topic) == (Code.NONE, 3)
    assert delete(client, 2, topic=topic) == (Code.NONE, 3)
    assert client.fetch(topic, offset=2).error_code == Code.OFFSET_OUT_OF_RANGE
    fetched = client.fetch(topic, offset=3)
    assert (fetched.error_code, fetched.log_start_offset) == (Code.NONE, 3)
    assert delete(client, 11, topic=topic) == (Code.OFFSET_OUT_OF_RANGE, -1)
    assert delete(client, -2, topic=topic) == (Code.OFFSET_OUT_OF_RANGE, -1)
    assert delete(client, HIGH_WATERMARK, topic=topic) == (Code.NONE, 10)
    assert client.produce(topic, plain_batch(b"next")).base_offset == 10


def test_delete_records_of_a_topic_without_deletable_records(client: RawClient, topic: str) -> None:
    compacted = f"{topic}-compacted"
    assert client.create_topic(compacted, cleanup_policy="compact").error_code == 0
    wait_for(lambda: client.produce(compacted, plain_batch(b"1")), lambda answer: answer.error_code != _NOT_YET)
    assert delete(client, 0, topic=compacted) == (Code.POLICY_VIOLATION, -1)
    assert delete(client, 0, topic="__transaction_state") == (Code.INVALID_TOPIC_EXCEPTION, -1)
    assert delete(client, 0, topic="no-such-topic") == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete(client, 0, topic=topic, partition=7) == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1)


@pytest.mark.parametrize("compression", [0, 1])
def test_times_are_looked_for_among_the_records_that_are_left(
    broker: Broker, wire: Wire, topic: str, compression: int
) -> None:
    begin = int(time.time() * 1000) - 1000
    for after in ((100, 400), (300,), (200, 400), (350,)):
        assert wire.produce_bytes(None, topic, timed(*(begin + ms for ms in after), compression=compression)).error == 0
    with RawClient(broker.bootstrap_servers) as client:
        assert delete(client, 3, topic=topic) == (Code.NONE, 3)
    found = [wire.list_offsets(topic, begin + ms) for ms in (0, 100, 250, 350, 400, 401)]
    assert found == [3, 3, 4, 4, 4, -1]
    assert wire.list_offsets(topic, -3) == 1  # the segment still has it, if only there


def test_end_of_a_leader_epoch(client: RawClient, topic: str) -> None:
    assert end_of_epoch(client, 0, topic=topic) == (Code.NONE, 0, 10)
    assert end_of_epoch(client, 1, topic=topic) == (Code.NONE, -1, -1)
    assert end_of_epoch(client, -1, topic=topic) == (Code.NONE, -1, -1)
    assert end_of_epoch(client, 0, topic=topic, current_leader_epoch=1) == (Code.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert end_of_epoch(client, 0, topic="no-such-topic") == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert end_of_epoch(client, 0, topic=topic, partition=7) == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
