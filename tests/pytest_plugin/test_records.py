"""`Emulator.records` shows the same records as consumers get."""

from __future__ import annotations

import sys

import pytest
from confluent_kafka import Producer

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.log.reading import uncompressed
from dualwrite.broker_emulator.log.record_batch import (
    CorruptRecordError,
    UnsupportedCompressionError,
    build_batch,
    parse_header,
)
from dualwrite.broker_emulator.slices import at_once
from tests.support.topics import read_topic


def producer_of(broker: Emulator, **settings: object) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_compression(emulator: Emulator, codec: str) -> None:
    producer = producer_of(emulator, **{"compression.type": codec, "linger.ms": 50})
    for number in range(100):
        producer.produce("t", f"value {number}" * 20, f"key {number}", headers={"h": b"x"}, timestamp=1000 + number)
    assert producer.flush(30) == 0
    found = emulator.records("t")
    assert [record.value for record in found] == [f"value {number}".encode() * 20 for number in range(100)]
    assert (found[7].key, found[7].offset, found[7].timestamp) == (b"key 7", 7, 1007)
    assert [(header.key, header.value) for header in found[7].headers] == [("h", b"x")]


def test_open_and_aborted_transactions_are_seen_as_by_consumers(emulator: Emulator) -> None:
    emulator.create_topic("t", 2)
    producers = [producer_of(emulator, **{"transactional.id": name}) for name in ("a", "b", "c")]
    for producer in producers:
        producer.init_transactions(30)
        producer.begin_transaction()
    for number, producer in enumerate(producers):
        for partition in (0, 1):
            producer.produce("t", f"{number}", partition=partition)
        assert producer.flush(30) == 0
    producers[0].commit_transaction(30)
    producers[1].abort_transaction(30)  # and the third stays open, behind both
    late = producer_of(emulator)
    late.produce("t", "late", partition=0)
    assert late.flush(30) == 0
    for level, committed in (("read_committed", True), ("read_uncommitted", False)):
        seen = [value for _, value in read_topic(emulator.bootstrap_servers, "t", isolation_level=level)]
        records = emulator.records("t", read_committed=committed)
        assert [None if record.value is None else record.value.decode() for record in records] == seen
    assert [record.value for record in emulator.records("t", 1)] == [b"0"]
    producers[2].commit_transaction(30)
    assert [record.value for record in emulator.records("t")] == [b"0", b"2", b"late", b"0", b"2"]


def test_unreplicated_records_are_not_shown(emulator: Emulator) -> None:
    emulator.create_topic("t")
    held = emulator.hold_replication("t")
    producer = producer_of(emulator, acks=1)
    producer.produce("t", "1")
    assert producer.flush(30) == 0
    assert emulator.records("t", read_committed=False) == []
    held.release()
    assert len(emulator.records("t", read_committed=False)) == 1


def test_an_untouched_topic_is_empty_and_a_missing_partition_an_error(emulator: Emulator) -> None:
    emulator.create_topic("t")
    assert emulator.records("u") == emulator.records("u", 3) == emulator.records("t") == []
    with pytest.raises(KeyError, match="t has no partition 1"):
        emulator.records("t", 1)


def test_deleted_records_are_not_shown(emulator: Emulator) -> None:
    emulator.create_topic("t")
    producer = producer_of(emulator, **{"linger.ms": 50})
    for number in range(3):
        producer.produce("t", f"{number}")
    assert producer.flush(30) == 0
    emulator.call_in_loop(lambda: at_once(emulator.operations.partition("t", 0).log.delete_records(2)))
    assert [record.value for record in emulator.records("t")] == [b"2"]  # of the same batch


def test_without_the_codec_the_missing_package_is_named(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = producer_of(emulator, **{"compression.type": "zstd"})
    producer.produce("t", "1" * 1000)
    assert producer.flush(30) == 0
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(
        UnsupportedCompressionError, match=r"offset 0 are compressed with zstd.*cramjam.*install cramjam"
    ):
        emulator.records("t")


def test_undecompressable_records_are_an_error() -> None:
    batch = bytearray(build_batch([(b"k", b"v")], timestamp_ms=0))
    batch[22] |= 4  # zstd, it says
    assert parse_header(bytes(batch)).compression == 4
    with pytest.raises(CorruptRecordError, match="zstd batch do not decompress"):
        uncompressed(bytes(batch))
