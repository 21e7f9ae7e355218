"""Who a task is, as Spark tells it: the batch of a task comes in local properties of its job, not as an argument."""

from __future__ import annotations

import socket

from pyspark import TaskContext

from spark_sink.errors import SinkError
from spark_sink.handoff import TaskIdentity

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


def streaming_task() -> TaskIdentity:
    """The running task of a micro-batch. Raises SinkError outside of one."""
    context = _context()
    query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query_id is None or batch_id is None:
        raise SinkError(
            f"this task lacks the local properties {_QUERY_ID} and {_BATCH_ID}, so it belongs to no micro-batch; "
            "nothing was written. Use a trigger of micro-batches"
        )
    return _identity(context, query_id, int(batch_id))


def task_of(query_id: str, batch_id: int) -> TaskIdentity:
    """The running task of a batch that is known: under Spark Connect, those of foreachBatch have no such properties."""
    return _identity(_context(), query_id, batch_id)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SinkError("rows are written by Spark's tasks only, and this is none")
    return context


def _identity(context: TaskContext, query_id: str, batch_id: int) -> TaskIdentity:
    return TaskIdentity(
        query_id=query_id,
        batch_id=batch_id,
        partition_id=context.partitionId(),
        task_attempt_id=context.taskAttemptId(),
        host=socket.gethostname(),
    )
