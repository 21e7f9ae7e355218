"""Where a batch is decided: sinks, decisions and attempts in a SQL database.

A batch is decided when it has a row in `dw_batch`; that row, the winners' change to COMMITTING and the rows of the
dual table appear in one transaction. Every method is one transaction. Those that change who may win hold the lock of
the sink's row from their first statement on; a task that takes a lease shares it. So a generation, once read in there,
is the sink's until the transaction ends.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dualwrite.prepared_state import PreparedTxnState
from spark_sink import store_rules as rules
from spark_sink.attempt_states import LIVE, TERMINAL, AttemptEvent, AttemptStatus, after, before
from spark_sink.errors import AttemptCondemnedError, BatchLostError, SinkError, SinkFencedError
from spark_sink.handoff import TaskIdentity
from spark_sink.kafka_side import Claim, Ended, Ending, Verdict
from spark_sink.options import OnNewCheckpoint, StoreOptions
from spark_sink.store_rows import AttemptRow, BatchRow, BatchStatus, Decided, Decision, Lease, Planned, SinkRow
from spark_sink.store_tables import DETAIL_LENGTH, StoreTables
from spark_sink.store_transactions import StoreTransactions, engine_for, locking

Steps = Callable[[sa.Connection], object]
"""What somebody adds to a transaction of the store."""

VERDICTS: Final[Mapping[AttemptStatus, Verdict]] = {
    AttemptStatus.COMMITTING: Verdict.COMMIT,
    AttemptStatus.ABORTING: Verdict.ABORT,
}
_EVENTS: Final[Mapping[Ending, AttemptEvent]] = {
    Ending.COMMITTED: AttemptEvent.COMMIT,
    Ending.ABORTED: AttemptEvent.ABORT,
    Ending.LOST: AttemptEvent.LOSE,
}
_LEASE_TRIES: Final = 50


class CommitStore:
    """The store on one engine. Threads may share it; processes may not."""

    def __init__(self, engine: sa.Engine, *, schema: str | None = None, create_tables: bool = True) -> None:
        """`create_tables`: whether the first plan of this object creates what is missing."""
        self._engine = engine
        self._tables = StoreTables(schema)
        self._sink, self._batch, self._attempt = self._tables.sink, self._tables.batch, self._tables.attempt
        self._transactions = StoreTransactions(engine, lambda: self._tables.exist(engine))
        self._may_create = create_tables

    @classmethod
    def open(cls, options: StoreOptions) -> Self:
        """On this process's engine for the options. Raises SinkOptionError."""
        return cls(engine_for(options), schema=options.schema, create_tables=options.create_tables)

    @property
    def engine(self) -> sa.Engine:
        return self._engine

    def create_tables(self) -> None:
        """Create the tables that are missing; safe when several processes do it at once."""
        self._tables.create(self._engine)

    # ---- PLAN -----------------------------------------------------------------------------------------------

    def plan(
        self, sink_id: str, *, query_id: str | None, on_new_checkpoint: OnNewCheckpoint, inside: Steps | None = None
    ) -> Planned:
        """Begin a new generation, which fences every older driver and condemns every attempt that is not decided.

        `query_id` where it is known. `inside` is carried out in the transaction. Raises CheckpointMismatchError, and
        BatchLostError while a lost batch of the sink is not acknowledged; then nothing has changed.
        """
        raise NotImplementedError

    # ---- WRITE ----------------------------------------------------------------------------------------------

    def is_decided_for(self, sink_id: str, generation: int, task: TaskIdentity, policy: OnNewCheckpoint) -> bool:
        """Whether the task's batch is decided. Raises SinkFencedError, CheckpointMismatchError."""
        raise NotImplementedError

    def lease(self, sink_id: str, generation: int, task: TaskIdentity) -> Lease | None:
        """An OPEN attempt with a transactional id of its own; None where the batch was decided in the meantime.

        Raises SinkFencedError.
        """
        raise NotImplementedError

    def is_open(self, attempt_id: str) -> bool:
        """Whether the attempt is still its task's own."""
        raise NotImplementedError

    def stage(self, attempt_id: str, steps: Steps) -> None:
        """Carry out `steps` in a transaction in which the attempt stays OPEN. Raises AttemptCondemnedError."""
        raise NotImplementedError

    def mark_prepared(self, attempt_id: str, state: PreparedTxnState, *, records: int, inside: Steps | None) -> None:
        """Make the prepared state durable, in one transaction with `inside`. Raises AttemptCondemnedError."""
        raise NotImplementedError

    # ---- COMMIT, ABORT --------------------------------------------------------------------------------------

    def decide(self, decision: Decision, policy: OnNewCheckpoint, inside: Steps | None = None) -> Decided:
        """Take the decision, or find that it stands; then the batch is committed, whatever happens to this process.

        `inside` is carried out in the transaction, unless the decision stands; once more where a deadlock undid it.
        Raises SinkFencedError, CheckpointMismatchError, AttemptCondemnedError, SinkError and what `inside` raises; then
        nothing is decided.
        """
        raise NotImplementedError

    def is_decided(self, sink_id: str, query_id: str, batch_id: int) -> bool:
        """Whether the batch has a decision."""
        raise NotImplementedError

    def condemn(
        self, sink_id: str, *, query_id: str | None = None, batch_id: int | None = None, generation: int | None = None
    ) -> int:
        """Condemn the attempts that are OPEN or PREPARED, of the whole sink or of a part; returns how many.

        Those of a decided batch can no longer win, and are condemned as well. A driver that lives goes on, and finds
        its attempts gone: `plan` is what fences it.
        """
        raise NotImplementedError

    # ---- FINISH ---------------------------------------------------------------------------------------------

    def claims(self, sink_id: str, verdicts: Collection[Verdict] = tuple(Verdict)) -> tuple[Claim, ...]:
        """What is to be ended in Kafka."""
        raise NotImplementedError

    def still_wanted(self, wanted: Mapping[str, Verdict], attempt_ids: Collection[str]) -> set[str]:
        """Of these attempts, those that have still the verdict in `wanted`."""
        raise NotImplementedError

    def record(self, sink_id: str, ended: Mapping[str, Ended]) -> None:
        """Write down, by attempt id, what Kafka has answered; FAILED and LEFT change nothing.

        A batch of which nothing is left to do becomes DONE, and one that lost a transaction LOST.
        """
        raise NotImplementedError

    # ---- operators ------------------------------------------------------------------------------------------

    def sinks(self) -> list[SinkRow]:
        """Every sink of the store, by its id."""
        raise NotImplementedError

    def batches(self, sink_id: str, statuses: Collection[BatchStatus] = tuple(BatchStatus)) -> list[BatchRow]:
        """The decided batches of a sink, the newest first."""
        raise NotImplementedError

    def attempts(self, sink_id: str, statuses: Collection[AttemptStatus] = tuple(AttemptStatus)) -> list[AttemptRow]:
        """The attempts of a sink, by generation and partition."""
        raise NotImplementedError

    def prune(self, sink_id: str, keep: int) -> int:
        """Forget all but the newest `keep` decided batches of each query, and of all batch jobs together.

        At least one stays, and so does what is not done, or lost and not acknowledged. Returns how many batches went.
        """
        raise NotImplementedError

    def mark_lost(self, sink_id: str, attempt_ids: Collection[str], detail: str) -> int:
        """Say of COMMITTING attempts that Kafka has dropped their transactions; returns how many they were.

        FINISH does so by itself where the broker says it. By hand it is for a broker that can no longer tell.
        """
        raise NotImplementedError

    def acknowledge_lost(self, sink_id: str, query_id: str, batch_id: int) -> bool:
        """Let the query go on after a LOST batch; its lost records stay lost. Returns whether there was one."""
        raise NotImplementedError
