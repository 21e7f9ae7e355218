"""PLAN, WRITE, COMMIT, ABORT and FINISH of a batch, without Spark.

The three processes of a query carry them out: the planner PLAN, a task worker WRITE, the committer COMMIT or ABORT;
each of PLAN, COMMIT and ABORT ends with FINISH. A process may die between any two statements, and sleep for any time
between them. What it leaves, the next PLAN puts right.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from sqlalchemy.exc import DBAPIError

from spark_sink.attempt.staged_rows import StagedRows
from spark_sink.driver.finisher import Finisher, waits_s
from spark_sink.errors import DecisionUnknownError, SinkError
from spark_sink.handoff import Plan, TaskIdentity, TaskOutcome, TaskResult
from spark_sink.options import SinkOptions
from spark_sink.pause_points import Pause, PausePoint
from spark_sink.producer_side import ProducerSide
from spark_sink.sink_kafka import SinkKafka, TaskTransaction, Verdict
from spark_sink.store import rules
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.dual_table import DualTableWriter
from spark_sink.store.rows import Decided, Decision, Lease, Planned
from spark_sink.store.transactions import unavailable_means

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa

_log = logging.getLogger(__name__)

SqlFn = Callable[["sa.Connection", int], object]
"""What a caller does in the decision's transaction; its second argument is the batch id."""

_PRUNE_EVERY: Final = 16
"""Generations; so that retention costs little, and up to as many batches more than it says are kept."""


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
        kafka: SinkKafka,
        *,
        pause: Pause | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`pause` is called at each PausePoint; `sleep` waits between tries, in seconds."""
        self._options = options
        self._sink_id = options.sink_id
        self._store = store
        self._kafka = kafka
        self._pause = pause or _go_on
        self._sleep = sleep
        self._table = _table_of(options)
        self._finisher = Finisher(
            options.sink_id, store, kafka, retries=options.commit_retries, pause=self._pause, sleep=sleep
        )

    @classmethod
    def open(cls, options: SinkOptions, *, pause: Pause | None = None) -> Self:
        """With the store and the Kafka connections of this process, which are made when they are first needed.

        Raises SinkOptionError.
        """
        return cls(options, CommitStore.open(options.store), ProducerSide(options, pause=pause), pause=pause)

    def close(self) -> None:
        """Let go of Kafka; the database engine is the process's, and stays. Never raises."""
        self._kafka.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- PLAN -----------------------------------------------------------------------------------------------

    def plan(self, schema: pa.Schema, *, query_id: str | None) -> Plan:
        """Fence older drivers, end what they left, and give the token for one batch.

        Raises SinkOptionError, CheckpointMismatchError, BatchLostError, StoreUnavailableError, and SinkError where
        Kafka could not be brought to end what was left; then the batch has not begun.
        """
        with unavailable_means("The batch has not begun: start the query again when the database is back"):
            planned = self._begin_generation(schema, query_id)
        self._pause(PausePoint.AFTER_GENERATION)
        self._finisher.finish(planned.claims, tuple(Verdict), required=tuple(Verdict))
        self._pause(PausePoint.AFTER_PLAN)
        return Plan(self._sink_id, planned.generation)

    def _begin_generation(self, schema: pa.Schema, query_id: str | None) -> Planned:
        if self._table is not None:
            self._table.create(self._store.engine, schema)
        return self._store.plan(
            self._sink_id,
            query_id=query_id,
            on_new_checkpoint=self._options.on_new_checkpoint,
            inside=None if self._table is None else self._table.discard_all,
        )

    # ---- WRITE ----------------------------------------------------------------------------------------------

    def write(self, plan: Plan, task: TaskIdentity, rows: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write one partition under a transaction of its own, and make it durable that it can be committed.

        Raises SinkFencedError, CheckpointMismatchError, AttemptCondemnedError, DualTableError, StoreUnavailableError
        and Kafka's errors; then this attempt does not become visible, and Spark may try again.
        """
        with unavailable_means("This attempt does not become visible, and Spark may try again"):
            return self._write(plan, task, rows)

    def _write(self, plan: Plan, task: TaskIdentity, rows: Iterator[pa.RecordBatch]) -> TaskResult:
        policy = self._options.on_new_checkpoint
        if self._store.is_decided_for(self._sink_id, plan.generation, task, policy):
            return _without_attempt(TaskOutcome.SKIPPED, plan, task)
        filled = (batch for batch in rows if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return _without_attempt(TaskOutcome.EMPTY, plan, task)
        lease = self._store.lease(self._sink_id, plan.generation, task)
        if lease is None:
            return _without_attempt(TaskOutcome.SKIPPED, plan, task)
        self._pause(PausePoint.AFTER_LEASE)
        return self._write_leased(plan, task, lease, first, filled)

    def _write_leased(
        self, plan: Plan, task: TaskIdentity, lease: Lease, first: pa.RecordBatch, others: Iterator[pa.RecordBatch]
    ) -> TaskResult:
        staged = self._staged_rows(lease, task)
        transaction = self._kafka.open(lease.transactional_id, lambda: self._still_mine(lease))
        try:
            self._pause(PausePoint.AFTER_INIT)
            self._send(transaction, staged, first)
            for batch in others:
                self._send(transaction, staged, batch)
            self._prepare(transaction, staged, lease)
        except BaseException:
            transaction.abort()
            raise
        finally:
            transaction.close()
        self._pause(PausePoint.AFTER_PREPARED)
        return TaskResult(
            outcome=TaskOutcome.PREPARED,
            generation=plan.generation,
            query_id=task.query_id,
            batch_id=task.batch_id,
            partition_id=task.partition_id,
            attempt_id=lease.attempt_id,
            records=transaction.records,
            bytes=transaction.bytes,
            staged_rows=0 if staged is None else staged.count,
        )

    def _staged_rows(self, lease: Lease, task: TaskIdentity) -> StagedRows | None:
        if self._table is None:
            return None
        return StagedRows(self._store, self._table, lease.attempt_id, task.partition_id)

    def _still_mine(self, lease: Lease) -> bool:
        self._pause(PausePoint.AFTER_TAKE_OVER)
        mine = self._store.is_open(lease.attempt_id)
        self._pause(PausePoint.BEFORE_COMPLETION)
        return mine

    def _send(self, transaction: TaskTransaction, staged: StagedRows | None, batch: pa.RecordBatch) -> None:
        transaction.write(batch)
        if staged is not None:
            staged.add(batch)
        self._pause(PausePoint.AFTER_SEND)

    def _prepare(self, transaction: TaskTransaction, staged: StagedRows | None, lease: Lease) -> None:
        state = transaction.prepare()
        self._pause(PausePoint.AFTER_PREPARE)

        def inside(connection: sa.Connection) -> None:
            if staged is not None:
                staged.stage_rest(connection)
            self._pause(PausePoint.BEFORE_PREPARED)

        self._store.mark_prepared(lease.attempt_id, state, records=transaction.records, inside=inside)

    # ---- COMMIT ---------------------------------------------------------------------------------------------

    def commit(
        self,
        results: Sequence[TaskResult],
        *,
        query_id: str,
        batch_id: int,
        offsets_digest: str | None,
        sql_fn: SqlFn | None = None,
    ) -> CommitSummary:
        """Decide the batch, and commit its Kafka transactions.

        `sql_fn(connection, batch_id)` runs in the decision's transaction; once more where a deadlock undid that. Raises
        SinkFencedError, CheckpointMismatchError, AttemptCondemnedError, StoreUnavailableError, SinkError and what
        `sql_fn` raises, after which nothing is decided; BatchLostError, and SinkError where Kafka did not answer, after
        which the decision stands and the next plan goes on; DecisionUnknownError, after which the next plan finds out.
        """
        self._pause(PausePoint.COMMIT_START)
        began_s = time.perf_counter()
        decision = rules.decision_of(self._sink_id, query_id, batch_id, results, offsets_digest)
        asked = "" if sql_fn is None else " (or another database, which sql_fn asks, if the error is of that one)"
        with unavailable_means(f"The batch is not decided, and nothing of it is visible{asked}: Spark replays it"):
            decided = self._decide(decision, sql_fn)
        decided_s = time.perf_counter()
        self._pause(PausePoint.AFTER_DECISION)
        tally = self._finisher.finish(decided.claims, tuple(Verdict), required=(Verdict.COMMIT,))
        self._pause(PausePoint.AFTER_FINISH)
        ended_s = time.perf_counter()
        self._forget_old_batches(decision)
        return CommitSummary(
            decided_anew=decided.anew,
            records=decided.records,
            committed=tally.committed,
            aborted=tally.aborted,
            unfinished=tally.unfinished,
            decision_ms=(decided_s - began_s) * 1000,
            phase_two_ms=(ended_s - decided_s) * 1000,
        )

    def _decide(self, decision: Decision, sql_fn: SqlFn | None) -> Decided:
        def inside(connection: sa.Connection) -> None:
            if self._table is not None and decision.winners:
                self._table.move(connection, decision.winners, rows=decision.staged_rows)
            if sql_fn is not None:
                sql_fn(connection, decision.batch_id)
            self._pause(PausePoint.INSIDE_DECISION)

        try:
            return self._store.decide(decision, self._options.on_new_checkpoint, inside)
        except DecisionUnknownError as unknown:
            return self._resolved(decision, unknown)

    def _resolved(self, decision: Decision, unknown: DecisionUnknownError) -> Decided:
        for wait_s in waits_s(self._options.commit_retries):
            self._sleep(wait_s)
            try:
                decided = self._store.resolve(decision)
            except DBAPIError:
                continue
            if decided is not None:
                return decided
            raise SinkError(
                f"batch {decision.batch_id} of the query {decision.query_id} is not decided: the database lost its "
                "COMMIT. Nothing of it is visible, and Spark replays it"
            ) from unknown
        raise unknown

    def _forget_old_batches(self, decision: Decision) -> None:
        if decision.generation is None or decision.generation % _PRUNE_EVERY:
            return
        try:
            self._store.prune(self._sink_id, self._options.retention_batches)
        except DBAPIError:
            _log.warning(
                "old batches of the sink %s were not forgotten; tried again later", self._sink_id, exc_info=True
            )

    # ---- ABORT, FINISH --------------------------------------------------------------------------------------

    def abort(self, results: Sequence[TaskResult], *, query_id: str | None, batch_id: int) -> None:
        """Give up an undecided batch; of a decided one nothing is touched. Never raises: it would hide the first error.

        Without results it needs the query id to know whose attempts to give up.
        """
        try:
            self._abort(results, query_id or next((result.query_id for result in results), None), batch_id)
        except Exception:
            _log.warning(
                "batch %s of the sink %s could not be cleaned up; the next plan does",
                batch_id,
                self._sink_id,
                exc_info=True,
            )

    def _abort(self, results: Sequence[TaskResult], query_id: str | None, batch_id: int) -> None:
        if query_id is None:
            _log.info("batch %s of the sink %s was given up; the next plan cleans up", batch_id, self._sink_id)
            return
        generations: Collection[int | None] = {result.generation for result in results} or {None}
        for generation in generations:
            self._store.give_up(self._sink_id, query_id=query_id, batch_id=batch_id, generation=generation)
        self._pause(PausePoint.AFTER_CONDEMNATION)
        self._finisher.finish(None, (Verdict.ABORT,), required=())

    def finish(self) -> CommitSummary:
        """End in Kafka what is decided or condemned. May run at any time, twice, or in two processes at once.

        Raises BatchLostError, and SinkError where Kafka could not be brought to it.
        """
        began_s = time.perf_counter()
        tally = self._finisher.finish(None, tuple(Verdict), required=tuple(Verdict))
        self._pause(PausePoint.AFTER_FINISH)
        return CommitSummary(
            decided_anew=False,
            records=0,
            committed=tally.committed,
            aborted=tally.aborted,
            unfinished=tally.unfinished,
            decision_ms=0.0,
            phase_two_ms=(time.perf_counter() - began_s) * 1000,
        )

    def is_decided(self, query_id: str, batch_id: int) -> bool:
        """Whether the batch was decided. Raises CheckpointMismatchError where newer ones are, and it is not known."""
        return self._store.is_decided(self._sink_id, query_id, batch_id)


def _go_on(point: PausePoint) -> None:
    """Nobody wants to stop here."""


def _table_of(options: SinkOptions) -> DualTableWriter | None:
    if options.dual is None:
        return None
    store = options.store
    return DualTableWriter(
        options.dual, sink_id=options.sink_id, store_schema=store.schema, create_tables=store.create_tables
    )


def _without_attempt(outcome: TaskOutcome, plan: Plan, task: TaskIdentity) -> TaskResult:
    return TaskResult(
        outcome=outcome,
        generation=plan.generation,
        query_id=task.query_id,
        batch_id=task.batch_id,
        partition_id=task.partition_id,
        attempt_id=None,
        records=0,
        bytes=0,
    )
