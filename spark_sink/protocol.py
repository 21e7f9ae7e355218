"""PLAN, WRITE, COMMIT, ABORT and FINISH of a batch, without Spark.

The three processes of a query carry them out: the planner PLAN, a task worker WRITE, the committer COMMIT or ABORT;
each of PLAN, COMMIT and ABORT ends with FINISH. A process may die between any two statements, and sleep for any time
between them. What it leaves, the next PLAN puts right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from spark_sink.commit_store import CommitStore
from spark_sink.handoff import Plan, TaskIdentity, TaskResult
from spark_sink.kafka_side import KafkaSide
from spark_sink.options import SinkOptions
from spark_sink.pause_points import Pause

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa


@dataclass(frozen=True)
class CommitSummary:
    """What COMMIT or FINISH did."""

    decided_anew: bool
    """False: the decision stood before, or none was asked for."""
    records: int
    """Of the batch; 0 where no decision was asked for."""
    committed: int
    """Kafka transactions that were committed now."""
    aborted: int
    """Kafka transactions that were aborted now."""
    unfinished: int
    """Kafka transactions of losers that could not be aborted yet; the next plan does."""
    decision_ms: float
    phase_two_ms: float


class Sink:
    """One sink, in one process. Threads take turns."""

    def __init__(
        self,
        options: SinkOptions,
        store: CommitStore,
        kafka: KafkaSide,
        *,
        pause: Pause | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`pause` is called at each PausePoint; `sleep` waits between tries, in seconds."""
        raise NotImplementedError

    @classmethod
    def open(cls, options: SinkOptions) -> Self:
        """With the store and the Kafka connections of this process, which it makes when they are first needed."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what `open` made. Never raises."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def plan(self, schema: pa.Schema, *, query_id: str | None) -> Plan:
        """Fence older drivers, end what they left, and give the token for one batch.

        Raises SinkOptionError, CheckpointMismatchError, BatchLostError, and SinkError where Kafka could not be brought
        to end what was left; then the batch has not begun.
        """
        raise NotImplementedError

    def write(self, plan: Plan, task: TaskIdentity, rows: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write one partition under a transaction of its own, and make it durable that it can be committed.

        Raises SinkFencedError, CheckpointMismatchError, AttemptCondemnedError, DualTableError and Kafka's errors; then
        this attempt does not become visible, and Spark may try again.
        """
        raise NotImplementedError

    def commit(
        self,
        results: Sequence[TaskResult],
        *,
        query_id: str,
        batch_id: int,
        offsets_digest: str | None,
        sql_fn: Callable[[sa.Connection, int], object] | None = None,
    ) -> CommitSummary:
        """Decide the batch, and commit its Kafka transactions.

        `sql_fn(connection, batch_id)` runs in the decision's transaction; once more where a deadlock undid that. Raises
        SinkFencedError, CheckpointMismatchError, AttemptCondemnedError, SinkError and what `sql_fn` raises, after which
        nothing is decided; BatchLostError, and SinkError where Kafka did not answer, after which the decision stands
        and the next plan goes on.
        """
        raise NotImplementedError

    def abort(self, results: Sequence[TaskResult], *, query_id: str | None, batch_id: int) -> None:
        """Give up an undecided batch; of a decided one nothing is touched. Never raises: it would hide the first error.

        Without results it needs the query id to know whose attempts to give up.
        """
        raise NotImplementedError

    def finish(self) -> CommitSummary:
        """End in Kafka what is decided or condemned. May run at any time, twice, or in two processes at once.

        Raises BatchLostError, and SinkError where Kafka could not be brought to it.
        """
        raise NotImplementedError

    def is_decided(self, query_id: str, batch_id: int) -> bool:
        """Whether the batch was decided."""
        raise NotImplementedError
