"""`TopicStore`: the commit store in one partition of a topic, for sinks that write to Kafka only.

Every operation is computed from the state that this process has read, and sent as one record. If that record counts,
none of the rows that the operation depends on had changed; else the log was read up to it, and the operation is
computed again. An operation without a record is answered from the state at a record that this process sent after the
call.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, NoReturn, TypeVar

from dualwrite.prepared_state import PreparedTxnState
from spark_sink.errors import CommitLogError, DecisionUnknownError, SinkError, SinkOptionError
from spark_sink.handoff import TaskIdentity
from spark_sink.options import NO_SQL, OnNewCheckpoint
from spark_sink.store.attempt_states import AttemptStatus, Claim, Ended, Prepared, Verdict
from spark_sink.store.sink_store import Last, Steps
from spark_sink.store.tables import AttemptRow, BatchRow, BatchStatus, Decided, Decision, Lease, Planned, SinkRow
from spark_sink.store.topic import operations
from spark_sink.store.topic.log import CommitLog
from spark_sink.store.topic.no_lake import NoLake
from spark_sink.store.topic.operations import Step
from spark_sink.store.topic.records import Update
from spark_sink.store.topic.replica import OutcomeUnknownError, Replica, missing_store
from spark_sink.store.topic.rows import ATTEMPT, SinkRows, moment
from spark_sink.store.topic.state import StoreState

if TYPE_CHECKING:
    import sqlalchemy as sa

AnswerT = TypeVar("AnswerT")


class TopicStore:
    """A `SinkStore` on one log. Threads may share it; processes may not."""

    errors: Final = (CommitLogError,)
    """See `ReachableStore.errors`."""

    schema: Final = None
    """See `ClaimStore.schema`."""

    medium: Final = "topic"
    """See `ReachableStore.medium`."""

    runs_sql: Final = False
    """See `SinkStore.runs_sql`."""

    def __init__(self, log: CommitLog, *, create: bool = True, replica: Replica | None = None) -> None:
        """`create`: `examine` and the first plan create a missing topic or store. `replica`: the shared copy."""
        self._log = log
        self._may_create = create
        self._replica = replica or Replica(log)
        self.lake: Final = NoLake()

    def unreachable(self, error: Exception) -> str | None:
        """See `ReachableStore.unreachable`."""
        if isinstance(error, CommitLogError) and error.is_away:
            return f"the topic of the commit store cannot be reached ({error})"
        return None

    def rest(self) -> None:
        """Do nothing: the connections to Kafka are those of the producers."""

    def now(self) -> dt.datetime:
        """Return the time of the leader's clock."""
        return moment(self._replica.refresh())

    def create(self) -> None:
        """Create the topic, and the store in it, unless they exist. Safe if several processes do it at once."""
        self._log.create()
        self._log.check()
        self._replica.refresh()
        self._replica.begin_store()

    # ---- PLAN -----------------------------------------------------------------------------------------------

    def examine(self) -> None:
        """Check whether the topic keeps decisions; at each plan, because its settings may be changed at any time.

        Raises SinkError. Changes nothing, but creates a topic that is missing.
        """
        if self._may_create:
            self._log.create()
        self._log.check()

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
        """See `SinkStore.plan`."""
        if beforehand is not None or inside is not None:
            _refuse_sql()
        if self._may_create:
            self._replica.refresh()
            self._replica.begin_store()
        return self._do(sink_id, lambda rows: operations.plan(rows, query_id, on_new_checkpoint, batch_id))

    def begin(
        self,
        sink_id: str,
        generation: int | None,
        query_id: str,
        on_new_checkpoint: OnNewCheckpoint,
        inside: Steps | None,
    ) -> None:
        """See `TaskStore.begin`."""
        if inside is not None:
            _refuse_sql()
        self._do(sink_id, lambda rows: operations.begin(rows, generation, query_id, on_new_checkpoint))

    # ---- WRITE ----------------------------------------------------------------------------------------------

    def is_decided_for(self, sink_id: str, generation: int | None, task: TaskIdentity, policy: OnNewCheckpoint) -> bool:
        """See `TaskStore.is_decided_for`."""
        return self._do(sink_id, lambda rows: operations.is_decided_for(rows, generation, task, policy))

    def lease(self, sink_id: str, generation: int | None, task: TaskIdentity) -> Lease | None:
        """See `TaskStore.lease`."""
        return self._do(sink_id, lambda rows: operations.lease(rows, generation, task, uuid.uuid4().hex))

    def is_open(self, attempt_id: str) -> bool:
        """See `TaskStore.is_open`."""
        return self._of_attempt(attempt_id, lambda rows: operations.is_open(rows, attempt_id))

    def stage(self, attempt_id: str, steps: Steps) -> None:
        """See `TaskStore.stage`: refused, because there is no table."""
        _refuse_sql()

    def mark_prepared(
        self,
        attempt_id: str,
        prepared: Prepared,
        *,
        records: int,
        inside: Steps | None = None,
        last: Last | None = None,
    ) -> None:
        """See `TaskStore.mark_prepared`."""
        if inside is not None:
            _refuse_sql()
        self._of_attempt(attempt_id, lambda rows: operations.mark_prepared(rows, attempt_id, prepared, records), last)

    def prepared_states(self, attempt_ids: Collection[str]) -> dict[str, PreparedTxnState]:
        """See `SinkStore.prepared_states`."""
        return self._of_all(lambda rows: operations.prepared_states(rows, attempt_ids).answer(0))

    # ---- COMMIT, ABORT --------------------------------------------------------------------------------------

    def decide(
        self, decision: Decision, policy: OnNewCheckpoint, inside: Steps | None = None, last: Last | None = None
    ) -> Decided:
        """See `SinkStore.decide`."""
        if inside is not None:
            _refuse_sql()
        try:
            return self._do(decision.sink_id, lambda rows: operations.decide(rows, decision, policy), last)
        except OutcomeUnknownError as error:
            raise DecisionUnknownError(
                f"the topic of the commit store has not acknowledged a decision ({error}). It took effect or never "
                "will: the next plan finds out"
            ) from error

    def resolve(self, decision: Decision) -> Decided | None:
        """See `SinkStore.resolve`.

        The gate is moved on first: a copy of the decision that arrives later expects the version before it.
        """
        self._do(decision.sink_id, lambda _: operations.barrier())
        return self._do(decision.sink_id, lambda rows: operations.decided(rows, decision))

    def is_decided(self, sink_id: str, query_id: str, batch_id: int) -> bool:
        """See `SinkStore.is_decided`."""
        return self._do(sink_id, lambda rows: operations.is_decided(rows, query_id, batch_id))

    def condemn(self, sink_id: str) -> int:
        """See `OperatedStore.condemn`."""
        return self._do(sink_id, operations.condemn)

    def give_up(self, sink_id: str, *, query_id: str, batch_id: int, generation: int) -> None:
        """See `SinkStore.give_up`."""
        self._do(sink_id, lambda rows: operations.give_up(rows, query_id, batch_id, generation))

    # ---- FINISH ---------------------------------------------------------------------------------------------

    def claims(
        self, sink_id: str, verdicts: Collection[Verdict] = tuple(Verdict), *, durably: bool = True
    ) -> tuple[Claim, ...]:
        """See `ClaimStore.claims`; every row that is read is durable."""
        return self._do(sink_id, lambda rows: operations.claims(rows, verdicts))

    def still_wanted(
        self, wanted: Mapping[str, Verdict], attempt_ids: Collection[str], *, durably: bool = False
    ) -> dict[str, Prepared]:
        """See `ClaimStore.still_wanted`; every row that is read is durable."""
        return self._of_all(lambda rows: operations.still_wanted(rows, wanted, attempt_ids).answer(0))

    def named(self, states: Collection[PreparedTxnState], cluster_id: str) -> frozenset[PreparedTxnState]:
        """See `ClaimStore.named`."""
        wanted = set(map(str, states))
        found = self._of_all(
            lambda rows: {row.attempt_id: rows.prepared(row) for row in rows.attempts() if row.prepared_state in wanted}
        )
        return frozenset(row.state for row in found.values() if not row.is_elsewhere(cluster_id))

    def replace(self, sink_id: str, attempt_id: str, old: PreparedTxnState, new: Prepared) -> bool:
        """See `ClaimStore.replace`."""
        try:
            return self._do(sink_id, lambda rows: operations.replace(rows, attempt_id, old, new))
        except OutcomeUnknownError as error:
            raise DecisionUnknownError(
                f"the topic of the commit store has not acknowledged that {new.state} replaces {old} ({error}): the "
                "row of the attempt will show it"
            ) from error

    def record(self, sink_id: str, ended: Mapping[str, Ended]) -> dict[str, Ended]:
        """See `ClaimStore.record`."""
        return self._do(sink_id, lambda rows: operations.record(rows, ended))

    def mark_lost(self, sink_id: str, prepared: Mapping[str, PreparedTxnState], detail: str) -> int:
        """Record that Kafka has dropped these transactions of COMMITTING attempts; return their number."""
        return self._do(sink_id, lambda rows: operations.mark_lost(rows, prepared, detail))

    def acknowledge_lost(self, sink_id: str, query_id: str, batch_id: int, *, gone: str = "") -> bool:
        """See `CommitStore.acknowledge_lost`."""
        return self._do(sink_id, lambda rows: operations.acknowledge_lost(rows, query_id, batch_id, gone))

    # ---- orphans --------------------------------------------------------------------------------------------

    def orphans(self, sink_id: str, pairs: Mapping[str, str], cluster_id: str) -> dict[str, AttemptStatus | None]:
        """See `OrphanStore.orphans`."""
        if not pairs:
            return {}
        return self._do(sink_id, lambda rows: operations.orphans(rows, pairs, cluster_id))

    def retire_orphans(
        self, sink_id: str, pairs: Mapping[str, str], cluster_id: str
    ) -> dict[str, AttemptStatus | None]:
        """See `OrphanStore.retire_orphans`."""
        if not pairs:
            return {}
        return self._do(sink_id, lambda rows: operations.retire_orphans(rows, pairs, cluster_id))

    # ---- operators ------------------------------------------------------------------------------------------

    def sinks(self) -> list[SinkRow]:
        """Return every sink of the store, ordered by id."""
        return self._fresh(
            lambda state: [row for each in sorted(state.sinks) if (row := _rows(state, each).sink()) is not None]
        )

    def batches(self, sink_id: str, statuses: Collection[BatchStatus] = tuple(BatchStatus)) -> list[BatchRow]:
        """Return the decided batches of a sink, the newest first."""
        return self._read(sink_id, lambda rows: rows.batches(statuses))

    def attempts(self, sink_id: str, statuses: Collection[AttemptStatus] = tuple(AttemptStatus)) -> list[AttemptRow]:
        """Return the attempts of a sink, ordered by generation and partition."""
        return self._read(sink_id, lambda rows: rows.attempts(statuses))

    def newest_prepared(self, sink_id: str) -> dict[str, Prepared]:
        """See `OperatedStore.newest_prepared`."""
        return self._read(
            sink_id,
            lambda rows: {row.transactional_id: rows.prepared(row) for row in rows.attempts() if row.prepared_state},
        )

    def prune(self, sink_id: str, keep: int) -> int:
        """See `SinkStore.prune`. Also writes a snapshot and deletes the records that it makes superfluous."""
        deleted = self._do(sink_id, lambda rows: operations.prune(rows, keep))
        self._replica.compact()
        return deleted

    # ---- reading and sending --------------------------------------------------------------------------------

    def _do(self, sink_id: str, operation: Callable[[SinkRows], Step[AnswerT]], last: Last | None = None) -> AnswerT:
        return self._carry_out(lambda _: sink_id, operation, last)

    def _of_attempt(
        self, attempt_id: str, operation: Callable[[SinkRows], Step[AnswerT]], last: Last | None = None
    ) -> AnswerT:
        """Carry out an operation of the sink that has the attempt."""
        return self._carry_out(lambda state: _sink_of(state, attempt_id), operation, last)

    def _carry_out(
        self, sink_of: Callable[[StoreState], str], operation: Callable[[SinkRows], Step[AnswerT]], last: Last | None
    ) -> AnswerT:
        """Carry out an operation: until its record counts, or, if it needs none, in a state read after this call.

        `last` is called before a record is sent.
        """
        is_fresh = False
        while True:
            with self._replica.state() as state:
                tried = None if state is None else self._tried(state, sink_of(state), operation)
            if tried is None or (tried.update is None and not is_fresh):
                self._replica.refresh()
                is_fresh = True
                continue
            if tried.update is None:
                return tried.answer(self._replica.now_ms)
            if last is not None:
                last()
            counted_at_ms = self._replica.send(tried.update)
            if counted_at_ms is not None:
                return tried.answer(counted_at_ms)
            is_fresh = True  # the log was read up to that record, which was sent after the call

    def _tried(
        self, state: StoreState, sink_id: str, operation: Callable[[SinkRows], Step[AnswerT]]
    ) -> _Tried[AnswerT]:
        """Compute the operation in this state. `answer` raises its refusal, because the state may be too old."""
        try:
            if state.store_id is None:
                raise missing_store(self._log.name)
            step = operation(_rows(state, sink_id))
        except SinkError as error:
            return _Tried(_raising(error), None)
        if step.change is None:
            return _Tried(step.answer, None)
        return _Tried(step.answer, self._replica.update(state, sink_id, step.change))

    def _read(self, sink_id: str, read: Callable[[SinkRows], AnswerT]) -> AnswerT:
        return self._fresh(lambda state: read(_rows(state, sink_id)))

    def _of_all(self, read: Callable[[SinkRows], dict[str, AnswerT]]) -> dict[str, AnswerT]:
        """Return the results of all sinks together."""

        def of_each(state: StoreState) -> dict[str, AnswerT]:
            return {key: value for each in state.sinks for key, value in read(_rows(state, each)).items()}

        return self._fresh(of_each)

    def _fresh(self, read: Callable[[StoreState], AnswerT]) -> AnswerT:
        """Read a state that has all that was acknowledged before this call."""
        while True:
            self._replica.refresh()
            with self._replica.state() as state:
                if state is not None and state.store_id is None:
                    raise missing_store(self._log.name)
                if state is not None:
                    return read(state)


class _Tried(NamedTuple, Generic[AnswerT]):
    """An operation as computed in one state: the answer if the update counts, or without an update."""

    answer: Callable[[int], AnswerT]
    update: Update | None


def _raising(error: SinkError) -> Callable[[int], NoReturn]:
    def answer(_: int) -> NoReturn:
        raise error

    return answer


def _rows(state: StoreState, sink_id: str) -> SinkRows:
    return SinkRows(sink_id, state.sink(sink_id))


def _sink_of(state: StoreState, attempt_id: str) -> str:
    """Return the sink that has the attempt, or a name that no sink has."""
    return next((sink_id for sink_id, sink in state.sinks.items() if attempt_id in sink.rows(ATTEMPT)), "")


def _refuse_sql() -> NoReturn:
    raise SinkOptionError(NO_SQL)
