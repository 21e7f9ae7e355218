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
    batch_id = context.getLocalProperty(_BATCH_ID)
    if batch_id is None:
        raise SinkError(
            f"this task has no local property {_BATCH_ID}, so it belongs to no micro-batch; nothing was written. A "
            "trigger other than those of micro-batches is not supported"
        )
    return _identity(context, _query_id(context, None), int(batch_id))


def task_of(query_id: str | None, batch_id: int) -> TaskIdentity:
    """The running task of a batch that is known; where the query is not, the task's local properties say it."""
    context = _context()
    return _identity(context, _query_id(context, query_id), batch_id)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SinkError("rows are written by Spark's tasks only, and this is none")
    return context


def _query_id(context: TaskContext, known: str | None) -> str:
    query_id = known or context.getLocalProperty(_QUERY_ID)
    if query_id is None:
        raise SinkError(
            f"this task has no local property {_QUERY_ID}, so its query is unknown; nothing was written. In "
            "foreachBatch, give dualwrite_batch() a query_id that is the same at every start of the query"
        )
    return query_id


def _identity(context: TaskContext, query_id: str, batch_id: int) -> TaskIdentity:
    return TaskIdentity(
        query_id=query_id,
        batch_id=batch_id,
        partition_id=context.partitionId(),
        task_attempt_id=context.taskAttemptId(),
        host=socket.gethostname(),
    )
