"""`BatchCalls`: the calls that write parts of one batch to one sink, as a function of foreachBatch may make them.

Spark gives a function of foreachBatch a batch, and the function may write it in several calls. Each call is decided by
itself, under its number in the batch. When Spark repeats a batch, decided calls are skipped by their number. That is
right only if the function makes the same calls in the same order. A call is refused where that is in doubt: if calls
come from two threads, follow a failed one, or have another content than the decided one.

No Spark here: the caller names the run of the query, and describes the content of a call by a digest.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from spark_sink.driver.finisher import CommitSummary
from spark_sink.errors import SinkError
from spark_sink.store.rules import query_of_call

_MOST_RUNS: Final = 1000
"""Runs whose last call is remembered, so that a process that starts queries again and again does not grow."""


class Run(NamedTuple):
    """One run of a query, in which Spark gives each batch once."""

    sink_id: str
    query_id: str
    id: str | None
    """None if unknown, so that a repeated batch may be of another run."""


class _State(Enum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass
class Call:
    """One call for a batch."""

    run: Run
    batch_id: int
    number: int
    """From 1 on."""
    thread: int
    state: _State = _State.RUNNING
    is_as_before: bool = True
    """False if it was skipped although another content was decided under its number."""

    @property
    def query_id(self) -> str:
        """The name under which the store keeps the batch of this call."""
        return query_of_call(self.run.query_id, self.number)

    def check_content(self, summary: CommitSummary, mine: str | None, next_is_decided: Callable[[], bool]) -> None:
        """Raise SinkError if this call was skipped although another one may have been decided under its number.

        Another content alone is no reason if the batch has only this call: a literal for the time of day changes it,
        for example. It is a reason if another call follows, or has followed before.
        """
        if summary.decided_anew or (mine is not None and summary.content_digest == mine):
            return
        self.is_as_before = False
        if self.number > 1 or next_is_decided():
            raise _not_as_before(self.run, self.batch_id, self.number)


class BatchCalls:
    """The calls of this process. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: OrderedDict[Run, Call] = OrderedDict()

    @contextmanager
    def call(self, run: Run, batch_id: int) -> Iterator[Call]:
        """Give a call its number. Raises SinkError, before the call writes anything, if the number is in doubt."""
        mine: Call | None = None
        try:  # around all of it: a call that a signal ends here must not count as running for ever
            with self._lock:
                number = _number(run, batch_id, self._last.get(run))
                mine = Call(run, batch_id, number, threading.get_ident())
                self._last[run] = mine
                self._last.move_to_end(run)
                if len(self._last) > _MOST_RUNS:
                    self._last.popitem(last=False)
            yield mine
        except BaseException:
            if mine is not None:
                mine.state = _State.FAILED
            raise
        mine.state = _State.DONE


_WAY_OUT: Final = (
    "Write the batch in one call (a union of the DataFrames, with a column topic if they go to several topics), or use "
    "a function of dualwrite_batch() with a sinkId of its own for each call"
)


def _number(run: Run, batch_id: int, last: Call | None) -> int:
    """Return the number of the next call. Raises SinkError."""
    if last is not None and last.state is _State.RUNNING:
        raise SinkError(
            f"the sink {run.sink_id!r} is called for batch {batch_id} while a call for batch {last.batch_id} is "
            "running; no part of this call was written. If Spark repeats a batch, calls are told apart by their order, "
            f"which calls at the same time do not have. {_WAY_OUT}, and wait for all calls before the function ends"
        )
    if last is None or last.batch_id != batch_id:
        return 1
    if last.state is _State.FAILED:
        raise SinkError(
            f"the sink {run.sink_id!r} is called again for batch {batch_id} after a call that failed; no part of this "
            "call was written, because it may repeat that call or be another one. Let the exception end the query: its "
            "next start gives the same batch again, and skips the calls that were decided"
        )
    if run.id is None:
        raise SinkError(
            f"the sink {run.sink_id!r} is called again for batch {batch_id}; no part of this call was written, because "
            "this thread cannot tell a second call from a new start of the query. Give dualwrite_batch() the query's "
            "checkpointLocation as an option, or start the thread with pyspark.inheritable_thread_target"
        )
    if last.thread != threading.get_ident():
        raise SinkError(
            f"the sink {run.sink_id!r} is called for batch {batch_id} from a second thread; the rows of the earlier "
            "calls are decided, and no part of this call was written. If Spark repeats a batch, calls are told apart "
            f"by their order, which threads do not have. {_WAY_OUT}"
        )
    if not last.is_as_before:
        raise _not_as_before(run, batch_id, last.number + 1)
    return last.number + 1


def _not_as_before(run: Run, batch_id: int, number: int) -> SinkError:
    return SinkError(
        f"Spark repeats batch {batch_id} of the query {run.query_id}, and the calls of the sink {run.sink_id!r} "
        f"differ from the first time in a DataFrame, a topic, a table or the order. Call {number} was not written, "
        "because writing or skipping it could repeat or lose rows. Make the same calls in the same order as the first "
        "time; when the batch is done, the function may change. If only a literal differs (a time, a random number), "
        "start the query once with requireDigest=false: then decided calls are skipped by their number alone"
    )
