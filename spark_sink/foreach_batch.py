"""The sink for foreachBatch: `dualwrite_batch()`.

    def totals(connection, batch_id): connection.execute(...)

    df.writeStream.foreachBatch(dualwrite_batch({"sinkId": "orders", ...}, totals)).start()

Use it to run SQL in the transaction of the decision, and for the update mode, which Spark does not allow for sinks in
Python. The function of foreachBatch runs in the application's process, or under Spark Connect in a process of the
server that lives as long as the run of the query.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dualwrite.guarded import cleaning_up_after, pass_on_signal
from spark_sink.attempt.worker import task_of
from spark_sink.driver.batch_calls import BatchCalls, Call, Run
from spark_sink.driver.batch_log import log, log_batch
from spark_sink.driver.checkpoint import Checkpoint
from spark_sink.driver.protocol import Sink
from spark_sink.errors import CheckpointMismatchError, SinkOptionError
from spark_sink.face import plan_batch
from spark_sink.handoff import Plan, TaskOutcome, TaskResult
from spark_sink.open_sinks import OpenSink, sink_of
from spark_sink.options import NO_SQL, RequireDigest, SinkOptions, parse
from spark_sink.store.rules import check_query_id, query_of_call
from spark_sink.store.topic.topic_url import is_topic

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

SqlFunction = Callable[["sa.Connection", int], object]

_RESULT: Final = "result"
_QUERY_ID: Final = "sql.streaming.queryId"
_THIS_PROCESS: Final = "this process"
"""The run of a query under Spark Connect: Spark starts a process for each."""

_calls: Final = BatchCalls()
"""One for the process, because several functions may write a batch to one sink."""


def dualwrite_batch(
    options: Mapping[str, object], sql_fn: SqlFunction | None = None, query_id: str | None = None
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that writes each batch exactly once, to Kafka and with `sql_fn`.

    `options` are those of the format. `sql_fn(connection, batch_id)` runs in the transaction that decides the batch, on
    the database of the commit store. It must use that connection, and neither commit nor roll back. It does not run for
    a batch that was decided before, and runs again if a deadlock undid the transaction.

    `query_id` identifies the query across restarts. The default is Spark's own id, which changes with the checkpoint.
    With `checkpointLocation` among the options (the location of the query's checkpoint), the sink also detects that an
    older checkpoint was restored. Under Spark Connect, and in a thread of your own, one of the two is required.

    A batch may be written in several calls, one after the other: each is decided by itself, and must come in the same
    order, with the same content, if Spark repeats the batch. The DataFrame of a call is computed once, also if the call
    was decided before: the tasks of a query that keeps state commit it then. Raises SinkOptionError.
    """
    parsed = parse(options)
    if parsed.job_id is not None:
        raise SinkOptionError("jobId is only for batch jobs; a stream is identified by its checkpoint")
    if sql_fn is not None and is_topic(parsed.store.url):
        raise SinkOptionError(NO_SQL)
    if query_id is not None:
        check_query_id(query_id)
    return DualWriteBatch(parsed, sql_fn, query_id, Sink.open)


class DualWriteBatch:
    """The function that `dualwrite_batch` returns. Picklable if `sql_fn` is: Spark Connect sends it to the server."""

    def __init__(
        self, options: SinkOptions, sql_fn: SqlFunction | None, query_id: str | None, open_sink: OpenSink
    ) -> None:
        """Take `open_sink`, which opens the sink in every process."""
        self._options = options
        self._sql_fn = sql_fn
        self._query_id = query_id
        self._open_sink = open_sink
        self._opened: tuple[int, Sink] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None}

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one batch, or a part of it. An exception ends the query; its next start repeats the batch."""
        checkpoint = Checkpoint(self._options.checkpoint_location or _checkpoint_of_driver(df))
        of_spark = _spark_id(df, checkpoint)
        query_id = self._query_id or of_spark
        if query_id is None:
            raise SinkOptionError(_nameless(df))
        run = Run(self._options.sink_id, query_id, _run_id(df, of_spark))
        with _calls.call(run, batch_id) as call:
            self._write(df, call, checkpoint)

    def _write(self, df: DataFrame, call: Call, checkpoint: Checkpoint) -> None:
        sink, query_id, batch_id = self._sink(), call.query_id, call.batch_id
        if self._sql_fn is not None:
            sink.check_runs_sql()
        plan = plan_batch(sink, self._options, df.schema, query_id)
        content = self._content_digest(df)
        results: Sequence[TaskResult] = ()
        try:
            if sink.is_decided(query_id, batch_id):
                _let_tasks_commit_state(df)
                results = [TaskResult.without_attempt(TaskOutcome.SKIPPED, plan, query_id, batch_id)]
            else:
                results = self._written(df, plan, query_id, batch_id)
            summary = sink.commit(
                results,
                query_id=query_id,
                batch_id=batch_id,
                offsets_digest=checkpoint.offsets_digest(batch_id),
                content_digest=content,
                sql_fn=self._sql_fn,
            )
        except BaseException as error:
            results = results or [TaskResult.without_attempt(TaskOutcome.EMPTY, plan, query_id, batch_id)]
            with cleaning_up_after(error):
                sink.abort(results, query_id=query_id, batch_id=batch_id)
            raise
        log_batch(self._options.sink_id, query_id, batch_id, results, summary)
        if self._options.require_digest is not RequireDigest.FALSE:
            following = query_of_call(call.run.query_id, call.number + 1)
            call.check_content(summary, content, lambda: sink.is_decided(following, batch_id))

    def _sink(self) -> Sink:
        """Return this query's sink, opened by the process that runs the batches; a forked child opens its own."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), self._open_sink(self._options))
        return self._opened[1]

    def _written(self, df: DataFrame, plan: Plan, query_id: str, batch_id: int) -> list[TaskResult]:
        """Run the only action on `df`: a second one might compute other rows."""
        options, open_sink = self._options, self._open_sink

        def write_partition(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            result = sink_of(options, open_sink).write(plan, task_of(query_id, batch_id), rows)
            yield pa.record_batch({_RESULT: pa.array([pickle.dumps(result)], pa.binary())})

        rows = df.mapInArrow(write_partition, f"{_RESULT} binary").collect()
        results = [pickle.loads(row[_RESULT]) for row in rows]
        return results or [TaskResult.without_attempt(TaskOutcome.EMPTY, plan, query_id, batch_id)]

    def _content_digest(self, df: DataFrame) -> str | None:
        """Return a digest of the rows' plan and their destination; None if Spark does not tell its plan."""
        plan = _analyzed_plan(df)
        if plan is None:
            return None
        dual = self._options.dual
        function = getattr(self._sql_fn, "__qualname__", type(self._sql_fn).__name__)
        described = [_CHANGES_WITH_EACH_RUN.sub("", plan), self._options.topic, dual and dual.table, function]
        return hashlib.sha256(repr(described).encode()).hexdigest()


def _let_tasks_commit_state(df: DataFrame) -> None:
    """Compute a batch that is decided already: Spark ends a query with state whose state store is not committed.

    A query without state needs nothing, so it goes on if the rows can no longer be computed.
    """
    try:
        df.write.format("noop").mode("overwrite").save()
    except Exception as error:  # of py4j or gRPC
        pass_on_signal(error)
        log.warning("the rows of a batch that is decided could not be computed again", exc_info=True)


# ---- Spark's information about the query ------------------------------------------------------------------------

_CHANGES_WITH_EACH_RUN: Final = re.compile(r"#\d+L?|@[0-9a-f]+|0x[0-9a-f]+|plan_id=\d+")
"""Ids of expressions and plans, and addresses of objects, in the text of a plan."""


def _analyzed_plan(df: DataFrame) -> str | None:
    try:
        if _context(df) is not None:
            return str(df._jdf.queryExecution().analyzed().toString())  # noqa: SLF001 - explain() also optimizes
        of_connect: Any = df
        explained: str = of_connect._explain_string(extended=True)  # noqa: SLF001 - explain() prints it
        analyzed = explained.partition("== Analyzed Logical Plan ==")[2]  # the parsed one has ids of the session
        return analyzed.partition("== Optimized Logical Plan ==")[0] or None
    except Exception as error:  # of py4j or gRPC, or an attribute that is not there
        pass_on_signal(error)
        log.info("Spark does not show the plan of a batch", exc_info=True)
        return None


def _context(df: DataFrame) -> SparkContext | None:
    """Return the context of Spark Classic; None under Spark Connect."""
    try:
        return df.sparkSession.sparkContext
    except Exception as error:  # PySparkAttributeError, which the session of Spark Connect raises
        pass_on_signal(error)
        return None


def _query_id_of_driver(df: DataFrame) -> str | None:
    """Return Spark's id of the query that this batch belongs to.

    None under Spark Connect, whose client does not have that property, and in a thread that has not inherited it.
    """
    context = _context(df)
    query_id: str | None = None if context is None else context.getLocalProperty(_QUERY_ID)
    return query_id


def _spark_id(df: DataFrame, checkpoint: Checkpoint) -> str | None:
    """Return the query's id from Spark or else from the checkpoint; None if neither has it.

    Raises CheckpointMismatchError if the two differ: batches of the one query would count as decided for the other.
    """
    of_driver, of_checkpoint = _query_id_of_driver(df), checkpoint.query_id()
    if of_driver is not None and of_checkpoint not in (None, of_driver):
        raise CheckpointMismatchError(
            f"checkpointLocation={checkpoint.location} belongs to query {of_checkpoint}, this batch to {of_driver}; "
            "neither the database nor Kafka was changed. Give dualwrite_batch() the checkpoint of this query, or "
            "leave the option out: Spark reports it. Each query needs its own function and sinkId"
        )
    return of_driver or of_checkpoint


def _running_query(df: DataFrame, query_id: str | None) -> Any:
    """Return Spark's object of a running query; None under Spark Connect, and if Spark's internals have changed."""
    context = _context(df)
    if context is None or query_id is None:
        return None
    jvm: Any = context._jvm  # noqa: SLF001 - nothing public tells where the checkpoint is
    try:
        running = df.sparkSession._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
        return running.get(jvm.java.util.UUID.fromString(query_id))
    except Exception as error:  # of py4j, or an attribute that is not there
        pass_on_signal(error)
        log.info("Spark's state of the query %s cannot be read", query_id, exc_info=True)
        return None


def _checkpoint_of_driver(df: DataFrame) -> str | None:
    """Return the location of the checkpoint of the query of this batch; None if only the option can tell it."""
    query = _running_query(df, _query_id_of_driver(df))
    return None if query is None else str(query.resolvedCheckpointRoot())


def _run_id(df: DataFrame, query_id: str | None) -> str | None:
    """Return the id of the query's run, which changes with each start; None if unknown."""
    if _context(df) is None:
        return _THIS_PROCESS
    query = _running_query(df, query_id)
    return None if query is None else str(query.runId())


def _nameless(df: DataFrame) -> str:
    """Return why the query of a batch is unknown."""
    if _context(df) is None:
        return (
            "under Spark Connect neither foreachBatch nor its tasks can find out which query they belong to; nothing "
            "was written. Give dualwrite_batch() the query's checkpointLocation as an option, or a query_id that is "
            "the same at every start of the query"
        )
    return (
        "this thread does not have the local property of Spark that names the query; nothing was written. Call the "
        "function in the thread in which Spark calls foreachBatch, or start your thread with "
        "pyspark.inheritable_thread_target, or give dualwrite_batch() the query's checkpointLocation as an option"
    )
