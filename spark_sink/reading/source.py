"""`format("dualwrite-kafka-source")`: Kafka as a source for streams and batch queries, without a JVM package.

    spark.dataSource.register(DualWriteKafkaSource)
    spark.readStream.format("dualwrite-kafka-source").option("subscribe", "orders").options(...)

Options and columns are those of Spark's own Kafka source; `kafka.isolation.level` is `read_committed` unless it is set.
A stream's reader lives in one process for as long as the query does, and queries Kafka for offsets there. `read()` runs
in tasks, which get only a range of offsets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dualwrite.guarded import cleaning_up_after
from spark_sink.driver.batch_log import configure_worker_logging
from spark_sink.errors import SinkOptionError, SourceReadError
from spark_sink.reading.clients import Cluster, OffsetOutOfRangeError
from spark_sink.reading.connections import connect, connect_topic_ids, consumer, topic_ids
from spark_sink.reading.offsets import (
    EARLIEST,
    INITIAL,
    LATEST,
    OffsetRange,
    Partition,
    Position,
    first_end,
    from_checkpoint,
    start_before,
    to_json,
)
from spark_sink.reading.options import SourceOptions, check_for_batch, check_for_stream, parse
from spark_sink.reading.planner import PAUSE_S, Planner, lost_end, lost_offsets, report_loss
from spark_sink.reading.rows import Rows
from spark_sink.reading.topic_ids import TopicIdLookup, another_topic, id_unknown

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = "dualwrite-kafka-source"

_COLUMNS: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADERS: Final = StructField(
    "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
)


class DualWriteKafkaSource(DataSource):
    """The source that reads from Kafka. Its options: docs/spark-options.md."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Parse the options. Raises SinkOptionError."""
        self._options = parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the name to use with `format()`."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns, with `headers` if `includeHeaders` is true."""
        return StructType([*_COLUMNS, *[_HEADERS] * self._options.include_headers])

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's
        """Return the reader of one streaming query."""
        check_for_stream(self._options)
        return StreamReader(self._options, self._columns(schema))

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of one batch query."""
        check_for_batch(self._options)
        return BatchReader(self._options, self._columns(schema))

    def _columns(self, schema: StructType) -> StructType:
        if schema != self.schema():
            raise SinkOptionError(
                f"{FORMAT} has fixed columns ({', '.join(self.schema().names)}) and does not accept another schema; "
                "cast the column value, or use from_json on it"
            )
        configure_worker_logging()
        return schema


@dataclass(frozen=True)
class TaskRange(InputPartition):
    """The range that one task reads, in the class that Spark requires."""

    wanted: OffsetRange


class _Reader:
    """The common part of both kinds of readers. It is pickled for the tasks, without the connection."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._cluster: Cluster | None = None
        self._topic_ids: TopicIdLookup | None = None
        self._awaited: set[Partition] = set()
        """The partitions that the planners have waited for in vain."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None, "_topic_ids": None}

    @property
    def _planner(self) -> Planner:
        """The planner, connected when it is first needed."""
        if self._cluster is None:
            self._cluster = connect(self._options)
        if self._topic_ids is None:
            self._topic_ids = connect_topic_ids(self._options)
        return Planner(self._options, self._cluster, self._topic_ids, self._awaited)

    def _disconnect(self) -> None:
        with ExitStack() as closing:  # closes each of them, even if the other fails
            for connection in (self._cluster, self._topic_ids):
                if connection is not None:
                    closing.callback(connection.close)
            self._cluster = self._topic_ids = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a range, in a task. Spark passes a partition of its own if a batch query has none."""
        if not isinstance(partition, TaskRange):
            return iter(())
        configure_worker_logging()
        return read_range(self._options, partition.wanted, to_arrow_schema(self._schema, timezone="UTC"))


class BatchReader(_Reader, DataSourceReader):
    """The reader of one batch query, whose offsets are fixed when it is planned."""

    def partitions(self) -> list[TaskRange]:
        """Return the ranges, one for each task."""
        try:
            planner = self._planner
            start = planner.starting(EARLIEST)
            return [TaskRange(each) for each in planner.ranges(start, planner.ending(start))]
        finally:
            self._disconnect()


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query.

    Offsets are `{"topic": {"0": 12, "topicId": "..."}}`: those of Spark's own source, with the ids of the topics. That
    source keeps the start of a query in a file of the checkpoint, which is out of reach here. So the end of the first
    batch keeps it (`first_end`).
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._latest: Position | None = None
        self._ends_with_this_offset = False
        self._last_to_read: Position | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Return the start of a new query, which is not looked up here: Spark calls this until a batch is done."""
        return dict(INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return `maxOffsetsPerTrigger` as a limit, if it is set."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Make the next `latestOffset` the end of this run."""
        self._ends_with_this_offset = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Return the end of the next batch: the current end, or as much as the limit allows."""
        planner, is_first = self._planner, start == INITIAL
        begin = planner.starting(LATEST) if is_first else from_checkpoint(start)
        end = planner.latest(begin) if self._last_to_read is None else self._last_to_read
        if self._ends_with_this_offset:
            self._last_to_read = end
        self._latest = end
        if isinstance(limit, ReadMaxRows):
            end = planner.limited(begin, end, limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            raise SourceReadError(f"Spark passes a {type(limit).__name__}, a limit that this source does not support")
        if is_first:
            return first_end(begin, end)
        return start if end == begin else to_json(end)  # Spark compares texts, and the first end says more than others

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's
        """Return the latest offsets found, for the progress of the query."""
        return None if self._latest is None else to_json(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[TaskRange]:
        """Return the ranges of a batch, one for each task."""
        begin = start_before(end) if start == INITIAL else from_checkpoint(start)
        if begin is None:
            raise SourceReadError(
                "the checkpoint lacks the offsets at which the query began, and its first batch is not complete. "
                "Nothing was read: start the query with a new checkpoint"
            )
        return [TaskRange(each) for each in self._planner.ranges(begin, from_checkpoint(end))]

    def stop(self) -> None:
        """Close the connection, at the end of the query."""
        self._disconnect()


# ---- in a task --------------------------------------------------------------------------------------------------


def read_range(options: SourceOptions, wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the records of the range, in order. Raises SourceReadError, and SourceDataLossError for deleted records."""
    if not _is_same_topic(options, wanted):
        return
    try:
        for batch in _batches(options, wanted, schema):
            if not _is_same_topic(options, wanted):  # after these rows were read, and before Spark has them
                return
            yield batch
    except (SourceReadError, OffsetOutOfRangeError):
        if _is_same_topic(options, wanted):  # otherwise there is a better reason
            raise
    else:
        _is_same_topic(options, wanted)  # the range may have no rows, or none at its end, in the new topic


def _is_same_topic(options: SourceOptions, wanted: OffsetRange) -> bool:
    """Return whether the topic is the one for which the range was planned; report a loss if it is not.

    Raises SourceReadError if its id is not found: the next plan decides whether it is gone.
    """
    if wanted.topic_id is None:
        return True
    topic = wanted.partition.topic
    with topic_ids(options) as lookup:
        found = lookup.ids([topic], {topic: wanted.topic_id}).get(topic)
    if found == wanted.topic_id:
        return True
    if found is None:
        raise id_unknown([topic])
    report_loss(another_topic(topic, wanted.topic_id, found), fail=options.fail_on_data_loss)
    return False


def _batches(options: SourceOptions, wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    rows = Rows(wanted.partition, schema)
    try:
        yield from _read_records(options, wanted, rows)
    except (OffsetOutOfRangeError, SourceReadError) as error:
        unread = replace(wanted, start=max(wanted.start, rows.next_offset))
        yield from _read_records(options, _what_is_left(options, unread, error), rows)
    yield from rows.take()


def _read_records(options: SourceOptions, wanted: OffsetRange, rows: Rows) -> Iterator[pa.RecordBatch]:
    if not wanted.size:
        return
    with consumer(options) as records:
        for chunk in records.read(wanted, headers=options.include_headers, patience_ms=options.poll_timeout_ms):
            rows.add(chunk)
            if rows.is_full:
                yield from rows.take()


def _what_is_left(
    options: SourceOptions, wanted: OffsetRange, error: OffsetOutOfRangeError | SourceReadError
) -> OffsetRange:
    """Return the rest of a range that still exists: records may be deleted or lost after the batch was planned.

    Raises SourceReadError, the `error` of reading it if that is one, if all of it exists.
    """
    partition = wanted.partition
    cluster = connect(options)
    try:
        beginning, end = _bounds(cluster, wanted, options.poll_timeout_ms)
    except BaseException as failure:
        with cleaning_up_after(failure):
            cluster.close()
        raise
    cluster.close()
    if beginning > wanted.start:
        report_loss(lost_offsets(wanted, beginning), fail=options.fail_on_data_loss)
        return replace(wanted, start=min(beginning, wanted.end))
    if end < wanted.end:
        lost = replace(wanted, start=max(wanted.start, end))
        report_loss(lost_end(lost, end), fail=options.fail_on_data_loss)
        return replace(wanted, end=lost.start)
    if isinstance(error, SourceReadError):
        raise error
    raise SourceReadError(
        f"a broker has no offset {wanted.start} of {partition}, which begins at offset {beginning} and ends at {end}: "
        "it may lag behind its leader; try again"
    )


def _bounds(cluster: Cluster, wanted: OffsetRange, patience_ms: int) -> tuple[int, int]:
    """Return the beginning and the end of a log; if it ends before the range does, look again for a while.

    A broker that is behind is told from one that has lost the end of the log, for example in an unclean election.
    """
    lost_at_s = time.monotonic() + patience_ms / 1000
    partition = wanted.partition
    while True:
        beginning, end = cluster.beginnings([partition])[partition], cluster.high_watermarks([partition])[partition]
        if beginning > wanted.start or end >= wanted.end or time.monotonic() >= lost_at_s:
            return beginning, end
        time.sleep(PAUSE_S)
