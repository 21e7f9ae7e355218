"""The commit store as PLAN, WRITE, COMMIT, ABORT and FINISH use it: the port `SinkStore`.

`CommitStore` implements it in a SQL database, `topic.topic_store.TopicStore` in a topic of Kafka. The port hides the
differences: their errors, their clocks, and how the outcome of a commit without a response is found out.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from spark_sink.errors import StoreUnavailableError
from spark_sink.store.attempt_states import AttemptStatus, Claim, Ended, Prepared, Verdict

if TYPE_CHECKING:
    import sqlalchemy as sa

    from dualwrite.prepared_state import PreparedTxnState
    from spark_sink.handoff import TaskIdentity
    from spark_sink.options import OnNewCheckpoint
    from spark_sink.store.tables import (
        AttemptRow,
        BatchRow,
        BatchStatus,
        Decided,
        Decision,
        LakeFile,
        LakeRow,
        Lease,
        OwedBatch,
        Planned,
        SinkRow,
    )

Steps = Callable[["sa.Connection"], object]
"""Statements of the caller, to run in a transaction of the store."""

Last = Callable[[], object]
"""A function of the caller, called just before the commit, or before the only record is sent."""

_EVERY_VERDICT: Final = tuple(Verdict)


class ReachableStore(Protocol):
    """A store that may be unreachable."""

    @property
    def medium(self) -> str:
        """The kind of store, for messages: a `database` or a `topic`."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The store's own errors, which do not concern a batch: the same call may succeed later."""

    def unreachable(self, error: Exception) -> str | None:
        """Return the message of one of `errors` if the store could not be reached; else None."""


class LakeStore(Protocol):
    """The part that knows the files owed to a Delta or Iceberg table; `LakeLedger` implements it."""

    def record(self, connection: sa.Connection, attempt_id: str, location: str, file: LakeFile) -> None:
        """Record the file of an attempt, in the transaction that marks it PREPARED."""

    def choose(self, connection: sa.Connection, decision: Decision, location: str, table_id: str) -> None:
        """Mark the files of the winners as owed, in the transaction of the decision.

        Raises DualTableError if they are not those that the tasks have reported, and SinkError if this generation was
        decided before: the table could not tell the two batches apart. The transaction must then be rolled back.
        """

    def owner(self, sink_id: str) -> int:
        """Return the number by which tables know this sink of this store; the first call makes it up.

        Copies of the store have the same one. File names of the sink contain it, too.
        """

    def files(self, attempt_ids: Collection[str]) -> tuple[LakeFile, ...]:
        """Return the recorded files of these attempts."""

    def row(self, sink_id: str) -> LakeRow | None:
        """Return the sink's row about its Delta or Iceberg table; None if no batch was decided for one."""

    def owed(self, sink_id: str, *, durably: bool = True) -> tuple[OwedBatch, ...]:
        """Return the owed batches, in the order of the decisions. A table may get them only if they are durable."""

    def marks(self, sink_id: str) -> Mapping[int, int]:
        """Return the marks, by generation, of the owed batches, and of those given up since the last published one."""

    def published(self, batch: OwedBatch) -> None:
        """Forget a batch that the table has on its disk."""

    def note_lost(self, batch: OwedBatch, attempt_ids: Collection[str], detail: str) -> None:
        """Record that files of a batch cannot be added, and why; an operator has to acknowledge it."""

    def condemned(self, sink_id: str) -> Mapping[str, str]:
        """Return the locations of recorded files that will never be decided, by attempt id; durably."""

    def unrecorded(self, sink_id: str) -> Mapping[str, str]:
        """Return the same for attempts that were aborted before they recorded a file, but may have begun to write."""

    def forget(self, attempt_ids: Collection[str]) -> None:
        """Forget undecided files that have been deleted."""

    def attempts(self, sink_id: str) -> frozenset[str]:
        """Return the attempts that the store knows, or whose files it knows; durably.

        Any other attempt can never be prepared, decided or owed again.
        """


class HasLake(Protocol):
    """A store that records the files owed to Delta and Iceberg tables."""

    @property
    def lake(self) -> LakeStore:
        """The files owed to such tables."""


class TaskStore(ReachableStore, HasLake, Protocol):
    """The part that tasks use."""

    def rest(self) -> None:
        """Release the connections that this process does not need for a while. Never raises."""

    def begin(
        self,
        sink_id: str,
        generation: int | None,
        query_id: str,
        on_new_checkpoint: OnNewCheckpoint,
        inside: Steps | None,
    ) -> None:
        """Begin the generation of a plan that `begins_late`, unless another of its tasks has.

        Two plans of one query that saw the same generation before share this one. That is safe, because a batch has one
        decision, which names the attempts of one driver and condemns all others. Raises SinkFencedError, and the errors
        of `SinkStore.plan`.
        """

    def is_decided_for(self, sink_id: str, generation: int | None, task: TaskIdentity, policy: OnNewCheckpoint) -> bool:
        """Return whether the task's batch is decided. Raises SinkFencedError, CheckpointMismatchError."""

    def lease(self, sink_id: str, generation: int | None, task: TaskIdentity) -> Lease | None:
        """Open an attempt and lease it a transactional id; return None if the batch was decided in the meantime.

        Raises SinkFencedError.
        """

    def is_open(self, attempt_id: str) -> bool:
        """Return whether the attempt still belongs to its task."""

    def stage(self, attempt_id: str, steps: Steps) -> None:
        """Run `steps` in a transaction in which the attempt stays OPEN. Raises AttemptCondemnedError."""

    def mark_prepared(
        self,
        attempt_id: str,
        prepared: Prepared,
        *,
        records: int,
        inside: Steps | None = None,
        last: Last | None = None,
    ) -> None:
        """Make prepared state and manifest durable, in one transaction with `inside`. Raises AttemptCondemnedError.

        `last` may be called several times.
        """


class ClaimStore(ReachableStore, Protocol):
    """The part that FINISH uses."""

    @property
    def schema(self) -> str | None:
        """The schema of the store's tables, for commands in messages; None for the default, or without schemas."""

    def claims(
        self, sink_id: str, verdicts: Collection[Verdict] = _EVERY_VERDICT, *, durably: bool = True
    ) -> tuple[Claim, ...]:
        """Return the transactions that have to be completed in Kafka.

        They are durable, so Kafka may be told of them; `durably=False` does not wait, for a caller that only reports
        them.
        """

    def still_wanted(
        self, wanted: Mapping[str, Verdict], attempt_ids: Collection[str], *, durably: bool = False
    ) -> Mapping[str, Prepared]:
        """Return those of these attempts that still have the verdict in `wanted`, as their rows are now.

        A prepared state may have changed: a finisher has published the transaction again. Kafka may be told of the new
        one only if it was read `durably`.
        """

    def named(self, states: Collection[PreparedTxnState], cluster_id: str) -> frozenset[PreparedTxnState]:
        """Return those of these prepared states that the row of any attempt of any sink has.

        A row whose manifest names another Kafka cluster does not count: there, the same pair is another transaction.
        """

    def replace(self, sink_id: str, attempt_id: str, old: PreparedTxnState, new: Prepared) -> bool:
        """Replace the transaction of a COMMITTING attempt by the one in which its records were published again.

        Only if the row has `old`; durable as decisions are. Return whether the row has `new`: another finisher with the
        same producer id and epoch may have written it. Raises DecisionUnknownError, and the store's errors, if only the
        row can tell, later; then neither transaction may be ended.
        """

    def record(self, sink_id: str, ended: Mapping[str, Ended]) -> Mapping[str, Ended]:
        """Record the endings, given by attempt id; FAILED and LEFT change no status. Return them, as recorded.

        COMMITTED and LOST are recorded only if the row still has the prepared state that was judged. Else they are
        returned as LEFT: a finisher has published the transaction again.
        """


class OrphanStore(ReachableStore, Protocol):
    """The part that recognises orphans among open transactions."""

    def orphans(self, sink_id: str, pairs: Mapping[str, str], cluster_id: str) -> dict[str, AttemptStatus | None]:
        """Return those of these open transactions, given as pairs by id, whose ids belong to no live attempt.

        The value is the status of the attempt that had the id and the pair; None if the store has no such attempt. One
        whose manifest names another Kafka cluster does not count: there, the same pair is another transaction.
        """

    def retire_orphans(
        self, sink_id: str, pairs: Mapping[str, str], cluster_id: str
    ) -> dict[str, AttemptStatus | None]:
        """Return the result of `orphans`, durably, and retire the ids: no task leases one of them afterwards.

        Raises SinkError for a sink that the store does not have, and NotDurableError.
        """


class OperatedStore(ClaimStore, OrphanStore, HasLake, Protocol):
    """The part that recovery and operators use."""

    def now(self) -> dt.datetime:
        """Return the time of the store's clock, the source of the times in its rows."""

    def sinks(self) -> list[SinkRow]:
        """Return every sink of the store, ordered by id."""

    def batches(self, sink_id: str, statuses: Collection[BatchStatus] = ...) -> list[BatchRow]:
        """Return the decided batches of a sink, the newest first."""

    def attempts(self, sink_id: str, statuses: Collection[AttemptStatus] = ...) -> list[AttemptRow]:
        """Return the attempts of a sink, ordered by generation and partition."""

    def newest_prepared(self, sink_id: str) -> Mapping[str, Prepared]:
        """Return the last prepared transaction of each id, by transactional id; of the newest attempts at least."""

    def condemn(self, sink_id: str) -> int:
        """Condemn the OPEN and PREPARED attempts of the sink; return their number."""


class SinkStore(TaskStore, ClaimStore, OrphanStore, Protocol):
    """The whole store as a sink uses it."""

    @property
    def runs_sql(self) -> bool:
        """Whether the store has database transactions, in which steps of the caller can run."""

    def examine(self) -> None:
        """Check whether the store keeps decisions. Raises UnsafeDatabaseError. Changes nothing."""

    def plan(
        self,
        sink_id: str,
        *,
        query_id: str | None,
        on_new_checkpoint: OnNewCheckpoint,
        batch_id: int | None = None,
        beforehand: Callable[[sa.Engine], object] | None = None,
        inside: Steps | None = None,
    ) -> Planned:
        """Begin a new generation, which fences every older driver and condemns every undecided attempt.

        Only if needed, because the fenced driver may be the right one. If `query_id` is None (not known yet), the first
        task begins the generation (`begin`). A decided batch job needs none; only a job knows its `batch_id` here.
        `inside` runs in the transaction that begins, after `beforehand` has created the tables it needs. A running
        query may use them and must not be disturbed, so a refusal comes before `beforehand`. Raises
        CheckpointMismatchError if the sink belongs to another query, BatchLostError while a lost batch of the sink is
        not acknowledged, and SinkError for a store that cannot be used; then nothing has changed.
        """

    def prepared_states(self, attempt_ids: Collection[str]) -> Mapping[str, PreparedTxnState]:
        """Return the prepared states, by transactional id, of the PREPARED ones among these attempts."""

    def decide(
        self, decision: Decision, policy: OnNewCheckpoint, inside: Steps | None = None, last: Last | None = None
    ) -> Decided:
        """Take the decision, unless it exists already. Then the batch is committed, even if this process dies.

        `inside` runs in the transaction, and `last` after it, unless the decision exists already. Raises
        SinkFencedError, CheckpointMismatchError, AttemptCondemnedError, SinkError, and the errors of `inside` and of
        the store; then nothing is decided. Raises DecisionUnknownError if only `resolve` can find out.
        """

    def resolve(self, decision: Decision) -> Decided | None:
        """Find out whether a decision exists whose commit got no response. None: it does not, and never will."""

    def is_decided(self, sink_id: str, query_id: str, batch_id: int) -> bool:
        """Return whether the batch is decided, durably. Raises CheckpointMismatchError if all known ones are newer."""

    def give_up(self, sink_id: str, *, query_id: str, batch_id: int, generation: int) -> None:
        """Condemn the undecided attempts of a batch in a generation and, unless it is decided, end the generation."""

    def prune(self, sink_id: str, keep: int) -> int:
        """Delete all but the newest `keep` decided batches of each query; return the number of deleted batches."""


@contextmanager
def unavailable_means(store: ReachableStore, consequence: str) -> Iterator[None]:
    """Raise StoreUnavailableError, which states the consequence, if the store cannot be reached."""
    try:
        yield
    except store.errors as error:
        found = store.unreachable(error)
        if found is None:
            raise
        raise StoreUnavailableError(f"{found}. {consequence}") from error
