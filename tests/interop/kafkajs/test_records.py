"""Records of kafkajs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.logged_records import records_of, values_of
from tests.interop.wire import GROUP, NOBODY, Code, Wire, wait_for


def test_keys_headers_and_timestamps(run: Any, wire: Wire, topic: str, group: str) -> None:
    message = {"key": "k", "value": "v", "headers": {"h": "1"}, "timestamp": "1700000000000"}
    run("produce", topic=topic, messages=[message, {"key": "k", "value": None}])
    first, second = records_of(wire, topic)
    assert (first.key, first.value, first.headers) == (b"k", b"v", (("h", b"1"),))
    assert first.timestamp_ms == 1_700_000_000_000
    assert (second.key, second.value) == (b"k", None)
    wire.wait_for_coordinator(group, GROUP)
    read = run("consume", topic=topic, group=group, count=2)
    assert read[0] == {
        "partition": 0,
        "offset": 0,
        "key": "k",
        "value": "v",
        "headers": {"h": "1"},
        "timestamp": 1_700_000_000_000,
    }
    assert (read[1]["offset"], read[1]["value"]) == (1, None)
    assert wire.offset_fetch(group, topic) == (Code.NONE, 2)


@pytest.mark.parametrize("codec", ["gzip", pytest.param("snappy", marks=pytest.mark.matrix)])
def test_compression(run: Any, wire: Wire, topic: str, group: str, codec: str) -> None:
    values = [f"value {number} " * 20 for number in range(100)]
    run("produce", topic=topic, messages=[{"value": value} for value in values], compression=codec)
    written = records_of(wire, topic)
    assert {record.codec for record in written} == {codec}
    assert [(record.value or b"").decode() for record in written] == values
    wire.wait_for_coordinator(group, GROUP)
    assert [message["value"] for message in run("consume", topic=topic, group=group, count=100)] == values


def test_idempotent_producer(run: Any, wire: Wire, topic: str) -> None:
    run("produce", topic=topic, messages=[{"value": "a"}, {"value": "b"}], idempotent=True)
    written = records_of(wire, topic)
    assert [record.value for record in written] == [b"a", b"b"]
    assert written[0].producer_id >= 0


@pytest.mark.parametrize("acks", [1, 0])
@pytest.mark.matrix
def test_acks(run: Any, wire: Wire, topic: str, acks: int) -> None:
    run("produce", topic=topic, messages=[{"value": "a"}], acks=acks)
    wait_for(lambda: values_of(wire, topic), lambda values: values == [b"a"])


@pytest.mark.matrix
def test_large_messages(run: Any, wire: Wire, topic: str, group: str) -> None:
    value = "x" * 900_000
    run("produce", topic=topic, messages=[{"value": value}])
    assert values_of(wire, topic) == [value.encode()]
    wire.wait_for_coordinator(group, GROUP)
    assert run("consume", topic=topic, group=group, count=1)[0]["value"] == value


def test_members_share_partitions(run: Any, wire: Wire, topic: str, group: str) -> None:
    shared = f"{topic}-shared"
    wire.create_topic(shared, 4)
    wire.wait_for_coordinator(group, GROUP)
    assert run("members", topic=shared, group=group, partitions=4) == [2, 2]


def test_reads_what_was_committed(run: Any, wire: Wire, topic: str, transactional_id: str, group: str) -> None:
    identity = wire.init_ok(transactional_id)
    for value, commit in ((b"aborted", False), (b"committed", True)):
        assert wire.produce(transactional_id, identity, topic, 0, value).error == Code.NONE
        identity = wire.end(transactional_id, identity, commit=commit).identity
        wire.wait_until_settled(transactional_id)
    assert wire.produce(None, NOBODY, topic, -1, b"plain", transactional=False).error == Code.NONE
    wire.wait_for_coordinator(group, GROUP)
    read = run("consume", topic=topic, group=group, count=2)
    assert [message["value"] for message in read] == ["committed", "plain"]
    everything = run("consume", topic=topic, group=f"{group}-all", count=3, readUncommitted=True)
    assert [message["value"] for message in everything] == ["aborted", "committed", "plain"]
