"""`writeStream.foreachBatch(dualwrite_batch(options, sql_fn))`: the sink, with SQL of the caller's in the decision.

    def totals(connection, batch_id): connection.execute(...)

    df.writeStream.foreachBatch(dualwrite_batch({"sinkId": "orders", ...}, totals)).start()

It is for whoever needs the database's transaction at hand, and for the update mode, which Spark refuses to sinks in
Python. All else is as with the format.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_sink.attempt.open_sinks import OpenSink, sink_of
from spark_sink.attempt.task_identity import task_of
from spark_sink.driver.batch_log import log_batch
from spark_sink.driver.checkpoint import Checkpoint
from spark_sink.driver.planning import plan_of, result_of_no_task
from spark_sink.driver.protocol import Sink
from spark_sink.errors import SinkOptionError
from spark_sink.handoff import Plan, TaskOutcome, TaskResult
from spark_sink.options import SinkOptions, parse

if TYPE_CHECKING:
    import sqlalchemy as sa
    from pyspark.sql import DataFrame

SqlFunction = Callable[["sa.Connection", int], object]

_RESULT = "result"


def dualwrite_batch(
    options: Mapping[str, object], sql_fn: SqlFunction | None = None, query_id: str | None = None
) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that writes each batch exactly once, to Kafka and by `sql_fn` to the database.

    `options` are those of the format. `sql_fn(connection, batch_id)` runs in the transaction that decides the batch, on
    the commit store's database; it must use that connection, and neither commit nor roll back. It does not run for a
    batch that was decided before, and runs once more where a deadlock undid the transaction.

    `query_id` is what the query is known by, over restarts; where it is not given it is Spark's own, which changes
    with the checkpoint. With `checkpointLocation` among the options (give the query's), a restored older checkpoint is
    found out, too. Under Spark Connect one of the two is needed.

    The batch is computed once, unless it was decided before: then not at all. Raises SinkOptionError.
    """
    parsed = parse(options)
    if parsed.job_id is not None:
        raise SinkOptionError("jobId is for batch jobs; a stream is known by its checkpoint")
    return DualWriteBatch(parsed, sql_fn, query_id, Sink.open)


class DualWriteBatch:
    """What `dualwrite_batch` makes. Picklable if `sql_fn` is: Spark Connect sends it to the server."""

    def __init__(
        self, options: SinkOptions, sql_fn: SqlFunction | None, query_id: str | None, open_sink: OpenSink
    ) -> None:
        """`open_sink` is how every process opens the sink."""
        self._options = options
        self._sql_fn = sql_fn
        self._query_id = query_id
        self._open_sink = open_sink
        self._opened: tuple[int, Sink] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None}

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one batch. What it raises ends the query; the next start gives the same batch again."""
        checkpoint = Checkpoint(self._options.checkpoint_location)
        query_id = self._query_id or checkpoint.query_id() or _query_id_of_driver(df)
        if query_id is None:
            raise SinkOptionError(
                "under Spark Connect neither foreachBatch nor its tasks are told their query; nothing was written. "
                "Give dualwrite_batch() the query's checkpointLocation as an option, or a query_id that is the same at "
                "every start of the query"
            )
        sink = self._sink()
        plan = plan_of(sink, self._options, df.schema, query_id=query_id)
        results: Sequence[TaskResult] = ()
        try:
            if sink.is_decided(query_id, batch_id):
                results = [result_of_no_task(TaskOutcome.SKIPPED, plan, query_id, batch_id)]
            else:
                results = self._written(df, plan, query_id, batch_id)
            summary = sink.commit(
                results,
                query_id=query_id,
                batch_id=batch_id,
                offsets_digest=checkpoint.offsets_digest(batch_id),
                sql_fn=self._sql_fn,
            )
        except BaseException:
            results = results or [result_of_no_task(TaskOutcome.EMPTY, plan, query_id, batch_id)]
            sink.abort(results, query_id=query_id, batch_id=batch_id)
            raise
        log_batch(self._options.sink_id, query_id, batch_id, results, summary)

    def _sink(self) -> Sink:
        """This query's, opened by the process that runs the batches; a forked child opens its own."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), self._open_sink(self._options))
        return self._opened[1]

    def _written(self, df: DataFrame, plan: Plan, query_id: str, batch_id: int) -> list[TaskResult]:
        """The one action on `df`: a second one might compute other rows."""
        options, open_sink = self._options, self._open_sink

        def write_partition(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            result = sink_of(options, open_sink).write(plan, task_of(query_id, batch_id), rows)
            yield pa.record_batch({_RESULT: pa.array([pickle.dumps(result)], pa.binary())})

        rows = df.mapInArrow(write_partition, f"{_RESULT} binary").collect()
        results = [pickle.loads(row[_RESULT]) for row in rows]
        return results or [result_of_no_task(TaskOutcome.EMPTY, plan, query_id, batch_id)]


def _query_id_of_driver(df: DataFrame) -> str | None:
    """What Spark calls the query whose batch this is; None under Spark Connect, whose client has no such property."""
    try:
        context = df.sparkSession.sparkContext
    except Exception:  # PySparkAttributeError, which the session of Spark Connect raises
        return None
    query_id: str | None = context.getLocalProperty("sql.streaming.queryId")
    return query_id
