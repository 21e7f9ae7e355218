"""Read the columns of Arrow tables of records: check them, and compute how many bytes each record takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dualwrite.client.records.arrow_varints import Ints, data_offsets, joined, running_total, varint_sizes, varints
from dualwrite.errors import InvalidRecordError

_COLUMNS: Final = ("key", "value", "headers", "partition", "timestamp", "timestamp_ms")
OFFSET_DELTA_BYTES: Final = 3  # up to a million records in a batch


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
        return self._of_each(lambda column: column.take(rows), lambda numbers: numbers[rows])

    def slice(self, start: int, end: int) -> Rows:
        """Return the rows from `start` to before `end`."""
        return self._of_each(lambda column: column.slice(start, end), lambda numbers: numbers[start:end])

    def _of_each(self, columns: Callable[[Column], Column], numbers: Callable[[Ints], Ints]) -> Rows:
        return Rows(
            columns(self.key),
            columns(self.value),
            columns(self.headers),
            numbers(self.header_counts),
            numbers(self.partitions),
            numbers(self.timestamps_ms),
            numbers(self.content_sizes),
            numbers(self.sizes),
        )


def refused(sentence: str) -> InvalidRecordError:
    """Return the error of a call that has sent nothing."""
    return InvalidRecordError(f"{sentence}; none of it was sent")


def rows_of(table: Any, now_ms: int) -> Iterator[Rows]:
    """Yield the chunks of a table that supports Arrow's C interface.

    Raises `InvalidRecordError` if it is not a table of records.
    """
    try:
        table = pa.table(table)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise refused(f"{type(table).__name__} is not a table of records: {error}") from error
    names = table.column_names
    unknown = [name for name in names if name not in _COLUMNS]
    if unknown or "value" not in names or len(set(names)) < len(names) or {"timestamp", "timestamp_ms"} <= {*names}:
        raise refused(
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
        raise refused(f"the column {name} is of type {array.type}, not binary or string")
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
        raise refused(f"the column {name} is of type {array.type}, not integers")
    least_and_most = pc.min_max(array).as_py()
    if least_and_most["min"] is not None and not 0 <= least_and_most["min"] <= least_and_most["max"] <= most:
        raise refused(f"the column {name} has {least_and_most}, which is outside 0 to {most}")
    return _filled(array.cast(pa.int64()), missing)


def _headers(array: Any, count: int) -> tuple[Column, Ints]:
    """Encode the headers of each row. Arrow stores those of a row side by side, so only row offsets are computed."""
    none = Column(pa.nulls(count, pa.large_binary()), np.zeros(count, np.int64)), np.zeros(count, np.int64)
    if array is None or pa.types.is_null(array.type):
        return none
    pairs, counts = _header_pairs(array)
    names, values = (_column(f"headers.{name}", pairs.field(name), len(pairs)) for name in ("key", "value"))
    if len(pairs) and (names.lengths.min() < 0 or pairs.null_count):
        raise refused("the column headers has a header without a name")
    if not len(pairs):
        return none
    encoded = joined(varints([names.lengths]), names.array, varints([values.lengths]), values.array)
    offsets = data_offsets(encoded)[running_total(counts)]
    buffers = [None, pa.py_buffer(offsets.astype(np.int64)), encoded.buffers()[2]]
    return Column(pa.Array.from_buffers(pa.large_binary(), count, buffers), np.diff(offsets)), counts


def _header_pairs(array: Any) -> tuple[Any, Ints]:
    kind = array.type
    if pa.types.is_map(kind):
        array = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise refused(f"the column headers is of type {kind}, not a map or a list of structs of key and value")
    pairs = array.flatten()
    if not pa.types.is_struct(pairs.type) or {field.name for field in pairs.type} != {"key", "value"}:
        raise refused(f"the column headers is of type {kind}, not a map or a list of structs of key and value")
    return pairs, _filled(pc.list_value_length(array), 0)


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
    body = content_sizes + (1 + int(varint_sizes(spread)[0]) + OFFSET_DELTA_BYTES)
    return varint_sizes(body) + body
