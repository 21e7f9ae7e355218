"""Records of franz-go."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.logged_records import CODECS, records_of, values_of
from tests.interop.wire import GROUP, NOBODY, Code, Wire


def test_keys_headers_and_timestamps(run: Any, wire: Wire, topic: str, group: str) -> None:
    run("produce", topic=topic, values=["v"], key="k", header="1", timestampMs=1_700_000_000_000)
    (record,) = records_of(wire, topic)
    assert (record.key, record.value, record.headers) == (b"k", b"v", (("h", b"1"),))
    assert record.timestamp_ms == 1_700_000_000_000
    assert record.producer_id >= 0  # idempotent unless told otherwise
    wire.wait_for_coordinator(group, GROUP)
    assert run("consume", topic=topic, group=group, count=1) == [
        {
            "partition": 0,
            "offset": 0,
            "key": "k",
            "value": "v",
            "headers": {"h": "1"},
            "timestamp_ms": 1_700_000_000_000,
        }
    ]
    assert wire.offset_fetch(group, topic) == (Code.NONE, 1)


@pytest.mark.parametrize("codec", ["lz4", *(pytest.param(c, marks=pytest.mark.matrix) for c in CODECS if c != "lz4")])
def test_compression(run: Any, wire: Wire, topic: str, codec: str) -> None:
    values = [f"value {number} " * 20 for number in range(100)]
    run("produce", topic=topic, values=values, codec=codec)
    written = records_of(wire, topic)
    assert {record.codec for record in written} == {codec}
    assert [(record.value or b"").decode() for record in written] == values
    assert [message["value"] for message in run("consume", topic=topic, count=100)] == values


@pytest.mark.matrix
def test_large_messages(run: Any, wire: Wire, topic: str) -> None:
    value = "x" * 900_000
    run("produce", topic=topic, values=[value], codec="none")
    assert values_of(wire, topic) == [value.encode()]
    assert run("consume", topic=topic, count=1)[0]["value"] == value


def test_fetch_sessions(run: Any, wire: Wire, topic: str) -> None:
    values = [str(number) for number in range(10)]
    assert run("sessions", topic=topic, values=values) == values
    assert values_of(wire, topic) == [value.encode() for value in values]


@pytest.mark.parametrize(
    "consumer_groups",
    # a member of KIP-848 heartbeats every five seconds, and learns of changes no sooner
    [pytest.param(False, id="classic"), pytest.param(True, id="KIP-848", marks=pytest.mark.matrix)],
)
def test_members_share_partitions(run: Any, wire: Wire, topic: str, group: str, consumer_groups: bool) -> None:
    shared = f"{topic}-shared"
    wire.create_topic(shared, 4)
    wire.wait_for_coordinator(group, GROUP)
    found = run("members", topic=shared, group=group, partitions=4, consumerGroups=consumer_groups)
    assert found == {"counts": [2, 2], "protocol": "Stable"}


def test_reads_what_was_committed(run: Any, wire: Wire, topic: str, transactional_id: str) -> None:
    identity = wire.init_ok(transactional_id)
    for value, commit in ((b"aborted", False), (b"committed", True)):
        assert wire.produce(transactional_id, identity, topic, 0, value).error == Code.NONE
        identity = wire.end(transactional_id, identity, commit=commit).identity
        wire.wait_until_settled(transactional_id)
    assert wire.produce(None, NOBODY, topic, -1, b"plain", transactional=False).error == Code.NONE
    read = run("consume", topic=topic, count=2, committed=True)
    assert [message["value"] for message in read] == ["committed", "plain"]
    everything = run("consume", topic=topic, count=3)
    assert [message["value"] for message in everything] == ["aborted", "committed", "plain"]
