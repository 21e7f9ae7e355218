"""`format("dualwrite-kafka")`: the sink as Spark's Python data source, for streams and for batch jobs.

    spark.dataSource.register(DualWriteKafka)
    df.writeStream.format("dualwrite-kafka").option("sinkId", "orders").options(...).start()

Spark runs a sink in three processes that share nothing but what is pickled: the planner, which makes a writer and sends
it to the tasks; the tasks, in workers of the executors; and the committer, which makes a writer of its own and is given
what the tasks returned. What each of them does is `spark_sink.driver.protocol`'s; this is only where Spark calls it.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_sink.attempt.open_sinks import OpenSink, sink_of
from spark_sink.attempt.task_identity import streaming_task, task_of
from spark_sink.driver.batch_log import log, log_batch, speak_in_worker
from spark_sink.driver.checkpoint import Checkpoint
from spark_sink.driver.planning import check_trigger, plan_of, result_of_no_task
from spark_sink.driver.protocol import Sink
from spark_sink.errors import SinkError, SinkOptionError
from spark_sink.handoff import BATCH_JOB_ID, Plan, TaskIdentity, TaskOutcome, TaskResult
from spark_sink.options import SinkOptions, parse

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = "dualwrite-kafka"

_PLANNER: Final = "pyspark.sql.worker.write_into_data_source"
"""The module whose main function makes the writer that goes to the tasks: once per batch, before any task starts."""


class DualWriteKafka(DataSource):
    """Writes to Kafka, and to a table in the same commit, exactly once. docs/spark.md has the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises SinkOptionError. Spark calls it in the planner, for every batch, and once in the committer."""
        self._options = parse(options)

    @classmethod
    def name(cls) -> str:
        """What `format()` is given."""
        return FORMAT

    @staticmethod
    def open_sink(options: SinkOptions) -> Sink:
        """How the processes open the sink; for subclasses that watch it."""
        return Sink.open(options)

    def schema(self) -> StructType:
        """Asked of a source only, and this is none."""
        raise SinkOptionError(f"{FORMAT} is written to; to read Kafka, use dualwrite-kafka-source")

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's
        """The writer of one batch, planned if this is the planner; Spark asks in the committer too."""
        speak_in_worker()
        if overwrite:
            raise SinkOptionError(
                "the complete mode would replace what is in the topic, and Kafka cannot do that; use the append mode, "
                "or foreachBatch(dualwrite_batch(...)) with the update mode"
            )
        if self._options.job_id is not None:
            raise SinkOptionError("jobId is for batch jobs; a stream is known by its checkpoint")
        plan = None
        if _is_planner():
            checkpoint = Checkpoint(self._options.checkpoint_location)
            check_trigger(checkpoint)
            plan = self._plan(schema, checkpoint.query_id())
        return StreamWriter(self._options, self.open_sink, plan)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer of a batch job, planned; Spark pickles it for the tasks and for the committer."""
        speak_in_worker()
        if overwrite:
            raise SinkOptionError('a topic cannot be overwritten; use mode("append")')
        job = f"job:{self._options.job_id or uuid.uuid4()}"
        return JobWriter(self._options, self.open_sink, self._plan(schema, job), job)

    def _plan(self, schema: StructType, query_id: str | None) -> Plan:
        return plan_of(sink_of(self._options, self.open_sink), self._options, schema, query_id=query_id)


def _is_planner() -> bool:
    """Whether Spark's planner is calling: the committer asks for a writer too, and must not begin a new generation.

    By the module's spec, as its name is `__main__` where Spark does not fork workers.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if getattr(frame.f_globals.get("__spec__"), "name", None) == _PLANNER:
            return True
    return False


@dataclass
class TaskMessage(WriterCommitMessage):
    """What a task tells the committer, as Spark wants it wrapped."""

    result: TaskResult


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    """Without the places of tasks that have said nothing."""
    return [message.result for message in messages if isinstance(message, TaskMessage)]


class _Writer:
    """What both kinds of writers do. Pickled, so it holds no connection."""

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
        speak_in_worker()  # the committer of a batch job is a process in which nobody has asked for a writer
        summary = self._sink.commit(results, query_id=query_id, batch_id=batch_id, offsets_digest=offsets_digest)
        log_batch(self._options.sink_id, query_id, batch_id, results, summary)

    def _abort(self, results: Sequence[TaskResult], query_id: str | None, batch_id: int) -> None:
        """Never raises: Spark would show that error instead of the one that made it abort."""
        speak_in_worker()
        try:
            self._sink.abort(results, query_id=query_id, batch_id=batch_id)
        except Exception:
            log.exception(
                "sink %s: what batch %d has left could not be aborted now; the next batch or `dualwrite spark recover` "
                "does it",
                self._options.sink_id,
                batch_id,
            )


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """One micro-batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """In a task: all its rows become one prepared transaction."""
        return self._write(streaming_task(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """In the committer; again, with the same batch, whenever a driver dies before it has noted the batch."""
        results = _results(messages)
        if len(results) < len(messages) or not results:
            raise SinkOptionError(
                f"a task of batch {batchId} has reported nothing, so nothing is committed: the continuous trigger does "
                "not give rows to sinks in Python; use a trigger of micro-batches"
            )
        checkpoint = Checkpoint(self._options.checkpoint_location)
        query_id = checkpoint.query_id() or results[0].query_id
        self._commit(results, query_id, batchId, checkpoint.offsets_digest(batchId))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """In the committer, also after a commit that failed, when the batch may be decided."""
        self._abort(_results(messages), Checkpoint(self._options.checkpoint_location).query_id(), batchId)


class JobWriter(_Writer, DataSourceArrowWriter):
    """One batch job: batch 0 of a query that is named after the job."""

    def __init__(self, options: SinkOptions, open_sink: OpenSink, plan: Plan, job: str) -> None:
        super().__init__(options, open_sink, plan)
        self._planned = plan
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """In a task."""
        return self._write(task_of(self._job, BATCH_JOB_ID), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the committer, once."""
        self._commit(_results(messages) or [self._no_result], self._job, BATCH_JOB_ID, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the committer."""
        self._abort(_results(messages) or [self._no_result], self._job, BATCH_JOB_ID)

    @property
    def _no_result(self) -> TaskResult:
        return result_of_no_task(TaskOutcome.EMPTY, self._planned, self._job, BATCH_JOB_ID)
