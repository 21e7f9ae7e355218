"""Batches from Arrow columns have the same bytes as those of the record builder, for any rows."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from dualwrite.client.records.arrow import batch_starts, check_sizes, plan
from dualwrite.client.records.arrow_columns import rows_of
from dualwrite.client.records.arrow_varints import varint_sizes
from dualwrite.client.records.batches import HEADER_BYTES, LibraryBuilder, stamp_and_build
from tests.support.proof_only import examples

NOW_MS = 1_700_000_000_000
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int | None]

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
contents = st.none() | st.binary(max_size=40) | st.sampled_from([b"x" * 63, b"x" * 64, b"y" * 8191, b"y" * 8192])
times = st.none() | st.integers(0, 2**63 - 1) | st.integers(NOW_MS - 100, NOW_MS + 100_000)
rows_strategy = st.lists(
    st.tuples(contents, contents, st.lists(st.tuples(names, contents), max_size=3), times), min_size=1, max_size=40
)


def table(rows: list[Row], kind: Any = None) -> pa.Table:
    headers = pa.map_(pa.string(), pa.binary())
    return pa.table(
        {
            "key": pa.array([row[0] for row in rows], kind or pa.binary()),
            "value": pa.array([row[1] for row in rows], pa.large_binary()),
            "headers": pa.array([row[2] for row in rows], headers),
            "timestamp_ms": pa.array([row[3] for row in rows], pa.int64()),
            "partition": pa.array([0] * len(rows), pa.int32()),
        }
    )


def from_columns(given_table: pa.Table, batch_size: int) -> list[bytes]:
    return [
        bytes(stamp_and_build(batch, 7, 3, 11))
        for rows in rows_of(given_table, NOW_MS)
        for _, batch in plan(rows, batch_size).batches(transactional=True)
    ]


def from_builder(rows: list[Row]) -> bytes:
    builder = LibraryBuilder(transactional=True, batch_size=2**30)
    for place, (key, value, headers, time_ms) in enumerate(rows):
        assert builder.append(place, NOW_MS if time_ms is None else time_ms, key, value, headers) is not None
    data = stamp_and_build(builder, 7, 3, 11)
    struct.pack_into(">i", data, 12, -1)  # the leader epoch is the broker's to write
    return bytes(data)


@given(rows_strategy)
@example([(None, None, [], None)])
@example([(b"", b"", [("", None)], 2**63 - 1), (b"", b"", [("", b"")], 0)])
@settings(max_examples=examples(100), deadline=None)
def test_the_same_bytes_as_from_the_builder(rows: list[Row]) -> None:
    (ours,) = from_columns(table(rows), 10_000_000)
    assert ours == from_builder(rows)


@given(rows_strategy, st.integers(100, 3000))
@settings(max_examples=examples(100), deadline=None)
def test_batches_end_in_time_and_nothing_is_lost(rows: list[Row], batch_size: int) -> None:
    batches = from_columns(table(rows), batch_size)
    at = 0
    for data in batches:
        read: Any = DefaultRecordBatch(data)
        assert read.validate_crc()
        count = len(list(read))
        assert len(data) <= batch_size or count == 1
        assert data == from_builder(rows[at : at + count])
        at += count
    assert at == len(rows)


@given(rows_strategy, st.data())
@settings(max_examples=examples(50), deadline=None)
def test_slices_and_chunks_keep_their_values(rows: list[Row], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    whole = table(rows)
    shown = pa.concat_tables([whole.slice(start), whole.slice(0, start)])
    batches = from_columns(shown, 10_000_000)
    expected = [from_builder(part) for part in (rows[start:], rows[:start]) if part]
    assert batches == expected


def test_a_huge_value_and_many_rows() -> None:
    rows: list[Row] = [(b"k", b"\xff" * 20_000_000, [], 5), (None, b"", [], 4)]
    assert from_columns(table(rows), 2**30) == [from_builder(rows)]
    many: list[Row] = [(b"%d" % number, None, [], number) for number in range(70_000)]
    assert from_columns(table(many), 2**30) == [from_builder(many)]


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 2, 40_000]), contents), min_size=1, max_size=60), st.integers(100, 9000)
)
@settings(max_examples=examples(100), deadline=None)
def test_partitions_keep_their_order(rows: list[tuple[int, bytes | None]], batch_size: int) -> None:
    given_table = pa.table(
        {
            "value": pa.array([value for _, value in rows], pa.binary()),
            "partition": [partition for partition, _ in rows],
            "timestamp_ms": list(range(len(rows))),
        }
    )
    (columns,) = rows_of(given_table, NOW_MS)
    found: dict[int, list[tuple[int, bytes | None]]] = {}
    for partition, batch in plan(columns, batch_size).batches(transactional=True):
        read: Any = DefaultRecordBatch(bytes(batch.build()))
        found.setdefault(partition, []).extend((record.timestamp, record.value) for record in read)
    expected: dict[int, list[tuple[int, bytes | None]]] = {}
    for time_ms, (partition, value) in enumerate(rows):
        expected.setdefault(partition, []).append((time_ms, value))
    assert found == expected


def test_a_null_may_cover_bytes() -> None:
    offsets, data = pa.py_buffer(np.array([0, 1, 3, 4], np.int32)), pa.py_buffer(b"abcd")
    column = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x05"), offsets, data])
    assert column.to_pylist() == [b"a", None, b"d"]
    batches = from_columns(pa.table({"value": column, "key": column}), 1000)
    assert batches == [from_builder([(b"a", b"a", [], None), (None, None, [], None), (b"d", b"d", [], None)])]


@given(rows_strategy)
@settings(max_examples=examples(50), deadline=None)
def test_sizes_are_never_underestimated(rows: list[Row]) -> None:
    (columns,) = rows_of(table(rows), NOW_MS)
    assert int(columns.sizes.sum()) + HEADER_BYTES >= len(from_builder(rows))
    check_sizes(columns, 10_000_000, 0)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_sizes_of_varints(numbers: list[int]) -> None:
    def size(number: int) -> int:
        zigzag = (number << 1) ^ (number >> 63)
        return max(1, -(-zigzag.bit_length() // 7))

    assert varint_sizes(np.array(numbers, np.int64)).tolist() == [size(number) for number in numbers]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=50), st.integers(1, 200))
def test_each_batch_takes_as_much_as_fits(sizes: list[int], limit: int) -> None:
    starts = batch_starts(np.array(sizes), limit)
    expected, used = [0], 0
    for place, size in enumerate(sizes):
        if place and used + size > limit:
            expected.append(place)
            used = 0
        used += size
    assert starts == expected
