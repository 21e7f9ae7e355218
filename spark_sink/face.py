"""The sink as Spark calls it: `format("dualwrite-kafka")`, `dualwrite_batch()` for foreachBatch, and `register()`.

    register(spark)
    df.writeStream.format("dualwrite-kafka").option("sinkId", "orders").options(...).start()

    def totals(connection, batch_id): connection.execute(...)

    df.writeStream.foreachBatch(dualwrite_batch({"sinkId": "orders", ...}, totals)).start()

Use `dualwrite_batch` to run SQL in the transaction of the decision, and for the update mode, which Spark does not allow
for sinks in Python.

Spark runs a sink in three processes that share only what is pickled: the planner, which makes a writer and sends it to
the tasks; the tasks, in workers of the executors; and the committer, which makes a writer of its own and receives the
results of the tasks. `driver/protocol.py` defines what each of them does.
"""

from __future__ import annotations

import inspect
import os
import pickle
import shutil
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from spark_sink import commands
from spark_sink.attempt.worker import OpenSink, checkpoint_root, sink_of, streaming_task, task_of
from spark_sink.driver.batch_log import configure_worker_logging, log, log_batch
from spark_sink.driver.checkpoint import Checkpoint, check_trigger, find_checkpoint
from spark_sink.driver.protocol import Sink
from spark_sink.errors import SinkError, SinkOptionError
from spark_sink.handoff import BATCH_JOB_ID, Plan, TaskIdentity, TaskOutcome, TaskResult
from spark_sink.options import NO_SQL, SinkOptions, parse
from spark_sink.store.rules import query_id_of_job
from spark_sink.store.topic.topic_url import is_topic

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT: Final = "dualwrite-kafka"

_PLANNER: Final = "pyspark.sql.worker.write_into_data_source"
"""The module whose main function makes the writer that goes to the tasks: once per batch, before any task starts."""


def register(spark: SparkSession) -> None:
    """Register `dualwrite-kafka` and `dualwrite-kafka-source` with this session, of Spark Classic or Spark Connect.

    The package must be installed wherever the driver and the executors of the session run. Warns if the workers of a
    local session run another Python than this one.
    """
    from spark_sink.reading.source import DualWriteKafkaSource

    context = getattr(spark, "_sc", None)  # Spark Connect has none, and its workers are not on this machine
    if context is not None and context.master.startswith("local"):
        warn_of_another_python(context.pythonExec)
    spark.dataSource.register(DualWriteKafka)
    spark.dataSource.register(DualWriteKafkaSource)


def warn_of_another_python(worker_python: str) -> None:
    """Warn if Spark runs its workers with an interpreter that is not of this environment.

    Compares directories: the interpreters of a virtual environment are links to one that has other packages.
    """
    found = shutil.which(worker_python)
    if found is None or Path(found).parent != Path(sys.executable).parent:
        warnings.warn(
            f"Spark runs its Python workers with {worker_python!r}, which is {found or 'not on the PATH'}, but this "
            f'process runs {sys.executable}: if the other one does not have dualwrite, the first batch fails with "No '
            "module named 'spark_sink'\". Activate the environment, or set PYSPARK_PYTHON to its Python before the "
            "session is made",
            stacklevel=3,
        )


# ---- the format -------------------------------------------------------------------------------------------------


class DualWriteKafka(DataSource):
    """The sink that writes to Kafka, and to a table in the same commit, exactly once. See docs/spark.md for options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Parse the options. Raises SinkOptionError. The planner does this for every batch, and the committer once."""
        self._options = parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the name to use with `format()`."""
        return FORMAT

    @staticmethod
    def open_sink(options: SinkOptions) -> Sink:
        """Open the sink, in each process; a subclass may override it to observe the sink."""
        return Sink.open(options)

    def schema(self) -> StructType:
        """Raise SinkOptionError: Spark calls this to read, and the format only writes."""
        raise SinkOptionError(f"{FORMAT} can only be written to; to read from Kafka, use dualwrite-kafka-source")

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's
        """Return the writer of one batch. Spark calls this in the planner, which plans the batch, and the committer."""
        configure_worker_logging()
        if overwrite:
            raise SinkOptionError(
                "the complete mode would replace the content of the topic, which Kafka cannot do; use the append mode, "
                "or foreachBatch(dualwrite_batch(...)) with the update mode"
            )
        if self._options.job_id is not None:
            raise SinkOptionError("jobId is only for batch jobs; a stream is identified by its checkpoint")
        plan = None
        if _is_planner():
            checkpoint = Checkpoint(self._options.checkpoint_location)
            check_trigger(checkpoint)
            plan = self._plan(schema, checkpoint.query_id())
        return StreamWriter(self._options, self.open_sink, plan)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Plan a batch job and return its writer, which Spark pickles for the tasks and for the committer."""
        configure_worker_logging()
        if overwrite:
            raise SinkOptionError('a topic cannot be overwritten; use mode("append")')
        job = query_id_of_job(self._options.job_id or str(uuid.uuid4()), self._options.job_version)
        plan = self._plan(schema, job, _batch_of_job(self._options))
        return JobWriter(self._options, self.open_sink, plan, job)

    def _plan(self, schema: StructType, query_id: str | None, batch_id: int | None = None) -> Plan:
        return _plan(sink_of(self._options, self.open_sink), self._options, schema, query_id, batch_id)


def _batch_of_job(options: SinkOptions) -> int:
    return BATCH_JOB_ID if options.job_version is None else options.job_version


def _plan(
    sink: Sink, options: SinkOptions, schema: StructType, query_id: str | None, batch_id: int | None = None
) -> Plan:
    """Plan a batch with Spark's schema. Raises what `Sink.plan` does, and SinkOptionError for unsuitable columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from spark_sink.attempt.record_encoder import check_schema

    columns = to_arrow_schema(schema, timezone="UTC")
    check_schema(columns, options)
    return sink.plan(columns, query_id=query_id, batch_id=batch_id)


def _is_planner() -> bool:
    """Return whether Spark's planner is calling: the committer makes a writer too, and must not begin a generation.

    Looks at the module's spec, because its name is `__main__` if Spark does not fork workers.
    """
    frame = inspect.currentframe()
    while frame is not None and (frame := frame.f_back) is not None:
        if getattr(frame.f_globals.get("__spec__"), "name", None) == _PLANNER:
            return True
    return False


@dataclass
class TaskMessage(WriterCommitMessage):
    """The result of a task, in the class that Spark requires."""

    result: TaskResult


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    """Return the results, without the entries of tasks that reported nothing."""
    return [message.result for message in messages if isinstance(message, TaskMessage)]


class _Writer:
    """The common part of both kinds of writers. It is pickled, so it holds no connection."""

    def __init__(self, options: SinkOptions, open_sink: OpenSink, plan: Plan | None) -> None:
        self._options = options
        self._open_sink = open_sink
        self._plan = plan

    @property
    def _sink(self) -> Sink:
        return sink_of(self._options, self._open_sink)

    def _write(self, task: TaskIdentity, rows: Iterator[pa.RecordBatch]) -> TaskMessage:
        if self._plan is None:
            raise SinkError(
                f"this batch was not planned: Spark did not make its writer in {_PLANNER}; nothing was written"
            )
        return TaskMessage(self._sink.write(self._plan, task, rows))

    def _commit(self, results: Sequence[TaskResult], query_id: str, batch_id: int, offsets_digest: str | None) -> None:
        configure_worker_logging()  # the committer of a batch job is a process in which Spark has not called writer()
        summary = self._sink.commit(results, query_id=query_id, batch_id=batch_id, offsets_digest=offsets_digest)
        log_batch(self._options.sink_id, query_id, batch_id, results, summary)

    def _abort(self, results: Sequence[TaskResult], query_id: str | None, batch_id: int) -> None:
        """Abort the batch. Never raises: Spark would show that error instead of the one that made it abort."""
        configure_worker_logging()
        try:
            self._sink.abort(results, query_id=query_id, batch_id=batch_id)
        except Exception:
            log.exception(
                "sink %s: what batch %d has left could not be aborted now; the next batch or %s does it",
                self._options.sink_id,
                batch_id,
                commands.recover(self._options.sink_id, schema=self._options.store.schema),
            )


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The writer of one micro-batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write all rows of a task, in the task, and prepare them as one transaction."""
        message = self._write(streaming_task(), iterator)
        return TaskMessage(replace(message.result, checkpoint_root=checkpoint_root()))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Commit the batch, in the committer; again if a driver dies before it has recorded the batch."""
        results = _results(messages)
        if len(results) < len(messages) or not results:
            raise SinkOptionError(
                f"a task of batch {batchId} has reported nothing, so nothing is committed: the continuous trigger does "
                "not give rows to sinks in Python; use a trigger of micro-batches"
            )
        options, first = self._options, results[0]
        checkpoint = find_checkpoint(
            options.checkpoint_location, first.checkpoint_root, options.query_name, first.query_id
        )
        query_id = checkpoint.query_id() or first.query_id
        self._commit(results, query_id, batchId, checkpoint.offsets_digest(batchId))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Abort the batch, in the committer; Spark also calls this after a commit that failed or was decided."""
        self._abort(_results(messages), Checkpoint(self._options.checkpoint_location).query_id(), batchId)


class JobWriter(_Writer, DataSourceArrowWriter):
    """The writer of one batch job: a batch of a query named after the job, with the number of the version, if any."""

    def __init__(self, options: SinkOptions, open_sink: OpenSink, plan: Plan, job: str) -> None:
        super().__init__(options, open_sink, plan)
        self._planned = plan
        self._job = job
        self._batch_id = _batch_of_job(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write all rows of a task, in the task."""
        return self._write(task_of(self._job, self._batch_id), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the job, in the committer; Spark calls this once."""
        self._commit(_results(messages) or [self._no_result], self._job, self._batch_id, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the job, in the committer."""
        self._abort(_results(messages) or [self._no_result], self._job, self._batch_id)

    @property
    def _no_result(self) -> TaskResult:
        return TaskResult.without_attempt(TaskOutcome.EMPTY, self._planned, self._job, self._batch_id)


# ---- foreachBatch -----------------------------------------------------------------------------------------------

SqlFunction = Callable[["sa.Connection", int], object]

_RESULT: Final = "result"


def dualwrite_batch(
    options: Mapping[str, object], sql_fn: SqlFunction | None = None, query_id: str | None = None
) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that writes each batch exactly once, to Kafka and with `sql_fn`.

    `options` are those of the format. `sql_fn(connection, batch_id)` runs in the transaction that decides the batch, on
    the database of the commit store. It must use that connection, and neither commit nor roll back. It does not run for
    a batch that was decided before, and runs again if a deadlock undid the transaction.

    `query_id` identifies the query across restarts. The default is Spark's own id, which changes with the checkpoint.
    With `checkpointLocation` among the options (the location of the query's checkpoint), the sink also detects that an
    older checkpoint was restored. Under Spark Connect one of the two is required.

    The batch is computed once; not at all if it was decided before. Raises SinkOptionError.
    """
    parsed = parse(options)
    if parsed.job_id is not None:
        raise SinkOptionError("jobId is only for batch jobs; a stream is identified by its checkpoint")
    if sql_fn is not None and is_topic(parsed.store.url):
        raise SinkOptionError(NO_SQL)
    return DualWriteBatch(parsed, sql_fn, query_id, Sink.open)


class DualWriteBatch:
    """The function that `dualwrite_batch` returns. Picklable if `sql_fn` is: Spark Connect sends it to the server."""

    def __init__(
        self, options: SinkOptions, sql_fn: SqlFunction | None, query_id: str | None, open_sink: OpenSink
    ) -> None:
        """`open_sink` opens the sink in every process."""
        self._options = options
        self._sql_fn = sql_fn
        self._query_id = query_id
        self._open_sink = open_sink
        self._opened: tuple[int, Sink] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None}

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one batch. An exception ends the query; the next start gives the same batch again."""
        checkpoint = self._checkpoint(df)
        query_id = self._query_id or checkpoint.query_id() or _query_id_of_driver(df)
        if query_id is None:
            raise SinkOptionError(
                "under Spark Connect neither foreachBatch nor its tasks can find out which query they belong to; "
                "nothing was written. Give dualwrite_batch() the query's checkpointLocation as an option, or a "
                "query_id that is the same at every start of the query"
            )
        sink = self._sink()
        if self._sql_fn is not None:
            sink.check_runs_sql()
        plan = _plan(sink, self._options, df.schema, query_id)
        results: Sequence[TaskResult] = ()
        try:
            if sink.is_decided(query_id, batch_id):
                results = [TaskResult.without_attempt(TaskOutcome.SKIPPED, plan, query_id, batch_id)]
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
            results = results or [TaskResult.without_attempt(TaskOutcome.EMPTY, plan, query_id, batch_id)]
            sink.abort(results, query_id=query_id, batch_id=batch_id)
            raise
        log_batch(self._options.sink_id, query_id, batch_id, results, summary)

    def _checkpoint(self, df: DataFrame) -> Checkpoint:
        """Return the query's checkpoint. Under Spark Connect only the option tells where it is."""
        return Checkpoint(self._options.checkpoint_location or _checkpoint_of_driver(df))

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


def _checkpoint_of_driver(df: DataFrame) -> str | None:
    """Return where Spark keeps the checkpoint of the query that this batch belongs to.

    None under Spark Connect, and if Spark's internals have changed; then the option has to tell.
    """
    query_id = _query_id_of_driver(df)
    if query_id is None:
        return None
    session = df.sparkSession
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - nothing public tells where the checkpoint is
    try:
        running = session._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
        query = running.get(jvm.java.util.UUID.fromString(query_id))
        return str(query.resolvedCheckpointRoot())
    except Exception:  # of py4j, or an attribute that is not there
        log.info("where Spark keeps the checkpoint of the query %s cannot be found out", query_id, exc_info=True)
        return None


def _query_id_of_driver(df: DataFrame) -> str | None:
    """Return Spark's id of the query that this batch belongs to.

    None under Spark Connect, whose client does not have that property.
    """
    try:
        context = df.sparkSession.sparkContext
    except Exception:  # PySparkAttributeError, which the session of Spark Connect raises
        return None
    query_id: str | None = context.getLocalProperty("sql.streaming.queryId")
    return query_id
