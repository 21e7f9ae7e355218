"""The state of one of Spark's worker processes: the sinks it has open, and the identity of the task it runs.

Spark reuses a worker from batch to batch, so sinks and their connections are kept. The batch of a task comes in local
properties of its job, not as an argument.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext

from spark_sink.errors import SinkError
from spark_sink.handoff import TaskIdentity
from spark_sink.options import SinkOptions

if TYPE_CHECKING:
    from spark_sink.driver.protocol import Sink

# ---- open sinks -------------------------------------------------------------------------------------------------

OpenSink = Callable[[SinkOptions], "Sink"]
"""A function that opens a sink. It is pickled with the writer, so it must be a function of a module."""

_LIMIT: Final = 4
"""Number of sinks that a worker keeps open when queries take turns in it; above it, the least recently used closes."""

_sinks: OrderedDict[tuple[int, OpenSink, bytes], Sink] = OrderedDict()


def sink_of(options: SinkOptions, open_sink: OpenSink) -> Sink:
    """Return this process's sink with these options, opened if needed, for its only thread that runs tasks.

    A forked child opens its own, because processes cannot share a socket.
    """
    # These belong to a query; they do not change how the servers are reached.
    options = replace(options, checkpoint_location=None, query_name=None, job_id=None, job_version=None)
    key = (os.getpid(), open_sink, pickle.dumps(options))
    sink = _sinks.pop(key) if key in _sinks else open_sink(options)
    _sinks[key] = sink
    of_this_process = [each for each in _sinks if each[0] == os.getpid()]
    for surplus in of_this_process[:-_LIMIT]:
        _sinks.pop(surplus).close()
    return sink


# ---- the running task -------------------------------------------------------------------------------------------

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
