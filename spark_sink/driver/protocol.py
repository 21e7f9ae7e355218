"""PLAN, WRITE, COMMIT, ABORT and FINISH of a batch, without Spark.

The three processes of a query run them: the planner PLAN, a task worker WRITE, the committer COMMIT or ABORT. PLAN,
COMMIT and ABORT each end with FINISH. A process may die between any two statements, or be suspended there for any time.
The next PLAN cleans up after it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from dualwrite.errors import DualWriteError
from dualwrite.monkey_patches import assert_unpatched
from spark_sink.attempt.writing import PartitionWriter
from spark_sink.driver.batch_log import log_completed
from spark_sink.driver.finisher import CommitSummary, Finisher, Tally, waits_s
from spark_sink.driver.lake_debts import LakeDebts
from spark_sink.driver.orphans import OrphanWatch
from spark_sink.driver.phases import PhaseClock, PhaseTimes
from spark_sink.driver.telemetry import BatchTelemetry
from spark_sink.errors import BatchLostError, DecisionUnknownError, SinkError, SinkOptionError
from spark_sink.handoff import FilePlan, Plan, PlanTime, TaskIdentity, TaskResult
from spark_sink.options import NO_SQL, RequireDigest, SinkOptions
from spark_sink.pause_points import Pause, PausePoint
from spark_sink.sink_kafka import ProducerSinkKafka, SinkKafka
from spark_sink.store import rules
from spark_sink.store.attempt_states import Claim, Verdict
from spark_sink.store.sink_store import SinkStore, unavailable_means

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa

    from spark_sink.lake.lake import Lake
    from spark_sink.store.dual_table import DualTableWriter
    from spark_sink.store.tables import Decided, Decision, Planned

_log = logging.getLogger(__name__)

SqlFn = Callable[["sa.Connection", int], object]
"""A user's function that runs in the transaction of the decision; its second argument is the batch id."""

_PRUNE_EVERY: Final = 16
"""Generations between two prunings, so that retention costs little. Up to as many more batches are kept."""


class Sink:
    """One sink in one process. Only one thread at a time may use it."""

    def __init__(
        self,
        options: SinkOptions,
        store: SinkStore,
        kafka: SinkKafka,
        *,
        pause: Pause | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`pause` is called at each PausePoint; `sleep` waits between retries, in seconds."""
        self._options = options
        self._sink_id = options.sink_id
        self._store = store
        self._kafka = kafka
        self._pause = pause or _no_pause
        self._sleep = sleep
        self._table = _table_of(options)
        self._debts = LakeDebts(options.sink_id, store, self._pause, sleep)
        self._lake = _lake_of(options, store, self._debts)
        self._warned: set[str] = set()
        """Queries that run without digests."""
        self._partitions = PartitionWriter(options, store, kafka, self._table, self._pause)
        self._finisher = Finisher(
            options.sink_id, store, kafka, retries=options.commit_retries, pause=self._pause, sleep=sleep
        )
        self._telemetry = BatchTelemetry(options.sink_id, options.telemetry_setup)
        self._orphans = OrphanWatch(options.sink_id, store, kafka.transactions, options.on_orphans)

    @classmethod
    def open(cls, options: SinkOptions, *, pause: Pause | None = None) -> Self:
        """Open the sink with the commit store of this process. Connects to Kafka when needed.

        Raises SinkOptionError, and ConfigError in a process that gevent or eventlet has patched.
        """
        from spark_sink.store.opening import open_store

        assert_unpatched()
        return cls(options, open_store(options), ProducerSinkKafka(options, pause=pause), pause=pause)

    def close(self) -> None:
        """Close the Kafka connections; the database engine belongs to the process and stays open. Never raises."""
        self._kafka.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- PLAN -----------------------------------------------------------------------------------------------

    def plan(self, schema: pa.Schema, *, query_id: str | None, batch_id: int | None = None) -> Plan:
        """Fence older drivers, complete the transactions they left, and return the fencing token for one batch.

        Refusals come before older drivers are fenced. So a query whose id is not known here fences no driver until its
        first task has reported the id, and a decided batch job, given with its `batch_id`, fences none at all.

        Raises SinkOptionError, UnsafeDatabaseError, CheckpointMismatchError, BatchLostError, StoreUnavailableError, and
        SinkError if a transaction could not be completed in Kafka. Then the batch has not begun.
        """
        began_s = time.perf_counter()
        consequence = "The batch has not begun: start the query again when the commit store is available"
        suited: list[FilePlan] = []
        with unavailable_means(self._store, consequence):
            planned = self._begin_generation(schema, query_id, batch_id, suited)
        self._pause(PausePoint.AFTER_GENERATION)
        self._complete_what_was_left(planned)
        with unavailable_means(self._store, consequence):
            self._debts.settle()
            self._orphans.look(planned.generation)
        self._pause(PausePoint.AFTER_PLAN)
        plan_time = PlanTime(time.perf_counter() - began_s, time.time())
        files = suited[0] if suited else None
        return Plan(self._sink_id, planned.generation, planned.begins_late, plan_time, files, planned.undecided)

    def _begin_generation(
        self, schema: pa.Schema, query_id: str | None, batch_id: int | None, suited: list[FilePlan]
    ) -> Planned:
        """Begin a generation; append the plan of the tasks' files to `suited` if there is a table of files."""
        table, lake = self._table, self._lake

        def beforehand(engine: sa.Engine) -> None:
            if table is not None:
                table.create(engine, schema, replaces=query_id is not None)
            if lake is not None:
                suited.append(lake.plan_for(schema))

        self._store.examine()
        return self._store.plan(
            self._sink_id,
            query_id=query_id,
            batch_id=batch_id,
            on_new_checkpoint=self._options.on_new_checkpoint,
            beforehand=None if self._options.dual is None else beforehand,
            inside=None if table is None else table.discard_all,
        )

    def _complete_what_was_left(self, planned: Planned) -> None:
        began_s = time.perf_counter()
        tally = self._finish(planned.claims, tuple(Verdict), required=tuple(Verdict))
        if not planned.claims:
            return
        self._telemetry.completed_late(len(planned.in_doubt))
        has_table = self._options.dual is not None
        log_completed(planned.in_doubt, tally, time.perf_counter() - began_s, has_table=has_table)
        _log.info(
            "sink %s: completed the leftovers of an earlier batch: committed=%d repaired=%d aborted=%d",
            self._sink_id,
            tally.committed,
            tally.repaired,
            tally.aborted,
        )

    # ---- WRITE ----------------------------------------------------------------------------------------------

    def write(self, plan: Plan, task: TaskIdentity, rows: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write one partition in a transaction of its own, prepare it, and make the prepared state durable.

        Raises SinkFencedError, CheckpointMismatchError, AttemptCondemnedError, DualTableError, StoreUnavailableError
        and Kafka's errors. Then this attempt does not become visible, and Spark may try again.
        """
        try:
            with unavailable_means(self._store, "This attempt does not become visible, and Spark may try again"):
                return self._partitions.write(plan, task, rows)
        finally:
            self._store.rest()

    # ---- COMMIT ---------------------------------------------------------------------------------------------

    def commit(
        self,
        results: Sequence[TaskResult],
        *,
        query_id: str,
        batch_id: int,
        offsets_digest: str | None,
        content_digest: str | None = None,
        sql_fn: SqlFn | None = None,
    ) -> CommitSummary:
        """Decide the batch, and commit its Kafka transactions.

        `sql_fn(connection, batch_id)` runs in the transaction of the decision, and again if a deadlock undid that.

        Raises SinkFencedError, CheckpointMismatchError, AttemptCondemnedError, StoreUnavailableError, SinkError and
        the errors of `sql_fn`; then nothing is decided. Raises BatchLostError, and SinkError if Kafka did not complete
        a transaction; then the batch is decided and the next plan continues. Raises DecisionUnknownError if only the
        next plan can find out whether the batch is decided.
        """
        if sql_fn is not None:
            self.check_runs_sql()
        self._pause(PausePoint.COMMIT_START)
        clock = PhaseClock(results)
        decision = self._decision_of(query_id, batch_id, results, offsets_digest, content_digest)
        other = "" if sql_fn is None else " (or another database that sql_fn uses, if the error came from that one)"
        consequence = f"The batch is not decided, and no part of it is visible{other}: Spark replays it"
        with unavailable_means(self._store, consequence):
            self._check_still_prepared(decision, results)
            decided = self._decide(decision, sql_fn)
        clock.decided()
        self._telemetry.decided(decided, len(decision.winners))
        self._pause(PausePoint.AFTER_DECISION)
        tally = self._complete(decided)
        self._pause(PausePoint.AFTER_FINISH)
        clock.completed()
        self._telemetry.completed(decided, tally, clock.times)
        self._delete_old_batches(decision)
        return CommitSummary(
            decided_anew=decided.anew,
            records=decided.records,
            committed=tally.committed,
            repaired=tally.repaired,
            aborted=tally.aborted,
            unfinished=tally.unfinished,
            times=clock.times,
            content_digest=decided.content_digest,
        )

    def _complete(self, decided: Decided) -> Tally:
        """Complete the batch in Kafka and in the table of files; an error of one does not keep it from the other."""
        required = (Verdict.COMMIT,)
        if self._lake is None:
            return self._finish(decided.claims, tuple(Verdict), required=required)
        try:
            tally = self._finish(decided.claims, tuple(Verdict), required=required)
        except Exception:
            self._debts.try_to_pay()
            raise
        with unavailable_means(self._store, "The batch is decided: the next plan completes it"):
            self._debts.pay()
        return tally

    def check_runs_sql(self) -> None:
        """Raise SinkOptionError if the commit store has no transactions that could run a function of the user."""
        if not self._store.runs_sql:
            raise SinkOptionError(NO_SQL)

    def _check_still_prepared(self, decision: Decision, results: Sequence[TaskResult]) -> None:
        """Raise SinkError if Kafka has aborted a winner already, as brokers without two-phase commit do after a time.

        Between this check and phase two it may still abort one, which is then published again from the log.
        """
        bounded = [each.attempt_id for each in results if each.is_bounded and each.attempt_id is not None]
        prepared = self._store.prepared_states(bounded) if bounded else {}
        gone = self._kafka.not_open(prepared) if prepared else ()
        if gone:
            raise SinkError(
                f"batch {decision.batch_id} of the query {decision.query_id} is not decided: Kafka has aborted "
                f"{len(gone)} of its {len(decision.winners)} transactions ({', '.join(sorted(gone)[:5])}), as brokers "
                f"without two-phase commit do txn.timeoutMs={self._options.txn_timeout_ms} after the first record. "
                "No part of the batch is visible, and Spark replays it: make txn.timeoutMs longer than a batch takes "
                "from its first record to its commit, or the batches smaller"
            )

    def _decision_of(
        self,
        query_id: str,
        batch_id: int,
        results: Sequence[TaskResult],
        offsets_digest: str | None,
        content_digest: str | None,
    ) -> Decision:
        policy = self._options.require_digest
        if policy is RequireDigest.TRUE:
            rules.check_digest(query_id, batch_id, offsets_digest)
        if offsets_digest is None and not rules.is_job(query_id) and query_id not in self._warned:
            self._warned.add(query_id)
            _log.warning(
                "sink %s: no digest of the source offsets of the query %s is kept, because its checkpoint was not "
                "found, or cannot be read by the driver's Python: a batch that was decided before is not skipped, "
                "except with requireDigest=false. Set the option checkpointLocation to a path that Python can read",
                self._sink_id,
                query_id,
            )
        needs_digest = policy is not RequireDigest.FALSE
        return rules.decision_of(
            self._sink_id,
            query_id,
            batch_id,
            results,
            offsets_digest,
            content_digest=content_digest,
            needs_digest=needs_digest,
        )

    def _decide(self, decision: Decision, sql_fn: SqlFn | None) -> Decided:
        lake, chosen = self._lake if decision.winners else None, None
        if lake is not None and not self.is_decided(decision.query_id, decision.batch_id):
            chosen = lake.check_decision(decision)

        def inside(connection: sa.Connection) -> None:
            if self._table is not None and decision.winners:
                self._table.move(connection, decision.winners, rows=decision.staged_rows)
            if lake is not None:
                lake.choose(connection, decision, chosen)
            if sql_fn is not None:
                sql_fn(connection, decision.batch_id)

        steps = None if self._table is None and lake is None and sql_fn is None else inside
        try:
            return self._store.decide(
                decision,
                self._options.on_new_checkpoint,
                steps,
                last=lambda: self._pause(PausePoint.INSIDE_DECISION),
            )
        except DecisionUnknownError as unknown:
            return self._resolved(decision, unknown)

    def _resolved(self, decision: Decision, unknown: DecisionUnknownError) -> Decided:
        for wait_s in waits_s(self._options.commit_retries):
            self._sleep(wait_s)
            try:
                decided = self._store.resolve(decision)
            except self._store.errors:
                continue
            if decided is not None:
                return decided
            raise SinkError(
                f"batch {decision.batch_id} of the query {decision.query_id} is not decided: the "
                f"{self._store.medium} of the commit store did not get it. No part of it is visible, and Spark replays "
                "it"
            ) from unknown
        raise unknown

    def _delete_old_batches(self, decision: Decision) -> None:
        if decision.generation is None or decision.generation % _PRUNE_EVERY:
            return
        failures: tuple[type[Exception], ...] = (DualWriteError, *self._store.errors)
        try:
            self._store.prune(self._sink_id, self._options.retention_batches)
        except failures:
            _log.warning(
                "old batches of the sink %s could not be deleted; trying again later", self._sink_id, exc_info=True
            )

    # ---- ABORT, FINISH --------------------------------------------------------------------------------------

    def abort(
        self, results: Sequence[TaskResult], *, query_id: str | None, batch_id: int, generation: int | None = None
    ) -> None:
        """Give up an undecided batch; leave a decided one alone. Never raises, which would hide the first error.

        Without results, the query id and `generation` identify the attempts of this driver. Without them too, the next
        plan cleans up, because the attempts may belong to another driver that has taken over since.
        """
        given = query_id or next((result.query_id for result in results), None)
        planned = {result.generation for result in results} or {generation}
        try:
            self._abort(given, batch_id, planned - {None})
        except Exception:
            _log.warning(
                "batch %s of the sink %s could not be cleaned up; the next plan cleans up",
                batch_id,
                self._sink_id,
                exc_info=True,
            )

    def _abort(self, query_id: str | None, batch_id: int, generations: Collection[int | None]) -> None:
        if query_id is None or not generations:
            _log.info("batch %s of the sink %s was given up; the next plan cleans up after it", batch_id, self._sink_id)
            return
        for generation in generations:
            assert generation is not None
            self._store.give_up(self._sink_id, query_id=query_id, batch_id=batch_id, generation=generation)
        self._pause(PausePoint.AFTER_CONDEMNATION)
        self._finish(None, (Verdict.ABORT,), required=())

    def finish(self) -> CommitSummary:
        """Complete decided and condemned transactions in Kafka. May run any time, twice, or in two processes at once.

        Raises BatchLostError, StoreUnavailableError, and SinkError if Kafka did not complete a transaction.
        """
        with unavailable_means(self._store, "Decided batches stay decided: the next plan completes it"):
            tally = self._finish(None, tuple(Verdict), required=tuple(Verdict))
            self._debts.settle()
        self._pause(PausePoint.AFTER_FINISH)
        return CommitSummary(
            decided_anew=False,
            records=0,
            committed=tally.committed,
            repaired=tally.repaired,
            aborted=tally.aborted,
            unfinished=tally.unfinished,
            times=PhaseTimes(),
        )

    def _finish(
        self, claims: Sequence[Claim] | None, verdicts: Collection[Verdict], *, required: Collection[Verdict]
    ) -> Tally:
        """Complete claims as `Finisher.finish` does, and report it."""
        try:
            tally = self._finisher.finish(claims, verdicts, required=required)
        except BatchLostError:
            self._telemetry.lost()
            raise
        self._telemetry.ended(tally)
        return tally

    def is_decided(self, query_id: str, batch_id: int) -> bool:
        """Return whether the batch is decided.

        Raises CheckpointMismatchError if the store no longer has the batch and a newer one is decided.
        """
        return self._store.is_decided(self._sink_id, query_id, batch_id)


def _no_pause(point: PausePoint) -> None:
    """Continue at once; only tests pause."""


def _lake_of(options: SinkOptions, store: SinkStore, debts: LakeDebts) -> Lake | None:
    if options.dual is None or options.dual.lake is None:
        return None
    from spark_sink.lake.lake import Lake

    return Lake(options.dual, options.dual.lake, options.sink_id, store.lake, debts.publisher)


def _table_of(options: SinkOptions) -> DualTableWriter | None:
    if options.dual is None or options.dual.lake is not None:
        return None
    from spark_sink.store.dual_table import DualTableWriter

    store = options.store
    return DualTableWriter(
        options.dual, sink_id=options.sink_id, store_schema=store.schema, create_tables=store.create_tables
    )
