"""Read a range of offsets, in a task. Tasks share no state except the idle consumers of their process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark_sink.reading.clients import OffsetOutOfRangeError, connect, consumer
from spark_sink.reading.offsets import OffsetRange
from spark_sink.reading.options import SourceOptions
from spark_sink.reading.planner import lost_offsets, report_loss
from spark_sink.reading.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa


def read_range(options: SourceOptions, wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the records of the range, in order. Raises SourceReadError, and SourceDataLossError for deleted records."""
    rows = Rows(wanted.partition, schema)
    try:
        yield from _read(options, wanted, rows)
    except OffsetOutOfRangeError:
        unread = OffsetRange(wanted.partition, max(wanted.start, rows.next_offset), wanted.end)
        yield from _read(options, _what_is_left(options, unread), rows)
    yield from rows.take()


def _read(options: SourceOptions, wanted: OffsetRange, rows: Rows) -> Iterator[pa.RecordBatch]:
    if not wanted.size:
        return
    with consumer(options) as records:
        for chunk in records.read(wanted, headers=options.include_headers, patience_ms=options.poll_timeout_ms):
            rows.add(chunk)
            if rows.is_full:
                yield from rows.take()


def _what_is_left(options: SourceOptions, wanted: OffsetRange) -> OffsetRange:
    """Return what still exists of a range: retention may delete records after the batch was planned."""
    cluster = connect(options)
    try:
        beginning = cluster.beginnings([wanted.partition])[wanted.partition]
    finally:
        cluster.close()
    report_loss(lost_offsets(wanted, beginning), fail=options.fail_on_data_loss)
    return OffsetRange(wanted.partition, min(max(beginning, wanted.start), wanted.end), wanted.end)
