"""The sink as Spark calls it: `format("dualwrite-kafka")` and `register()`; `foreach_batch.py` is for foreachBatch.

    register(spark)
    df.writeStream.format("dualwrite-kafka").option("sinkId", "orders").options(...).start()

Spark runs a sink in three processes that share only pickled objects: the planner, which makes a writer and sends it to
the tasks; the tasks, in workers of the executors; and the committer, which makes a writer of its own and receives the
results of the tasks. `driver/protocol.py` defines the steps of each.
"""

from __future__ import annotations

import inspect
import shutil
import sys
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from spark_sink import commands
from spark_sink.attempt.worker import checkpoint_root, streaming_task, task_of
from spark_sink.driver.batch_log import configure_worker_logging, log, log_batch
from spark_sink.driver.checkpoint import Checkpoint, check_trigger, find_checkpoint
from spark_sink.driver.plan_note import note_plan, planned_generation
from spark_sink.driver.protocol import Sink
from spark_sink.errors import SinkError, SinkOptionError
from spark_sink.handoff import BATCH_JOB_ID, Plan, TaskIdentity, TaskOutcome, TaskResult
from spark_sink.open_sinks import OpenSink, sink_of
from spark_sink.options import SinkOptions, parse
from spark_sink.store.rules import query_id_of_job

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT: Final = "dualwrite-kafka"

_PLANNER: Final = "pyspark.sql.worker.write_into_data_source"
"""The module whose main function makes the writer that goes to the tasks: once per batch, before any task starts."""


def register(spark: SparkSession) -> None:
    """Register `dualwrite-kafka` and `dualwrite-kafka-source` with this session, of Spark Classic or Spark Connect.

    The package must be installed for the driver and the executors of the session. Warns if the workers of a local
    session run another Python than this one.
    """
    from spark_sink.reading.source import DualWriteKafkaSource

    context = getattr(spark, "_sc", None)  # Spark Connect has none, and its workers are not on this machine
    if context is not None and context.master.startswith("local"):
        warn_of_another_python(context.pythonExec)
    spark.dataSource.register(DualWriteKafka)
    spark.dataSource.register(DualWriteKafkaSource)


def warn_of_another_python(worker_python: str) -> None:
    """Warn if Spark runs its workers with an interpreter outside this environment.

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
    """Write to Kafka, and to a table in the same commit, exactly once. The options: docs/spark-options.md."""

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
            query_id = checkpoint.query_id()
            plan = self._plan(schema, query_id)
            note_plan(self._options.sink_id, query_id, plan.generation)
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
        return plan_batch(sink_of(self._options, self.open_sink), self._options, schema, query_id, batch_id)


def _batch_of_job(options: SinkOptions) -> int:
    return BATCH_JOB_ID if options.job_version is None else options.job_version


def plan_batch(
    sink: Sink, options: SinkOptions, schema: StructType, query_id: str | None, batch_id: int | None = None
) -> Plan:
    """Plan a batch with Spark's schema. Raises as `Sink.plan` does, and SinkOptionError for unsuitable columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from spark_sink.record_encoder import check_schema

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
            planned = None if results else planned_generation(self._options.sink_id, query_id)
            self._sink.abort(results, query_id=query_id, batch_id=batch_id, generation=planned)
        except Exception:
            log.exception(
                "sink %s: the leftovers of batch %d could not be aborted now; the next batch, or %s, aborts them",
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
        results = _results(messages)
        if len(results) < len(messages):
            raise SinkError(f"a task of {self._job} has reported nothing, so nothing is committed; run the job again")
        self._commit(results or [self._no_result], self._job, self._batch_id, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the job, in the committer."""
        self._abort(_results(messages) or [self._no_result], self._job, self._batch_id)

    @property
    def _no_result(self) -> TaskResult:
        return TaskResult.without_attempt(TaskOutcome.EMPTY, self._planned, self._job, self._batch_id)
