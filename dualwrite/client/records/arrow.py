"""`send_batch()` of Arrow tables: encode record batches from columns, without a Python call per row.

A record is a few varints around bytes that Arrow has already laid out. numpy computes and writes the varints of all
records; Arrow's own kernel then interleaves them with the columns. Its output is, byte for byte, the records of a batch
one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dualwrite.client.operations import Operation
from dualwrite.client.producer_core import ProducerCore
from dualwrite.client.records.batches import HEADER_BYTES, EncodedBatch
from dualwrite.client.records.key_columns import OF_ALL_KEYS
from dualwrite.client.records.partition_queue import Batch
from dualwrite.client.varints import varint
from dualwrite.errors import InvalidRecordError

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
COLUMNS: Final = ("key", "value", "headers", "partition", "timestamp", "timestamp_ms")
_ENCODED_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
_OFFSET_DELTA_BYTES: Final = 3  # up to a million records in a batch
_MOST_RECORDS: Final = 2 ** (7 * _OFFSET_DELTA_BYTES - 1)
_NO_BYTES: Final = np.zeros(0, np.uint8)


class Column(NamedTuple):
    """A column of byte strings or nulls: Arrow's array, and the lengths (-1: null) as Kafka writes them."""

    array: Any
    lengths: Ints

    def take(self, rows: Ints) -> Column:
        """Return these rows."""
        if self.is_empty:
            return self.slice(0, len(rows))
        return Column(self.array.take(pa.array(rows)), self.lengths[rows])

    @property
    def is_empty(self) -> bool:
        """Whether all rows are null, and therefore equal."""
        nulls: int = self.array.null_count
        return nulls == len(self.array)

    def slice(self, start: int, end: int) -> Column:
        """Return the rows from `start` to before `end`."""
        return Column(self.array.slice(start, end - start), self.lengths[start:end])


@dataclass(frozen=True, slots=True)
class Rows:
    """Validated columns of equal length. `partitions`: -1 if not given. `headers` are encoded.

    `content_sizes`: bytes of each record from its key on. `sizes`: bytes of each whole record, at most a few too many.
    """

    key: Column
    value: Column
    headers: Column
    header_counts: Ints
    partitions: Ints
    timestamps_ms: Ints
    content_sizes: Ints
    sizes: Ints

    def __len__(self) -> int:
        return len(self.timestamps_ms)

    def take(self, rows: Ints) -> Rows:
        """Return these rows."""
        return Rows(
            self.key.take(rows),
            self.value.take(rows),
            self.headers.take(rows),
            self.header_counts[rows],
            self.partitions[rows],
            self.timestamps_ms[rows],
            self.content_sizes[rows],
            self.sizes[rows],
        )

    def slice(self, start: int, end: int) -> Rows:
        """Return the rows from `start` to before `end`."""
        return Rows(
            self.key.slice(start, end),
            self.value.slice(start, end),
            self.headers.slice(start, end),
            self.header_counts[start:end],
            self.partitions[start:end],
            self.timestamps_ms[start:end],
            self.content_sizes[start:end],
            self.sizes[start:end],
        )


class Limits(NamedTuple):
    """Limits in bytes, before compression."""

    batch_size: int
    max_request_size: int


# ---- columns ----------------------------------------------------------------------------------------------------


def _refused(sentence: str) -> InvalidRecordError:
    return InvalidRecordError(f"{sentence}; none of it was sent")


def rows_of(table: Any, now_ms: int) -> Iterator[Rows]:
    """Yield the chunks of a table that supports Arrow's C interface.

    Raises `InvalidRecordError` if it is not a table of records.
    """
    try:
        table = pa.table(table)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise _refused(f"{type(table).__name__} is not a table of records: {error}") from error
    names = table.column_names
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or "value" not in names or len(set(names)) < len(names) or {"timestamp", "timestamp_ms"} <= {*names}:
        raise _refused(
            f"a table of records has the column value and, optionally, key, headers, partition and timestamp "
            f"(or timestamp_ms), each once; this one has {', '.join(names) or 'none'}"
        )
    for batch in table.to_batches():
        yield _rows_of_batch(batch, now_ms)


def _rows_of_batch(batch: Any, now_ms: int) -> Rows:
    count = batch.num_rows
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    headers, header_counts = _headers(columns.get("headers"), count)
    key, value = _column("key", columns.get("key"), count), _column("value", columns["value"], count)
    timestamps = columns.get("timestamp", columns.get("timestamp_ms"))
    timestamps_ms = _integers("timestamp", _milliseconds(timestamps), count, now_ms, 2**63 - 1)
    content_sizes = _content_sizes(key, value, headers, header_counts)
    return Rows(
        key,
        value,
        headers,
        header_counts,
        _integers("partition", columns.get("partition"), count, -1, 2**31 - 1),
        timestamps_ms,
        content_sizes,
        _record_sizes(content_sizes, timestamps_ms),
    )


def _is_bytes(kind: Any) -> bool:
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)
    views = (pa.types.is_fixed_size_binary, pa.types.is_binary_view, pa.types.is_string_view, pa.types.is_null)
    return any(check(kind) for check in (*checks, *views))


def _large_binary(name: str, array: Any) -> Any:
    if not _is_bytes(array.type):
        raise _refused(f"the column {name} is of type {array.type}, not binary or string")
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    return array.cast(pa.large_binary())


def _column(name: str, array: Any, count: int) -> Column:
    if array is None:
        return Column(pa.nulls(count, pa.large_binary()), np.full(count, -1, np.int64))
    array = _large_binary(name, array)
    return Column(array, _filled(pc.binary_length(array), -1))


def _filled(array: Any, null: int) -> Ints:
    filled: Ints = array.fill_null(null).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return filled


def _milliseconds(array: Any) -> Any:
    if array is None or not pa.types.is_timestamp(array.type):
        return array
    return array.cast(pa.timestamp("ms", array.type.tz), safe=False).cast(pa.int64())


def _integers(name: str, array: Any, count: int, missing: int, most: int) -> Ints:
    if array is None or pa.types.is_null(array.type):
        return np.full(count, missing, np.int64)
    if not pa.types.is_integer(array.type):
        raise _refused(f"the column {name} is of type {array.type}, not integers")
    least_and_most = pc.min_max(array).as_py()
    if least_and_most["min"] is not None and not 0 <= least_and_most["min"] <= least_and_most["max"] <= most:
        raise _refused(f"the column {name} has {least_and_most}, which is outside 0 to {most}")
    return _filled(array.cast(pa.int64()), missing)


def _headers(array: Any, count: int) -> tuple[Column, Ints]:
    """Encode the headers of each row. Arrow stores those of a row side by side, so only row offsets are computed."""
    if array is None or pa.types.is_null(array.type):
        return Column(pa.nulls(count, pa.large_binary()), np.zeros(count, np.int64)), np.zeros(count, np.int64)
    pairs, counts = _header_pairs(array)
    names, values = (_column(f"headers.{name}", pairs.field(name), len(pairs)) for name in ("key", "value"))
    if len(pairs) and (names.lengths.min() < 0 or pairs.null_count):
        raise _refused("the column headers has a header without a name")
    if not len(pairs):
        return Column(pa.nulls(count, pa.large_binary()), np.zeros(count, np.int64)), np.zeros(count, np.int64)
    encoded = _joined(_varints([names.lengths]), names.array, _varints([values.lengths]), values.array)
    offsets = _offsets(encoded)[_running_total(counts)]
    buffers = [None, pa.py_buffer(offsets.astype(np.int64)), encoded.buffers()[2]]
    return Column(pa.Array.from_buffers(pa.large_binary(), count, buffers), np.diff(offsets)), counts


def _header_pairs(array: Any) -> tuple[Any, Ints]:
    kind = array.type
    if pa.types.is_map(kind):
        array = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise _refused(f"the column headers is of type {kind}, not a map or a list of structs of key and value")
    pairs = array.flatten()
    if not pa.types.is_struct(pairs.type) or {field.name for field in pairs.type} != {"key", "value"}:
        raise _refused(f"the column headers is of type {kind}, not a map or a list of structs of key and value")
    return pairs, _filled(pc.list_value_length(array), 0)


# ---- varints ----------------------------------------------------------------------------------------------------


def _zigzag(numbers: Ints) -> npt.NDArray[np.uint64]:
    zigzag: npt.NDArray[np.uint64] = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    return zigzag


def varint_sizes(numbers: Ints) -> Ints:
    """Return how many bytes each number takes as a zigzag varint."""
    return _unsigned_sizes(_zigzag(numbers))


def _unsigned_sizes(numbers: npt.NDArray[np.uint64]) -> Ints:
    sizes = np.ones(len(numbers), np.int64)
    most = int(numbers.max()) if len(numbers) else 0
    for seven in range(7, 70, 7):
        if most >> seven == 0:
            break
        sizes += numbers >= np.uint64(1 << seven)
    return sizes


def _varints(fields: list[Ints]) -> Any:
    """Encode the fields of each row as zigzag varints, joined: a byte string per row, or one for all if all are equal.

    Many fields are equal in all rows: no keys, no headers, values of one length, one timestamp.
    """
    alike = [varint(int(numbers[0])) if numbers.min() == numbers.max() else None for numbers in fields]
    if None not in alike:
        return pa.scalar(b"".join(filter(None, alike)), pa.large_binary())
    rows = len(fields[0])
    columns = [_Cells(numbers) if same is None else same for numbers, same in zip(fields, alike, strict=True)]
    width = sum(len(column) if isinstance(column, bytes) else column.width for column in columns)
    cells, used = np.empty((rows, width), np.uint8), np.ones((rows, width), np.bool_)
    lengths, at = np.zeros(rows, np.int64), 0
    for column in columns:
        if isinstance(column, bytes):
            cells[:, at : at + len(column)] = np.frombuffer(column, np.uint8)
            lengths += len(column)
            at += len(column)
        else:
            column.write(cells[:, at : at + column.width], used[:, at : at + column.width])
            lengths += column.sizes
            at += column.width
    offsets = _running_total(lengths)
    data = cells.ravel() if int(offsets[-1]) == cells.size else cells[used]
    return pa.Array.from_buffers(pa.large_binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


class _Cells:
    """The varints of a column of numbers, each as wide as the longest of them."""

    def __init__(self, numbers: Ints) -> None:
        self._zigzag = _zigzag(numbers)
        self.sizes = _unsigned_sizes(self._zigzag)
        self.width = int(self.sizes.max())

    def write(self, cells: Bytes, used: npt.NDArray[np.bool_]) -> None:
        """Write each byte of the varints to a column of `cells`, and mark in `used` the cells that hold one."""
        rest = self._zigzag
        for byte in range(self.width):
            low = rest.astype(np.uint8)
            if byte + 1 == self.width:
                cells[:, byte] = low
            else:
                cells[:, byte] = (low & 0x7F) | ((self.sizes > byte + 1).view(np.uint8) << 7)
            if byte:
                used[:, byte] = self.sizes > byte
            rest = rest >> np.uint64(7)


def _running_total(numbers: Ints) -> Ints:
    """Return the running total, starting with 0, so one element more than `numbers`."""
    total = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(numbers, out=total[1:])
    return total


def _joined(*parts: Any) -> Any:
    separator = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(*parts, separator, null_handling="replace", null_replacement="")


def _offsets(array: Any) -> Ints:
    """Return where each element starts in the array's data, and where the last one ends."""
    whole = np.frombuffer(array.buffers()[1], np.int64) if array.buffers()[1] is not None else np.zeros(1, np.int64)
    return whole[array.offset : array.offset + len(array) + 1]


# ---- records ----------------------------------------------------------------------------------------------------


def _content_sizes(key: Column, value: Column, headers: Column, header_counts: Ints) -> Ints:
    """Return the bytes of each record from the length of its key on."""
    sizes = varint_sizes(header_counts) + headers.lengths
    for column in (key, value):
        sizes += varint_sizes(column.lengths) + np.maximum(column.lengths, 0)
    return sizes


def _record_sizes(content_sizes: Ints, timestamps_ms: Ints) -> Ints:
    """Return the size of each record, at most a few bytes too many.

    A record's position in its batch is not known yet, so neither are its offset and timestamp deltas.
    """
    if not len(content_sizes):
        return content_sizes
    spread = np.array([int(timestamps_ms.max()) - int(timestamps_ms.min())])
    body = content_sizes + (1 + int(varint_sizes(spread)[0]) + _OFFSET_DELTA_BYTES)
    return varint_sizes(body) + body


def _encode(rows: Rows, starts: Ints) -> tuple[Any, Ints]:
    """Encode the records of several batches, which begin at the rows `starts`.

    Returns all bytes, and where each record begins in them.
    """
    first = np.repeat(starts, np.diff(starts, append=len(rows)))
    time_deltas, offset_deltas = rows.timestamps_ms - rows.timestamps_ms[first], np.arange(len(rows)) - first
    lengths = 1 + varint_sizes(time_deltas) + varint_sizes(offset_deltas) + rows.content_sizes
    before_key = [lengths, np.zeros(1, np.int64), time_deltas, offset_deltas, rows.key.lengths]
    if rows.key.is_empty:
        parts = [_varints([*before_key, rows.value.lengths])]
    else:
        parts = [_varints(before_key), rows.key.array, _varints([rows.value.lengths])]
    parts += [rows.value.array, _varints([rows.header_counts])]
    if rows.header_counts.any():
        parts.append(rows.headers.array)
    records = _joined(*parts)
    return records.buffers()[2], _offsets(records)


class Planned(NamedTuple):
    """Rows and their batches. `order` sorts the rows by partition (None: they are sorted already).

    `starts` are the positions in that order at which the batches begin, `partitions` the partitions of the batches.
    Many batches are encoded at once, because one call of numpy or Arrow takes as long as encoding many records.
    """

    rows: Rows
    order: Ints | None
    starts: list[int]
    partitions: list[int]

    def batches(self, *, transactional: bool) -> Iterator[tuple[int, EncodedBatch]]:
        """Yield each batch with its partition, encoding some megabytes at a time."""
        ends = np.array([*self.starts[1:], len(self.rows)])
        sizes = np.cumsum(self.rows.sizes if self.order is None else self.rows.sizes[self.order])[ends - 1]
        at = 0
        while at < len(ends):
            until = max(at + 1, int(np.searchsorted(sizes, int(sizes[at]) + _ENCODED_AT_ONCE_BYTES)))
            encoded = self._encoded(self.starts[at:until], int(ends[until - 1]), transactional)
            yield from zip(self.partitions[at:until], encoded, strict=True)
            at = until

    def _encoded(self, starts: list[int], end: int, transactional: bool) -> Iterator[EncodedBatch]:
        rows = self.rows.slice(starts[0], end) if self.order is None else self.rows.take(self.order[starts[0] : end])
        begin = np.array(starts, np.int64) - starts[0]
        data, offsets = _encode(rows, begin)
        view = memoryview(data) if data is not None else memoryview(b"")
        first_ms, most_ms = rows.timestamps_ms[begin].tolist(), np.maximum.reduceat(rows.timestamps_ms, begin).tolist()
        counts = np.diff(begin, append=len(rows)).tolist()
        bounds = [*offsets[begin].tolist(), int(offsets[-1])]
        for place, count in enumerate(counts):
            yield EncodedBatch(
                view[bounds[place] : bounds[place + 1]],
                record_count=count,
                first_timestamp_ms=first_ms[place],
                max_timestamp_ms=most_ms[place],
                transactional=transactional,
            )


def batch_starts(sizes: Ints, limit: int) -> list[int]:
    """Return where batches begin, so that each but a single large record is within the limit."""
    ends = np.cumsum(sizes)
    starts, at = [], 0
    while at < len(sizes):
        starts.append(at)
        before = int(ends[at - 1]) if at else 0
        at = min(max(at + 1, int(np.searchsorted(ends, before + limit, side="right"))), at + _MOST_RECORDS)
    return starts


def check_sizes(rows: Rows, limits: Limits, batch_overhead: int, first_row: int) -> None:
    """Raise `InvalidRecordError`, which names the largest row, if it is too large for a request."""
    if len(rows) and int(rows.sizes.max()) + batch_overhead > limits.max_request_size:
        row = int(rows.sizes.argmax())
        raise _refused(
            f"the record in row {first_row + row} takes up to {int(rows.sizes[row]) + batch_overhead} bytes, "
            f"more than max.request.size={limits.max_request_size}"
        )


def plan(rows: Rows, limits: Limits, batch_overhead: int) -> Planned:
    """Divide the rows, all of which have a partition, into batches."""
    order, partitions, sizes = None, rows.partitions, rows.sizes
    if (partitions[1:] < partitions[:-1]).any():
        few = int(partitions.max()) < 2**15  # numpy sorts 16-bit numbers in a few passes
        order = np.argsort(partitions.astype(np.int16) if few else partitions, kind="stable")
        partitions, sizes = partitions[order], sizes[order]
    starts: list[int] = []
    partition_of_start: list[int] = []
    bounds = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(rows)]
    for first, end in pairwise(bounds):
        begin = batch_starts(sizes[first:end], limits.batch_size - batch_overhead)
        starts += [first + start for start in begin]
        partition_of_start += [int(partitions[first])] * len(begin)
    return Planned(rows, order, starts, partition_of_start)


# ---- partitions -------------------------------------------------------------------------------------------------


def key_bytes(column: Column) -> tuple[Ints, Bytes]:
    """Return the offsets of the keys in their bytes, and those bytes."""
    buffers = column.array.buffers()
    data = _NO_BYTES if buffers[2] is None else np.frombuffer(buffers[2], np.uint8)
    return _offsets(column.array), data


# ---- send_batch() ------------------------------------------------------------------------------------------------


class ArrowSource:
    """The records of a table that supports Arrow's C interface, for `BulkSend`.

    `took(batch, first_index, record_count)` is called for records that were accepted.
    """

    def __init__(
        self, topic: str, took: Callable[[Batch, int, int], None], core: ProducerCore, table: Any, now_ms: int
    ) -> None:
        self._topic = topic
        self._took = took
        self._core = core
        self._limits = Limits(core.config.batch_size, core.config.max_request_size)
        self._chunks = [rows for rows in rows_of(table, now_ms) if len(rows)]
        first_row = 0
        for rows in self._chunks:
            check_sizes(rows, self._limits, HEADER_BYTES, first_row)
            first_row += len(rows)
        self.record_count = first_row

    def place(self, partitions: int) -> Iterator[Callable[[], Operation | None]]:
        """Give all rows their partitions, then yield steps that each accept one batch and free its bytes."""
        placed = [self._with_partitions(rows, partitions) for rows in self._chunks]
        self._chunks.clear()
        for rows in placed:
            yield from self._steps(plan(rows, self._limits, HEADER_BYTES))

    def _steps(self, planned: Planned) -> Iterator[Callable[[], Operation | None]]:
        for partition, encoded in planned.batches(transactional=self._core.config.transactional_id is not None):
            yield partial(self._accept, partition, encoded)

    def _accept(self, partition: int, encoded: EncodedBatch) -> Operation | None:
        batch = self._core.accept_encoded(self._topic, partition, encoded)
        if isinstance(batch, Operation):
            return batch
        self._took(batch, 0, encoded.record_count)
        return None

    # ---- partitions -----------------------------------------------------------------------------------------

    def _with_partitions(self, rows: Rows, partitions: int) -> Rows:
        chosen = rows.partitions.copy()
        if int(chosen.max()) >= partitions:
            raise InvalidRecordError(
                f"{self._topic!r} has the partitions 0 to {partitions - 1}, not {int(chosen.max())}; none of it was "
                "sent"
            )
        missing = np.flatnonzero(chosen < 0)
        if len(missing):
            chosen[missing] = self._choose(rows, missing, partitions)
        return replace(rows, partitions=chosen)

    def _choose(self, rows: Rows, missing: Ints, partitions: int) -> Ints:
        choice = self._core.choice
        by_record, by_key = choice.by_record, choice.by_key
        if by_record is not None:
            topic = self._topic
            pairs = zip(
                rows.key.array.take(missing).to_pylist(), rows.value.array.take(missing).to_pylist(), strict=True
            )
            return np.array([by_record(topic, key, value, partitions) for key, value in pairs], np.int64)
        assert by_key is not None
        keyed = rows.key.lengths[missing] >= (1 if choice.empty_key_is_none else 0)
        chosen = np.empty(len(missing), np.int64)
        if keyed.any():
            chosen[keyed] = OF_ALL_KEYS[by_key](*key_bytes(rows.key), partitions)[missing[keyed]]
        if not keyed.all():
            chosen[~keyed] = self._fill(rows, missing[~keyed], partitions)
        return chosen

    def _fill(self, rows: Rows, keyless: Ints, partitions: int) -> Ints:
        """Return partitions for keyless rows: one after the other, a batch for each (KIP-480)."""
        starts = batch_starts(rows.sizes[keyless], self._limits.batch_size - HEADER_BYTES)
        turns = np.searchsorted(np.array(starts), np.arange(len(keyless)), side="right") - 1
        first = self._core.choice.choose(self._topic, None, partitions)
        chosen: Ints = (first + turns) % partitions
        return chosen
