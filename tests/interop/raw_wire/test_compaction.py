"""Compressed records that are larger than `max.decompressed.message.bytes` allows by now: the same on both brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from tests.emulator.api.config_requests import alter
from tests.emulator.api.raw_client import RawClient
from tests.interop.conftest import Broker
from tests.interop.raw_wire.sharing import Part, Sharer, set_group
from tests.interop.wire import GROUP, Wire, wait_until
from tests.support.names import next_name

GZIP, REFUSED = 1, 87
TOPIC, BROKERS = 2, 4
SET, DELETE = 0, 1
EARLIEST, NEWEST = -2, -3
LARGE = bytes(2000)
LIMIT = "max.decompressed.message.bytes"
BACKOFF = "log.cleaner.backoff.ms"
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def bootstrap_servers(released_kafka: Broker) -> Iterator[str]:
    """Brokers that compact often."""
    with RawClient(released_kafka.bootstrap_servers) as client:
        assert alter(client, BROKERS, "", (BACKOFF, SET, "50")) == (0, None)
        yield released_kafka.bootstrap_servers
        assert alter(client, BROKERS, "", (BACKOFF, DELETE, None)) == (0, None)


class Logs:
    """Topics of one partition in which a segment ends with each batch."""

    def __init__(self, wire: Wire, client: RawClient) -> None:
        self.wire = wire
        self.client = client
        self.now_ms = time.time_ns() // 1_000_000 - HOUR_MS // 2

    def create(self, topic: str, **configs: str) -> None:
        """Create a topic that is not compacted before `begin`."""
        settings = {"cleanup_policy": "compact", "segment_ms": "1", "min_cleanable_dirty_ratio": "0.01"}
        self.wire.create_topic(topic, 1, **{**settings, "min_compaction_lag_ms": str(HOUR_MS), **configs})

    def begin(self, topic: str) -> None:
        """Let the topic be compacted from now on."""
        self.set(topic, "min.compaction.lag.ms", "0")

    def set(self, topic: str, name: str, value: str) -> None:
        assert alter(self.client, TOPIC, topic, (name, SET, value)) == (0, None)

    def put(self, topic: str, *pairs: tuple[str, bytes], codec: int = 0) -> None:
        """Append a batch; each record comes ten milliseconds after the one before."""
        builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
        for index, (key, value) in enumerate(pairs):
            self.now_ms += 10
            builder.append(index, self.now_ms, key.encode(), value, [])
        assert self.wire.produce_bytes(None, topic, bytes(builder.build())).error == 0

    def keys(self, topic: str) -> list[str]:
        """The keys that are left."""
        position, end = self.wire.list_offsets(topic, EARLIEST), self.wire.list_offsets(topic)
        found: list[str] = []
        while position < end:
            for batch in self.wire.fetch(topic, position).batches:
                found += [(key or b"").decode() for key in batch.keys]
                position = batch.next_offset
        return found

    def compact_another(self, topic: str) -> None:
        """Create a topic and wait until it was compacted twice: then each dirtier one had its turn."""
        self.create(topic, min_compaction_lag_ms="0")
        for _ in range(2):
            self.put(topic, ("k", b"1"))
            self.put(topic, ("k", b"2"))
            self.put(topic, ("end", b""))
            wait_until(lambda: self.keys(topic).count("k") == 1)


@pytest.fixture
def logs(bootstrap_servers: str) -> Iterator[Logs]:
    with Wire(bootstrap_servers) as wire, RawClient(bootstrap_servers) as client:
        yield Logs(wire, client)


@pytest.mark.parametrize(
    ("codec", "left"), [(GZIP, ["k", "k", "k", "end"]), (0, ["k", "end"])], ids=["compressed", "uncompressed"]
)
def test_a_log_with_a_larger_record_is_not_compacted(logs: Logs, codec: int, left: Sequence[str]) -> None:
    topic = next_name("larger")
    logs.create(topic, cleanup_policy="compact,delete", retention_ms="-1")
    logs.put(topic, ("k", LARGE), codec=codec)
    for key in ("k", "k", "end"):
        logs.put(topic, (key, b"v"))
    logs.set(topic, LIMIT, "1000")
    logs.begin(topic)
    logs.compact_another(f"{topic}-another")
    assert logs.keys(topic) == left
    logs.set(topic, LIMIT, "3000")
    logs.compact_another(f"{topic}-again")
    assert logs.keys(topic) == left


def test_a_time_is_not_found_behind_a_larger_record(logs: Logs) -> None:
    topic = next_name("times")
    logs.create(topic, cleanup_policy="delete", segment_ms=str(HOUR_MS))
    begin = logs.now_ms + 10
    logs.put(topic, ("a", b"v"), ("b", LARGE), ("c", b"v"), codec=GZIP)
    logs.put(topic, ("d", LARGE))
    logs.put(topic, ("e", LARGE), ("f", b"v"), codec=GZIP)
    asked = [*(begin + after for after in (0, 10, 20, 30, 40, 50, 51)), NEWEST]

    def answers() -> list[tuple[int, int]]:
        rows = [logs.wire._list_offsets(topic, 0, wanted, 0, 7) for wanted in asked]
        return [(row.error_code, row.offset) for row in rows]

    assert answers() == [*((0, offset) for offset in range(6)), (0, -1), (0, 5)]
    logs.set(topic, LIMIT, "1000")
    refused = (REFUSED, -1)
    expected = [(0, 0), refused, refused, (0, 3), refused, refused, (0, -1), refused]
    wait_until(lambda: answers() == expected)


def test_a_share_group_does_not_begin_behind_a_larger_record(logs: Logs) -> None:
    topic, group = next_name("shared"), next_name("group")
    logs.create(topic, cleanup_policy="delete")
    logs.put(topic, ("a", LARGE), codec=GZIP)
    logs.set(topic, LIMIT, "1000")
    wait_until(lambda: bool(logs.wire._list_offsets(topic, 0, 0, 0, 7).error_code == REFUSED))
    logs.wire.wait_for_coordinator(group, GROUP)
    set_group(logs.client, group, auto_offset_reset="by_duration:PT1H")
    member = Sharer(logs.client, group, topic).join()
    assert member.fetch() == Part(REFUSED, 0, [])
