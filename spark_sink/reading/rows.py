"""Convert records to Arrow record batches with the columns of Spark's own Kafka source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import pyarrow as pa

from spark_sink.reading.offsets import Partition

MOST_ROWS: Final = 10_000
"""The rows of one record batch; Spark's own default (`spark.sql.execution.arrow.maxRecordsPerBatch`)."""
MOST_BYTES: Final = 16 * 1024 * 1024

NO_TIMESTAMP_TYPE: Final = -1
"""`timestampType` of a record without a timestamp; 0 is CreateTime, 1 is LogAppendTime."""

Headers = list[tuple[str, bytes | None]]


class Chunk(NamedTuple):
    """Some records of one partition, as columns."""

    keys: list[bytes | None]
    values: list[bytes | None]
    offsets: list[int]
    timestamps_ms: list[int | None]
    timestamp_types: list[int]
    headers: list[Headers | None]
    """Empty unless headers were requested."""

    @property
    def bytes(self) -> int:
        """The size of keys and values."""
        return sum(map(len, filter(None, self.keys))) + sum(map(len, filter(None, self.values)))


class Rows:
    """Collects chunks of one partition until they fill a record batch."""

    def __init__(self, partition: Partition, schema: pa.Schema) -> None:
        self._partition = partition
        self._schema = schema
        self._with_headers = "headers" in schema.names
        self.next_offset = 0
        self._reset()

    def _reset(self) -> None:
        self._collected = Chunk([], [], [], [], [], [])
        self._bytes = 0

    def add(self, chunk: Chunk) -> None:
        """Append these records."""
        columns: Iterable[tuple[Any, Any]] = zip(self._collected, chunk, strict=True)
        for collected, added in columns:
            collected.extend(added)
        self._bytes += chunk.bytes
        if chunk.offsets:
            self.next_offset = chunk.offsets[-1] + 1

    @property
    def is_full(self) -> bool:
        """Whether there are enough records for a record batch."""
        return len(self._collected.offsets) >= MOST_ROWS or self._bytes >= MOST_BYTES

    def take(self) -> Iterable[pa.RecordBatch]:
        """Yield the collected records as one record batch; nothing if there are none."""
        rows, count = self._collected, len(self._collected.offsets)
        if not count:
            return
        self._reset()
        columns = {
            "key": rows.keys,
            "value": rows.values,
            "topic": pa.repeat(pa.scalar(self._partition.topic, pa.string()), count),
            "partition": pa.repeat(pa.scalar(self._partition.number, pa.int32()), count),
            "offset": rows.offsets,
            "timestamp": pa.array(rows.timestamps_ms, pa.timestamp("ms", "UTC")),
            "timestampType": rows.timestamp_types,
        }
        if self._with_headers:
            columns["headers"] = rows.headers
        yield pa.RecordBatch.from_arrays(
            [_typed(columns[each.name], each.type) for each in self._schema], schema=self._schema
        )


def _typed(column: list[object] | pa.Array, wanted: pa.DataType) -> pa.Array:
    if isinstance(column, pa.Array):
        return column if column.type == wanted else column.cast(wanted)
    if pa.types.is_list(wanted):
        return pa.array([_structs(each) for each in column], wanted)
    return pa.array(column, wanted)


def _structs(headers: object) -> list[dict[str, object]] | None:
    """Return the headers of a record, or null if it has none, as in Spark's own source."""
    if not headers:
        return None
    return [{"key": name, "value": value} for name, value in headers]  # type: ignore[attr-defined]
