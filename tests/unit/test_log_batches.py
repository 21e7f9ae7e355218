"""Batches of a Fetch response, of any producer: headers, markers, and records byte for byte."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from typing import Any

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder

from dualwrite.client.kafka_python import FetchRequest, FetchResponse
from dualwrite.client.log import codec
from dualwrite.client.records import compression
from dualwrite.client.records.batch_reading import Marker, StoredRecord, batches_in, marker_of, records_of
from dualwrite.client.records.batches import HEADER_BYTES, checksummed
from dualwrite.client.records.record import TopicPartition
from dualwrite.errors import AdminError, Api, ConfigError, RetriableError

from .log_batches import ATTRIBUTES_AT, batch, batch_bytes, marker, marker_bytes, one, placed

RECORDS: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (1_000, None, b"plain", []),
    (999, b"key", None, []),
    (1_000_000_000_000, b"", b"", [("a", b"1"), ("a", None), ("\u00fc", b"")]),
    (0, b"k" * 300, bytes(range(256)) * 50, [("h" * 200, b"v" * 200)]),
]


def by_aiokafka(base_offset: int) -> bytearray:
    untyped: Any = AiokafkaBuilder
    builder = untyped(2, 0, 1, 7, 5, 0, 1 << 20)
    for number, (timestamp_ms, key, value, headers) in enumerate(RECORDS):
        builder.append(number, timestamp_ms, key, value, headers)
    return bytearray(placed(bytes(builder.build()), base_offset))


def compressed(data: bytearray, number: int, records: bytes) -> bytes:
    """Return the batch with these bytes as its records."""
    data[HEADER_BYTES:] = records
    struct.pack_into(">i", data, 8, len(data) - 12)
    data[ATTRIBUTES_AT + 1] |= number
    return bytes(checksummed(data))


def xerial(data: bytes) -> bytes:
    """Compress like snappy-java, which Java's clients and brokers use: a header, then blocks with their length."""
    blocks = [data[begin : begin + 1_000] for begin in range(0, len(data), 1_000)]
    raw = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(block)) + block for block in raw)


def linked_lz4(data: bytes) -> bytes:
    compressor: Any = cramjam.lz4.Compressor(level=9, content_checksum=True, block_linked=True)
    compressor.compress(data)
    return bytes(compressor.finish())


def zstd_of_unknown_size(data: bytes) -> bytes:
    compressor: Any = cramjam.zstd.Compressor()
    parts = bytearray()
    for begin in range(0, len(data), 500):
        compressor.compress(data[begin : begin + 500])
        parts += bytes(compressor.flush())
    return bytes(parts + bytes(compressor.finish()))


COMPRESSIONS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (1, gzip.compress),
    "gzip in two members": (1, lambda data: gzip.compress(data[:50]) + gzip.compress(data[50:])),
    "snappy": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "snappy of Java": (2, xerial),
    "lz4": (3, lambda data: bytes(cramjam.lz4.compress(data))),
    "lz4 with linked blocks": (3, linked_lz4),
    "zstd": (4, lambda data: bytes(cramjam.zstd.compress(data))),
    "zstd of unknown size": (4, zstd_of_unknown_size),
}
EXPECTED = [
    StoredRecord("orders", 3, key, value, headers, timestamp_ms, 40 + number)
    for number, (timestamp_ms, key, value, headers) in enumerate(RECORDS)
]


def test_records_of_another_library() -> None:
    found = one(bytes(by_aiokafka(40)))
    assert (found.base_offset, found.last_offset, found.record_count) == (40, 43, 4)
    assert (found.producer_id, found.producer_epoch) == (7, 5)
    assert list(records_of("orders", 3, found)) == EXPECTED


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_compressed_records(name: str) -> None:
    number, compress = COMPRESSIONS[name]
    data = by_aiokafka(40)
    stored = compressed(data, number, compress(bytes(data[HEADER_BYTES:])))
    assert list(records_of("orders", 3, one(stored))) == EXPECTED


def test_a_missing_decompressor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = by_aiokafka(40)
    stored = compressed(data, 4, bytes(cramjam.zstd.compress(bytes(data[HEADER_BYTES:]))))
    monkeypatch.setattr(compression, "cramjam", None)
    with pytest.raises(ConfigError, match=r"zstd needs a package.*dualwrite\[compression\]"):
        list(records_of("orders", 3, one(stored)))


def test_timestamps_of_the_broker() -> None:
    data = by_aiokafka(40)
    data[ATTRIBUTES_AT + 1] |= 0x08
    struct.pack_into(">q", data, 35, 123_456)
    records = list(records_of("orders", 3, one(bytes(checksummed(data)))))
    assert {record.timestamp_ms for record in records} == {123_456}


@pytest.mark.parametrize("position", [ATTRIBUTES_AT, HEADER_BYTES, -1])
def test_damaged_records_are_refused(position: int) -> None:
    data = by_aiokafka(40)
    data[position] ^= 0x80
    with pytest.raises(
        RetriableError, match=r"offset 40 of orders-3 arrived damaged.*nothing was changed: repeat the call"
    ):
        list(records_of("orders", 3, one(bytes(data))))


@pytest.mark.parametrize("number", [0, 1, 4, 5])
def test_bytes_that_are_no_records_are_refused(number: int) -> None:
    stored = compressed(by_aiokafka(40), number, b"\x02nonsense")
    with pytest.raises(AdminError, match=r"offset 40 of orders-3 cannot be decoded.*nothing was changed"):
        list(records_of("orders", 3, one(stored)))


def test_a_truncated_batch_is_skipped() -> None:
    whole = batch_bytes(0, b"a") + batch_bytes(1, b"b", b"c")
    for length in range(len(whole) + 1):
        found = [each.base_offset for each in batches_in(memoryview(whole)[:length])]
        assert found == ([0, 1] if length == len(whole) else [0] if length >= len(batch_bytes(0, b"a")) else [])


def test_messages_older_than_transactions_are_of_no_producer() -> None:
    old = struct.pack(">qi", 5, 60) + b"\0" * 4 + b"\1" + b"\0" * 55
    found = list(batches_in(memoryview(old + batch_bytes(6, b"a"))))
    assert [(each.last_offset, each.producer_id, each.is_transactional) for each in found] == [
        (5, -1, False),
        (6, 7, True),
    ]


def test_short_messages_older_than_transactions_are_passed_over() -> None:
    old = struct.pack(">qi", 5, 14) + b"\0" * 4 + b"\1" + b"\0" * 9
    assert [each.base_offset for each in batches_in(memoryview(old + old + batch_bytes(6, b"a")))] == [5, 5, 6]


@pytest.mark.parametrize(("commits", "expected"), [(True, Marker.COMMIT), (False, Marker.ABORT)])
def test_markers(commits: bool, expected: Marker) -> None:
    assert marker_of("orders", 3, marker(9, commits=commits)) is expected


def test_ordinary_batches_are_no_markers() -> None:
    assert marker_of("orders", 3, batch(0, b"a", key=struct.pack(">hh", 0, 1))) is None
    assert marker_of("orders", 3, marker(9, commits=True, kind=2)) is None  # a leader change of KRaft's log
    assert batch(0, b"a", transactional=False).is_transactional is False


# ---- Fetch --------------------------------------------------------------------------------------------------------

WHERE = TopicPartition("orders", 3)


def response(**partition: Any) -> memoryview:
    topic_class = FetchResponse.FetchableTopicResponse
    row: Any = topic_class.PartitionData
    made: Any = row(version=12, partition_index=3, high_watermark=12, last_stable_offset=10, **partition)
    whole: Any = FetchResponse(version=12, responses=[topic_class(version=12, topic="orders", partitions=[made])])
    return memoryview(whole.encode(version=12))


@pytest.mark.parametrize("version", [4, 11, 12])
@pytest.mark.parametrize("read_committed", [True, False])
def test_the_request(version: int, read_committed: bool) -> None:
    call = codec.fetch({WHERE: 5, TopicPartition("a", 0): 1}, read_committed=read_committed)
    assert call.api is Api.FETCH
    assert call.versions == (4, 12)
    request: Any = FetchRequest.decode(memoryview(call.encode(version)), version=version)
    assert (request.max_wait_ms, request.isolation_level) == (0, int(read_committed))
    asked = [(topic.topic, row.partition, row.fetch_offset) for topic in request.topics for row in topic.partitions]
    assert asked == [("orders", 3, 5), ("a", 0, 1)]


def test_the_response() -> None:
    aborted_class: Any = FetchResponse.FetchableTopicResponse.PartitionData.AbortedTransaction
    aborted = [aborted_class(version=12, producer_id=7, first_offset=2)]
    body = response(records=batch_bytes(4, b"a") + marker_bytes(5, commits=True), aborted_transactions=aborted)
    (reply,) = codec.fetch({WHERE: 4}, read_committed=True).decode(body, 12).values()
    assert reply.error_code == 0
    fetched = reply.value
    assert fetched is not None
    assert [each.base_offset for each in fetched.batches] == [4, 5]
    assert (fetched.high_watermark, fetched.last_stable_offset, fetched.aborted) == (12, 10, ((7, 2),))
    assert not fetched.out_of_range


def test_an_offset_out_of_range_raises_nothing() -> None:
    (reply,) = codec.fetch({WHERE: 4}, read_committed=True).decode(response(error_code=1, records=None), 12).values()
    assert reply.error_code == 0
    assert reply.value is not None
    assert reply.value.out_of_range


def test_errors() -> None:
    call = codec.fetch({WHERE: 4}, read_committed=False)
    assert call.decode(response(error_code=6, records=None), 12) == {WHERE: (6, None)}
    whole: Any = FetchResponse(version=12, error_code=-1, responses=[])
    assert call.decode(memoryview(whole.encode(version=12)), 12) == {WHERE: (-1, None)}
