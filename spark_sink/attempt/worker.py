"""The identity of the task that one of Spark's worker processes runs.

The batch of a task comes in local properties of its job, not as an argument.
"""

from __future__ import annotations

import socket
from typing import Final

from pyspark import TaskContext

from spark_sink.errors import SinkError
from spark_sink.handoff import TaskIdentity

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_CHECKPOINT_ROOT: Final = "spark.sql.streaming.checkpointLocation"
"""The session's setting for the checkpoints of queries that have no location of their own."""


def streaming_task() -> TaskIdentity:
    """Return the identity of the running task of a micro-batch. Raises SinkError outside of one."""
    context = _context()
    query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query_id is None or batch_id is None:
        raise SinkError(
            f"this task does not have the local properties {_QUERY_ID} and {_BATCH_ID}, so it belongs to no "
            "micro-batch; nothing was written. Use a trigger of micro-batches"
        )
    return _identity(context, query_id, int(batch_id))


def task_of(query_id: str, batch_id: int) -> TaskIdentity:
    """Return the identity of the running task of a known batch.

    The tasks of foreachBatch under Spark Connect have no local properties that name it.
    """
    return _identity(_context(), query_id, batch_id)


def checkpoint_root() -> str | None:
    """Return the session's location for checkpoints. Spark passes its SQL settings on to tasks, as properties."""
    root: str | None = _context().getLocalProperty(_CHECKPOINT_ROOT)
    return root


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SinkError("only a Spark task can write rows, and this process is not running one")
    return context


def _identity(context: TaskContext, query_id: str, batch_id: int) -> TaskIdentity:
    return TaskIdentity(
        query_id=query_id,
        batch_id=batch_id,
        partition_id=context.partitionId(),
        task_attempt_id=context.taskAttemptId(),
        host=socket.gethostname(),
    )
