"""The batch codec against two foreign writers and a foreign reader."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.broker_emulator.log.record import Record
from dualwrite.broker_emulator.log.record_batch import (
    CorruptRecordError,
    EndTxnMarker,
    UnsupportedCompressionError,
    build_batch,
    iter_records,
    parse_end_txn_marker,
    split_batches,
)
from tests.emulator.log.writers import NOW_MS, WRITERS, batch

PAIRS = st.lists(
    st.tuples(st.none() | st.binary(max_size=200), st.none() | st.binary(max_size=20_000)), min_size=1, max_size=20
)
PRODUCERS = st.one_of(
    st.just((-1, -1, -1)),
    st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 32767), st.integers(0, 2**31 - 1)),
)


@pytest.mark.parametrize("writer", WRITERS)
@given(records=PAIRS, producer=PRODUCERS, transactional=st.booleans())
@settings(max_examples=40, deadline=None)
def test_batches_of_any_writer_are_read_back(
    writer: str,
    records: list[tuple[bytes | None, bytes | None]],
    producer: tuple[int, int, int],
    transactional: bool,
) -> None:
    producer_id, producer_epoch, base_sequence = producer
    data = WRITERS[writer](
        records,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )
    [(header, view)] = split_batches(data)
    assert bytes(view) == data
    assert header.size_bytes == len(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == producer
    assert header.is_transactional == transactional
    assert not header.is_control
    assert (header.record_count, header.last_offset_delta) == (len(records), len(records) - 1)
    assert (header.base_timestamp, header.max_timestamp) == (NOW_MS, NOW_MS)
    assert list(iter_records(data)) == [Record(i, NOW_MS, k, v) for i, (k, v) in enumerate(records)]


def test_gzip_is_read_and_other_compressions_are_refused_by_name() -> None:
    gzipped = WRITERS["aiokafka"]([(b"k", b"v" * 500)] * 3, compression=1)
    assert len(gzipped) < 500
    assert [record.value for record in iter_records(gzipped)] == [b"v" * 500] * 3
    for position in (61, 75, len(gzipped) - 1):
        damaged = bytearray(gzipped)
        damaged[position] ^= 0x55
        with pytest.raises(CorruptRecordError, match="gzip"):
            list(iter_records(bytes(damaged)))
    snappy = bytearray(batch())
    snappy[22] |= 2
    with pytest.raises(UnsupportedCompressionError, match="2"):
        list(iter_records(bytes(snappy)))


def test_markers_of_later_versions_are_read_and_unknown_control_types_are_not_markers() -> None:
    later = Record(0, NOW_MS, struct.pack(">hhi", 3, 1, 99), struct.pack(">hiq", 3, 12, 99))
    assert parse_end_txn_marker(later) == EndTxnMarker(True, 12)
    assert parse_end_txn_marker(Record(0, NOW_MS, struct.pack(">hh", 0, 4), b"")) is None
    for key, value in ((None, b""), (b"\x00", b""), (struct.pack(">hh", 0, 0), b"\x00")):
        with pytest.raises(CorruptRecordError):
            parse_end_txn_marker(Record(0, NOW_MS, key, value))


@given(position=st.integers(17, 70), bit=st.integers(0, 7))
def test_a_flipped_bit_behind_the_magic_is_noticed(position: int, bit: int) -> None:
    data = bytearray(batch(b"some value"))
    data[position] ^= 1 << bit
    with pytest.raises(CorruptRecordError, match="CRC"):
        split_batches(bytes(data))


def test_an_empty_batch_is_not_built() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([], timestamp_ms=NOW_MS)


@given(body=st.binary(max_size=40), record_count=st.integers(0, 5))
def test_records_that_do_not_parse_are_corrupt_and_nothing_else(body: bytes, record_count: int) -> None:
    header = bytearray(batch()[:61])
    header[8:12] = struct.pack(">i", 49 + len(body))
    header[57:61] = struct.pack(">i", record_count)
    header[17:21] = struct.pack(">I", crc32c(bytes(header[21:]) + body))
    try:
        parsed = list(iter_records(bytes(header) + body))
    except CorruptRecordError:
        return
    assert len(parsed) == record_count
