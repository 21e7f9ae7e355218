"""`CommitStore`: the SQL database that decides batches, and keeps the sinks, decisions and attempts.

A batch is decided when it has a row in `dw_batch`. One transaction writes that row, changes the winners to COMMITTING,
and moves the rows of the dual table. Every method is one transaction. Those that change which attempts may win hold the
lock of the sink's row from their first statement on; a task that takes a lease shares the lock. So a generation that
was read under the lock is the sink's generation until the transaction ends.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.sqlalchemy.deciding import examine
from spark_sink.errors import SinkError, StoreWentBackError
from spark_sink.handoff import BatchName, TaskIdentity
from spark_sink.options import OnNewCheckpoint, StoreOptions
from spark_sink.store import rules
from spark_sink.store.attempt_states import (
    EVENTS,
    TERMINAL,
    VERDICTS,
    AttemptEvent,
    AttemptStatus,
    Claim,
    Ended,
    Ending,
    Prepared,
    Verdict,
    after,
    before,
)
from spark_sink.store.connections import engine_for, rest
from spark_sink.store.lake_ledger import LakeLedger
from spark_sink.store.retired_slots import RetiredSlots
from spark_sink.store.sink_store import Last, Steps
from spark_sink.store.staging_tables import drop_staging, owned_tables
from spark_sink.store.table_catalog import TableName
from spark_sink.store.tables import (
    DETAIL_LENGTH,
    AttemptRow,
    BatchInDoubt,
    BatchRow,
    BatchStatus,
    Decided,
    Decision,
    Lease,
    Planned,
    SinkRow,
    StoreTables,
    attempt_row,
    batch_row,
    sink_row,
)
from spark_sink.store.transactions import Intact, StoreTransactions, is_unreachable, locking

_LEASE_TRIES: Final = 50


class CommitStore:
    """A `SinkStore` on one engine. Threads may share it; processes may not."""

    errors: Final = (SQLAlchemyError,)
    """See `ReachableStore.errors`."""

    medium: Final = "database"
    """See `ReachableStore.medium`."""

    runs_sql: Final = True
    """See `SinkStore.runs_sql`."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        schema: str | None = None,
        create_tables: bool = True,
        accept: Collection[str] = (),
    ) -> None:
        """`create_tables`: whether the first plan of this object creates missing tables.

        `accept` names the accepted weaknesses of the database (`dualwrite/decisions/database_safety.py`).
        """
        self._engine = engine
        self._tables = StoreTables(schema)
        self._sink, self._batch, self._attempt = self._tables.sink, self._tables.batch, self._tables.attempt
        self._retired = RetiredSlots(self._tables)
        self._row = [column for column in self._attempt.c if column.name != "manifest"]
        """The columns of an AttemptRow. A manifest may be long, and is read only where it is used."""
        self._transactions = StoreTransactions(engine, lambda: self._tables.check(engine), self._leave_no_trace)
        self.lake: Final = LakeLedger(self._transactions, self._tables)
        self._may_create = create_tables
        self._accept = accept
        self._is_ready = False

    @classmethod
    def open(cls, options: StoreOptions) -> Self:
        """Open the store on this process's engine for the options. Raises SinkOptionError."""
        return cls(
            engine_for(options), schema=options.schema, create_tables=options.create_tables, accept=options.accept
        )

    @property
    def engine(self) -> sa.Engine:
        return self._engine

    def unreachable(self, error: Exception) -> str | None:
        """See `ReachableStore.unreachable`."""
        if isinstance(error, DBAPIError) and is_unreachable(error):
            return f"the commit store's database cannot be reached ({error.orig})"
        return None

    def now(self) -> dt.datetime:
        """Return the time of the database's clock."""
        return self._transactions.read(_now)

    @property
    def schema(self) -> str | None:
        """The schema of the tables; None for the database's default."""
        return self._tables.schema

    def rest(self) -> None:
        """Close the idle connections, because this process needs none for a while."""
        rest(self._engine)

    def create_tables(self) -> None:
        """Create missing tables. Safe if several processes do it at once."""
        self._tables.create(self._engine)

    # ---- PLAN -----------------------------------------------------------------------------------------------

    def examine(self) -> None:
        """Check once, by the same rule as the writers of dual writes, whether the database keeps its commits.

        Warns of a weakness that only the loss of a machine exposes. Raises UnsafeDatabaseError for one that normal
        operation or a crash of the database's process exposes, unless it was accepted. Changes nothing.
        """
        examine(self._engine, self._accept, lambda name: f"the option commitStore.accept={name}")

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
        if beforehand is not None and not self._is_decided(sink_id, query_id, batch_id, on_new_checkpoint):
            beforehand(self._engine)
        self._make_ready()

        def steps(connection: sa.Connection) -> Planned | None:
            sink = self._locked_sink(connection, sink_id)
            if sink is None:
                return None
            self._check_plan(connection, sink_id, sink.query_id, query_id, batch_id, on_new_checkpoint)
            if self._is_job_decided(connection, sink_id, query_id, batch_id):
                self._transactions.make_durable(connection)
                return self._planned(connection, sink_id, None, self._live(connection, sink_id))
            generation = sink.generation + 1
            if query_id is None:
                self._transactions.make_durable(connection)
                return self._planned(connection, sink_id, generation, self._live(connection, sink_id), begins_late=True)
            live = self._begin(connection, sink, query_id, on_new_checkpoint, inside)
            newest = None if batch_id is not None else self._newest(connection, sink_id, query_id)
            undecided = rules.first_undecided(query_id, batch_id, newest)
            return self._planned(connection, sink_id, generation, live, undecided=undecided)

        while (planned := self._transactions.write(steps)) is None:
            self._add_sink(sink_id)
        return planned

    def _is_decided(
        self, sink_id: str, query_id: str | None, batch_id: int | None, on_new_checkpoint: OnNewCheckpoint
    ) -> bool:
        """Return whether a plan needs no tables, because its job is decided. Changes nothing.

        Raises CheckpointMismatchError if the sink belongs to another query, BatchLostError while a lost batch of the
        sink is not acknowledged, and SinkError for tables that are missing or too old.
        """
        self._make_ready()

        def steps(connection: sa.Connection) -> bool:
            known = connection.scalar(sa.select(self._sink.c.query_id).where(self._sink.c.sink_id == sink_id))
            self._check_plan(connection, sink_id, known, query_id, batch_id, on_new_checkpoint)
            return self._is_job_decided(connection, sink_id, query_id, batch_id)

        return self._transactions.read(steps)

    def begin(
        self,
        sink_id: str,
        generation: int | None,
        query_id: str,
        on_new_checkpoint: OnNewCheckpoint,
        inside: Steps | None,
    ) -> None:
        """See `TaskStore.begin`."""
        query = sa.select(self._sink.c.generation).where(self._sink.c.sink_id == sink_id)
        if self._transactions.read(lambda connection: connection.scalar(query)) == generation:
            return

        def steps(connection: sa.Connection) -> None:
            sink = self._locked_sink(connection, sink_id)
            current = None if sink is None else sink.generation
            if rules.check_may_begin(sink_id, current, generation) and sink is not None:
                self._check_plan(connection, sink_id, sink.query_id, query_id, None, on_new_checkpoint)
                self._begin(connection, sink, query_id, on_new_checkpoint, inside)

        self._transactions.write(steps)

    def _make_ready(self) -> None:
        if self._is_ready:
            return
        if self._may_create:
            self.create_tables()
        else:
            self._tables.check(self._engine)
        self._is_ready = True

    def _check_plan(
        self,
        connection: sa.Connection,
        sink_id: str,
        known: str | None,
        query_id: str | None,
        batch_id: int | None,
        on_new_checkpoint: OnNewCheckpoint,
    ) -> None:
        rules.check_nothing_lost(sink_id, self._unacknowledged(connection, sink_id), self.schema)
        rules.query_to_claim(sink_id, known, query_id, on_new_checkpoint)
        if query_id is not None and not self._is_job_decided(connection, sink_id, query_id, batch_id):
            rules.check_job(sink_id, known, query_id, on_new_checkpoint)

    def _is_job_decided(
        self, connection: sa.Connection, sink_id: str, query_id: str | None, batch_id: int | None
    ) -> bool:
        if query_id is None or batch_id is None or not rules.is_job(query_id):
            return False
        return self._found(connection, sink_id, query_id, batch_id) is not None

    def _begin(
        self,
        connection: sa.Connection,
        sink: SinkRow,
        query_id: str,
        on_new_checkpoint: OnNewCheckpoint,
        inside: Steps | None,
    ) -> list[AttemptRow]:
        """Begin the next generation; return the live attempts, none of which can win any more."""
        claimed = rules.query_to_claim(sink.sink_id, sink.query_id, query_id, on_new_checkpoint)
        self._renew(connection, sink, claimed)
        live = self._live(connection, sink.sink_id)
        if any(attempt.status in rules.CONDEMNABLE for attempt in live):
            self._change(connection, AttemptEvent.CONDEMN, *self._live_in(sink.sink_id))
            live = self._live(connection, sink.sink_id)
        if inside is not None:
            inside(connection)
        return live

    def _renew(self, connection: sa.Connection, sink: SinkRow, claimed: str | None) -> None:
        values = {"generation": sink.generation + 1, "updated_at": sa.func.now()}
        if claimed is not None:
            values["query_id"] = claimed
        connection.execute(sa.update(self._sink).where(self._sink.c.sink_id == sink.sink_id).values(values))

    def _add_sink(self, sink_id: str) -> None:
        try:
            self._transactions.write(
                lambda connection: connection.execute(sa.insert(self._sink).values(sink_id=sink_id, generation=0))
            )
        except IntegrityError:
            return  # another planner has just added it

    def _unacknowledged(self, connection: sa.Connection, sink_id: str) -> list[BatchRow]:
        t = self._batch.c
        lost = (t.sink_id == sink_id, t.status == BatchStatus.LOST, t.acknowledged_at.is_(None))
        query = sa.select(self._batch).where(*lost).order_by(t.generation.desc(), t.batch_id.desc())
        return [batch_row(row) for row in connection.execute(query)]

    def _planned(
        self,
        connection: sa.Connection,
        sink_id: str,
        generation: int | None,
        live: list[AttemptRow],
        *,
        begins_late: bool = False,
        undecided: BatchName | None = None,
    ) -> Planned:
        in_doubt = self._in_doubt(connection, sink_id) if live else ()
        return Planned(generation, rules.claims_of(live), in_doubt, begins_late, undecided)

    def _in_doubt(self, connection: sa.Connection, sink_id: str) -> tuple[BatchInDoubt, ...]:
        t = self._batch.c
        query = sa.select(self._batch).where(t.sink_id == sink_id, t.status == BatchStatus.COMMIT)
        rows = [batch_row(row) for row in connection.execute(query.order_by(t.generation, t.batch_id))]
        return tuple(BatchInDoubt(row, _age_ms(connection, row.decided_at)) for row in rows)

    # ---- WRITE ----------------------------------------------------------------------------------------------

    def is_decided_for(self, sink_id: str, generation: int | None, task: TaskIdentity, policy: OnNewCheckpoint) -> bool:
        """See `TaskStore.is_decided_for`."""
        decisions = self._decided_from(sink_id, task.query_id, task.batch_id)
        nearest = sa.select(sa.func.min(self._batch.c.batch_id)).where(*decisions).scalar_subquery()
        query = sa.select(self._sink.c.generation, self._sink.c.query_id, nearest).where(
            self._sink.c.sink_id == sink_id
        )
        row = self._transactions.read(lambda connection: connection.execute(query).one_or_none())
        current, known, decided = (None, None, None) if row is None else row
        rules.check_generation(sink_id, current, generation)
        rules.query_to_claim(sink_id, known, task.query_id, policy)
        return rules.is_decided(task.query_id, task.batch_id, decided)

    def lease(self, sink_id: str, generation: int | None, task: TaskIdentity) -> Lease | None:
        """See `TaskStore.lease`."""
        for _ in range(_LEASE_TRIES - 1):
            try:
                return self._transactions.write(lambda connection: self._lease(connection, sink_id, generation, task))
            except IntegrityError:
                continue  # another attempt of the same partition has just taken the slot
        return self._transactions.write(lambda connection: self._lease(connection, sink_id, generation, task))

    def _lease(
        self, connection: sa.Connection, sink_id: str, generation: int | None, task: TaskIdentity
    ) -> Lease | None:
        # The lock makes plans and decisions wait; the next statements see their changes from before it was granted.
        query = sa.select(self._sink.c.generation).where(self._sink.c.sink_id == sink_id)
        rules.check_generation(sink_id, connection.scalar(locking(query, connection, shared=True)), generation)
        nearest, leasable, leased = self._leasable(connection, sink_id, task)
        if rules.is_decided(task.query_id, task.batch_id, nearest):
            return None
        transactional_id = leasable.free(f"{sink_id}-{task.partition_id}-", leased)
        attempt_id = uuid.uuid4().hex
        values = {
            "attempt_id": attempt_id,
            "sink_id": sink_id,
            "query_id": task.query_id,
            "batch_id": task.batch_id,
            "generation": generation,
            "partition_id": task.partition_id,
            "task_attempt_id": task.task_attempt_id,
            "host": task.host,
            "txn_id": transactional_id,
            "live_txn_id": transactional_id,
            "status": AttemptStatus.OPEN,
        }
        connection.execute(sa.insert(self._attempt).values(values))
        return Lease(attempt_id, transactional_id)

    def _leasable(
        self, connection: sa.Connection, sink_id: str, task: TaskIdentity
    ) -> tuple[int | None, rules.Leasable, frozenset[str]]:
        """Return, by one statement, the nearest decided batch, the partition's slots, and its leased ids."""
        decisions = self._decided_from(sink_id, task.query_id, task.batch_id)
        nearest = sa.select(sa.func.min(self._batch.c.batch_id)).where(*decisions)
        first, spare = self._retired.queries(sink_id, task.partition_id)
        of_partition = (*self._live_in(sink_id), self._attempt.c.partition_id == task.partition_id)
        leased = sa.select(sa.literal_column("3"), sa.literal_column("0"), self._attempt.c.live_txn_id)
        query = sa.union_all(
            sa.select(sa.literal_column("0"), nearest.scalar_subquery(), sa.null()),
            sa.select(sa.literal_column("1"), first.scalar_subquery(), sa.null()),
            sa.select(sa.literal_column("2"), spare.scalar_subquery(), sa.null()),
            leased.where(*of_partition),
        )
        rows = connection.execute(query).all()
        numbers = {kind: number for kind, number, _ in rows}
        leasable = rules.Leasable(numbers[1] or 0, numbers[2])
        return numbers[0], leasable, frozenset(leased_id for kind, _, leased_id in rows if kind == 3)

    def is_open(self, attempt_id: str) -> bool:
        """See `TaskStore.is_open`."""
        query = sa.select(self._attempt.c.status).where(self._attempt.c.attempt_id == attempt_id)
        return self._transactions.read(lambda connection: connection.scalar(query)) == AttemptStatus.OPEN

    def stage(self, attempt_id: str, steps: Steps) -> None:
        """See `TaskStore.stage`."""
        query = sa.select(self._attempt.c.status).where(self._attempt.c.attempt_id == attempt_id)

        def locked(connection: sa.Connection) -> None:
            if connection.scalar(locking(query, connection)) != AttemptStatus.OPEN:
                raise rules.condemned(attempt_id)
            steps(connection)

        self._transactions.write(locked)

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

        def steps(connection: sa.Connection) -> None:
            if inside is not None:
                inside(connection)
            if last is not None:
                last()
            # Last, because Postgres responds to the COMMIT of a failed transaction with a rollback and no error.
            values = _columns_of(prepared) | {"n_records": records}
            if not self._change(connection, AttemptEvent.PREPARE, self._attempt.c.attempt_id == attempt_id, **values):
                raise rules.condemned(attempt_id)

        self._transactions.write(steps)

    def prepared_states(self, attempt_ids: Collection[str]) -> dict[str, PreparedTxnState]:
        """See `SinkStore.prepared_states`."""
        t = self._attempt.c
        query = sa.select(t.txn_id, t.prepared_state).where(
            t.attempt_id.in_(list(attempt_ids)), t.status == after(AttemptEvent.PREPARE)
        )
        rows = self._transactions.read(lambda connection: connection.execute(query).all())
        return {transactional_id: PreparedTxnState(state) for transactional_id, state in rows}

    # ---- COMMIT, ABORT --------------------------------------------------------------------------------------

    def decide(
        self, decision: Decision, policy: OnNewCheckpoint, inside: Steps | None = None, last: Last | None = None
    ) -> Decided:
        """See `SinkStore.decide`. `inside` and `last` run again if a deadlock undid the transaction."""
        return self._transactions.decide(
            lambda connection, intact: self._decide(connection, decision, policy, _followed_by(intact, inside, last)),
            lambda: self.resolve(decision),
        )

    def _decide(self, connection: sa.Connection, decision: Decision, policy: OnNewCheckpoint, inside: Steps) -> Decided:
        sink = self._locked_sink(connection, decision.sink_id)
        current = None if sink is None else sink.generation
        rules.check_generation(decision.sink_id, current, decision.generation)
        claimed = rules.query_to_claim(
            decision.sink_id, None if sink is None else sink.query_id, decision.query_id, policy
        )
        stands = self._found(connection, decision.sink_id, decision.query_id, decision.batch_id)
        if stands is not None:
            newest = self._newest(connection, decision.sink_id, decision.query_id)
            rules.check_decided(stands, decision, self._named(connection, decision.winners), newest)
            self._transactions.make_durable(connection)
            claims = rules.claims_of(self._live(connection, decision.sink_id))
            return Decided(False, stands.records, claims, stands.content_digest)
        return self._decide_anew(connection, decision, claimed, inside)

    def _decide_anew(
        self, connection: sa.Connection, decision: Decision, claimed: str | None, inside: Steps
    ) -> Decided:
        live = self._live(connection, decision.sink_id)
        losers = rules.losers(decision, live)
        t = self._attempt.c
        if decision.winners:
            self._change(connection, AttemptEvent.CHOOSE, t.attempt_id.in_(decision.winners))
        if losers:
            self._change(connection, AttemptEvent.CONDEMN, t.attempt_id.in_(losers))
        inside(connection)
        if claimed is not None:
            mine = self._sink.c.sink_id == decision.sink_id
            connection.execute(sa.update(self._sink).where(mine).values(query_id=claimed))
        self._insert_decision(connection, decision, nothing_left=not live)
        return Decided(True, decision.records, rules.claims_of(rules.as_decided(decision, live)))

    def _insert_decision(self, connection: sa.Connection, decision: Decision, *, nothing_left: bool) -> None:
        """Insert the decision, as the last statement, only in the transaction that chose the winners.

        `inside` may have lost that transaction silently: the driver begins another one, or Postgres turns COMMIT into
        ROLLBACK. Then this statement finds no chosen winner, or fails.
        """
        t = self._attempt.c
        chosen = sa.select(sa.func.count()).where(
            t.attempt_id.in_(decision.winners), t.status == after(AttemptEvent.CHOOSE)
        )
        values: dict[str, Any] = {
            "sink_id": decision.sink_id,
            "query_id": decision.query_id,
            "batch_id": decision.batch_id,
            "status": BatchStatus.DONE if nothing_left else BatchStatus.COMMIT,
            "n_attempts": len(decision.winners),
            "n_records": decision.records,
            "offsets_digest": decision.offsets_digest,
            "content_digest": decision.content_digest,
        }
        row = [sa.literal(value, self._batch.c[name].type) for name, value in values.items()]
        select = sa.select(*row, self._sink.c.generation, sa.func.now() if nothing_left else sa.null()).where(
            self._sink.c.sink_id == decision.sink_id, chosen.scalar_subquery() == len(decision.winners)
        )
        insert = sa.insert(self._batch).from_select([*values, "generation", "done_at"], select)
        if connection.execute(insert, execution_options={"preserve_rowcount": True}).rowcount != 1:
            raise SinkError(
                f"a statement inside the transaction that decides batch {decision.batch_id} of the query "
                f"{decision.query_id} has ended it, and another transaction has begun; nothing was decided: leave "
                "COMMIT and ROLLBACK to the sink"
            )

    def resolve(self, decision: Decision) -> Decided | None:
        """See `SinkStore.resolve`.

        Waits for the lock of the sink's row until the lost transaction is committed or rolled back.
        """

        def steps(connection: sa.Connection) -> Decided | None:
            self._locked_sink(connection, decision.sink_id)
            stands = self._found(connection, decision.sink_id, decision.query_id, decision.batch_id)
            if stands is None:
                return None
            newest = self._newest(connection, decision.sink_id, decision.query_id)
            rules.check_resolved(stands, decision, self._named(connection, decision.winners), newest)
            return Decided(True, stands.records, rules.claims_of(self._live(connection, decision.sink_id)))

        return self._transactions.read_durably(steps)

    def is_decided(self, sink_id: str, query_id: str, batch_id: int) -> bool:
        """See `SinkStore.is_decided`."""

        def steps(connection: sa.Connection) -> bool:
            return self._found(connection, sink_id, query_id, batch_id) is not None

        return self._transactions.read(steps) and self._transactions.read_durably(steps)

    def condemn(self, sink_id: str) -> int:
        """See `OperatedStore.condemn`.

        The attempts of a decision have neither status, so they stay. A running driver is not fenced (only `plan` does
        that): it continues, and finds its attempts condemned.
        """

        def steps(connection: sa.Connection) -> int:
            self._locked_sink(connection, sink_id)
            return self._change(connection, AttemptEvent.CONDEMN, *self._live_in(sink_id))

        return self._transactions.write(steps)

    def give_up(self, sink_id: str, *, query_id: str, batch_id: int, generation: int) -> None:
        """See `SinkStore.give_up`.

        Spark gives a batch up while some of its tasks still run. A late task must not open another transaction, which
        would stay open until the query is started again.
        """

        def steps(connection: sa.Connection) -> None:
            sink = self._locked_sink(connection, sink_id)
            if sink is None:
                return
            a = self._attempt.c
            part = (a.query_id == query_id, a.batch_id == batch_id, a.generation == generation)
            self._change(connection, AttemptEvent.CONDEMN, *self._live_in(sink_id), *part)
            if sink.generation == generation and self._found(connection, sink_id, query_id, batch_id) is None:
                self._renew(connection, sink, None)

        self._transactions.write(steps)

    # ---- FINISH ---------------------------------------------------------------------------------------------

    def claims(
        self, sink_id: str, verdicts: Collection[Verdict] = tuple(Verdict), *, durably: bool = True
    ) -> tuple[Claim, ...]:
        """See `ClaimStore.claims`. Raises NotDurableError if they might still be lost."""

        def steps(connection: sa.Connection) -> tuple[Claim, ...]:
            return tuple(
                claim for claim in rules.claims_of(self._live(connection, sink_id)) if claim.verdict in verdicts
            )

        shown = self._transactions.read(steps)
        return self._transactions.read_durably(steps) if shown and durably else shown

    def still_wanted(
        self, wanted: Mapping[str, Verdict], attempt_ids: Collection[str], *, durably: bool = False
    ) -> dict[str, Prepared]:
        """See `ClaimStore.still_wanted`. `durably` raises NotDurableError if a prepared state might still be lost."""
        t = self._attempt.c
        query = sa.select(t.attempt_id, t.status, t.prepared_state, t.manifest).where(
            t.attempt_id.in_(list(attempt_ids))
        )
        read = self._transactions.read_durably if durably else self._transactions.read
        rows = read(lambda connection: connection.execute(query).all())
        return {
            attempt_id: Prepared(PreparedTxnState(state), manifest or "")
            for attempt_id, status, state, manifest in rows
            if VERDICTS.get(AttemptStatus(status)) is wanted[attempt_id]
        }

    def named(self, states: Collection[PreparedTxnState], cluster_id: str) -> frozenset[PreparedTxnState]:
        """See `ClaimStore.named`."""
        t = self._attempt.c
        query = sa.select(t.prepared_state, t.manifest).where(t.prepared_state.in_(list(map(str, states))))
        found = self._transactions.read(lambda connection: connection.execute(query).all())
        rows = [Prepared(PreparedTxnState(state), manifest or "") for state, manifest in found]
        return frozenset(row.state for row in rows if not row.is_elsewhere(cluster_id))

    def replace(self, sink_id: str, attempt_id: str, old: PreparedTxnState, new: Prepared) -> bool:
        """See `ClaimStore.replace`."""
        named = self._attempt.c.attempt_id == attempt_id
        committing = self._attempt.c.status == after(AttemptEvent.CHOOSE)
        update = sa.update(self._attempt).where(named, committing, self._attempt.c.prepared_state == str(old))
        values = _columns_of(new) | {"updated_at": sa.func.now()}

        def steps(connection: sa.Connection, intact: Intact) -> bool:
            self._locked_sink(connection, sink_id)
            changed = connection.execute(update.values(values)).rowcount == 1
            if changed:
                self._retired.retire(connection, sink_id, [attempt_id])
            elif is_there := has(connection):
                self._transactions.make_durable(connection)
            intact()
            return changed or is_there

        def has(connection: sa.Connection) -> bool:
            found = sa.select(sa.func.count()).where(
                named, committing, self._attempt.c.prepared_state == str(new.state)
            )
            return connection.scalar(found) == 1

        def resolve(connection: sa.Connection) -> bool:
            self._locked_sink(connection, sink_id)  # waits until the lost transaction is committed or rolled back
            return has(connection)

        return self._transactions.decide(steps, lambda: self._transactions.read_durably(resolve))

    def record(self, sink_id: str, ended: Mapping[str, Ended]) -> dict[str, Ended]:
        """See `ClaimStore.record`.

        A batch with no transaction left becomes DONE, one that lost a transaction becomes LOST. The ids of aborted and
        lost attempts are retired.
        """
        judged = {attempt_id: end for attempt_id, end in ended.items() if end.ending in _NAMES_ITS_PAIR}
        aborted = [attempt_id for attempt_id, end in ended.items() if end.ending is Ending.ABORTED]

        def steps(connection: sa.Connection) -> set[str]:
            self._locked_sink(connection, sink_id)
            current = self._committing(connection, judged)
            right = {each: end for each, end in judged.items() if current.get(each) == str(end.judged)}
            if committed := [each for each, end in right.items() if end.ending is Ending.COMMITTED]:
                self._change(connection, EVENTS[Ending.COMMITTED], self._attempt.c.attempt_id.in_(committed))
            if aborted:
                self._change(connection, EVENTS[Ending.ABORTED], self._attempt.c.attempt_id.in_(aborted))
                self._retired.retire(connection, sink_id, aborted)
            for attempt_id, end in ended.items():
                if isinstance(end.error, StoreWentBackError):
                    self._note_went_back(connection, attempt_id, str(end.error))
            lost = {each: end for each, end in right.items() if end.ending is Ending.LOST}
            for attempt_id, end in lost.items():
                self._lose(connection, sink_id, attempt_id, str(end.error))
            self._close_batches(connection, sink_id, lost=bool(lost))
            return set(current) - set(right)

        outdated = self._transactions.write(steps)
        return {each: Ended(Ending.LEFT, end.error) if each in outdated else end for each, end in ended.items()}

    def _committing(self, connection: sa.Connection, attempt_ids: Collection[str]) -> dict[str, str]:
        """Return the prepared states of the attempts that are still to be committed. The sink's row must be locked."""
        if not attempt_ids:
            return {}
        t = self._attempt.c
        live = (t.attempt_id.in_(list(attempt_ids)), t.status == after(AttemptEvent.CHOOSE))
        rows = connection.execute(sa.select(t.attempt_id, t.prepared_state).where(*live))
        return {row.attempt_id: row.prepared_state for row in rows}

    def _note_went_back(self, connection: sa.Connection, attempt_id: str, detail: str) -> None:
        """Note why an attempt with an abort verdict must not be aborted; only such an attempt can be acknowledged."""
        a = self._attempt.c
        update = sa.update(self._attempt).where(a.attempt_id == attempt_id, a.status == after(AttemptEvent.CONDEMN))
        connection.execute(update.values(detail=detail[:DETAIL_LENGTH], updated_at=sa.func.now()))

    def _lose(self, connection: sa.Connection, sink_id: str, attempt_id: str, detail: str) -> int:
        named = self._attempt.c.attempt_id == attempt_id
        self._retired.retire(connection, sink_id, [attempt_id])
        return self._change(connection, AttemptEvent.LOSE, named, detail=detail[:DETAIL_LENGTH])

    def _close_batches(self, connection: sa.Connection, sink_id: str, *, lost: bool) -> None:
        a, b = self._attempt.c, self._batch.c
        of_batch = (a.sink_id == sink_id, a.query_id == b.query_id, a.batch_id == b.batch_id)
        decided = sa.update(self._batch).where(b.sink_id == sink_id, b.status == BatchStatus.COMMIT)
        if lost:
            has_lost = sa.exists().where(*of_batch, a.status == AttemptStatus.LOST)
            connection.execute(decided.where(has_lost).values(status=BatchStatus.LOST))
        is_open = sa.exists().where(*of_batch, a.live_txn_id.is_not(None))
        connection.execute(decided.where(~is_open).values(status=BatchStatus.DONE, done_at=sa.func.now()))

    # ---- orphans --------------------------------------------------------------------------------------------

    def orphans(self, sink_id: str, pairs: Mapping[str, str], cluster_id: str) -> dict[str, AttemptStatus | None]:
        """See `OrphanStore.orphans`."""
        if not pairs:
            return {}
        return self._transactions.read(lambda connection: self._orphans(connection, sink_id, pairs, cluster_id))

    def retire_orphans(
        self, sink_id: str, pairs: Mapping[str, str], cluster_id: str
    ) -> dict[str, AttemptStatus | None]:
        """See `OrphanStore.retire_orphans`."""

        def steps(connection: sa.Connection) -> dict[str, AttemptStatus | None]:
            if self._locked_sink(connection, sink_id) is None:
                raise SinkError(
                    f"the commit store has no sink {sink_id!r}, so its orphans cannot be recognised; nothing was "
                    "changed. If this is the right database, start the application once, which creates the sink"
                )
            found = self._orphans(connection, sink_id, pairs, cluster_id)
            self._retired.retire_orphans(connection, sink_id, found)
            return found

        return self._transactions.read_durably(steps) if pairs else {}

    def _orphans(
        self, connection: sa.Connection, sink_id: str, pairs: Mapping[str, str], cluster_id: str
    ) -> dict[str, AttemptStatus | None]:
        live = {attempt.transactional_id for attempt in self._live(connection, sink_id)}
        strangers = {each: pair for each, pair in pairs.items() if each not in live}
        t = self._attempt.c
        query = sa.select(t.txn_id, t.prepared_state, t.manifest, t.status).where(
            t.sink_id == sink_id, t.txn_id.in_(list(strangers)), t.prepared_state.in_(list(strangers.values()))
        )
        rows = connection.execute(query).all() if strangers else ()
        known = {
            each: AttemptStatus(status)
            for each, pair, manifest, status in rows
            if strangers[each] == pair and not Prepared(PreparedTxnState(pair), manifest or "").is_elsewhere(cluster_id)
        }
        return {each: known.get(each) for each in strangers}

    # ---- operators ------------------------------------------------------------------------------------------

    def sinks(self) -> list[SinkRow]:
        """See `OperatedStore.sinks`."""
        query = sa.select(self._sink).order_by(self._sink.c.sink_id)
        return self._transactions.read(lambda connection: [sink_row(row) for row in connection.execute(query)])

    def batches(self, sink_id: str, statuses: Collection[BatchStatus] = tuple(BatchStatus)) -> list[BatchRow]:
        """See `OperatedStore.batches`."""
        t = self._batch.c
        query = sa.select(self._batch).where(t.sink_id == sink_id, t.status.in_(list(statuses)))
        ordered = query.order_by(t.generation.desc(), t.batch_id.desc())
        return self._transactions.read(lambda connection: [batch_row(row) for row in connection.execute(ordered)])

    def attempts(self, sink_id: str, statuses: Collection[AttemptStatus] = tuple(AttemptStatus)) -> list[AttemptRow]:
        """See `OperatedStore.attempts`."""
        t = self._attempt.c
        query = sa.select(*self._row).where(t.sink_id == sink_id, t.status.in_(list(statuses)))
        ordered = query.order_by(t.generation, t.partition_id, t.created_at)
        return self._transactions.read(lambda connection: [attempt_row(row) for row in connection.execute(ordered)])

    def prune(self, sink_id: str, keep: int) -> int:
        """Delete all but the newest `keep` decided batches of each query, and of all batch jobs together.

        At least one batch stays, and so does each batch that is not done, or is lost and not acknowledged. Also deletes
        the attempts of the deleted batches, and attempts that were aborted `keep` generations ago. Returns the number
        of deleted batches.
        """
        batches = self.batches(sink_id)
        old_batches = rules.expired(batches, keep)
        if not old_batches:
            return 0
        a, b = self._attempt.c, self._batch.c
        of_query = sa.and_(a.query_id == sa.bindparam("of_query"), a.batch_id == sa.bindparam("of_batch"))
        old = sa.and_(a.status == AttemptStatus.ABORTED, a.generation < batches[0].generation - keep)
        over = (a.sink_id == sink_id, a.live_txn_id.is_(None))
        batch = (b.query_id == sa.bindparam("of_query"), b.batch_id == sa.bindparam("of_batch"))
        keys = [{"of_query": row.query_id, "of_batch": row.batch_id} for row in old_batches]

        def steps(connection: sa.Connection) -> None:
            connection.execute(sa.delete(self._attempt).where(*over, of_query), keys)
            connection.execute(sa.delete(self._attempt).where(*over, old))
            connection.execute(sa.delete(self._batch).where(b.sink_id == sink_id, *batch), keys)

        self._transactions.write(steps)
        return len(old_batches)

    def staging_tables(self, sink_id: str) -> list[TableName]:
        """Return the staging tables in the store's schema that are marked as this sink's."""
        owners = self._transactions.read(lambda connection: owned_tables(connection, self._tables.schema))
        return sorted((table for table, owner in owners.items() if owner == sink_id), key=str)

    def drop_staging(self, sink_id: str, *, min_age_ms: int) -> list[TableName]:
        """Drop the staging tables of a sink whose application has ended; return them.

        Raises SinkError, and drops nothing, if the sink has attempts that are not completed, or if one of its rows has
        changed within `min_age_ms` by the database's clock. If the application runs after all, its next plan creates
        the tables that it needs; a running batch fails, and is written again.
        """

        def steps(connection: sa.Connection) -> list[TableName]:
            sink = self._locked_sink(connection, sink_id)
            if sink is None:
                raise SinkError(f"the commit store has no sink {sink_id!r}; nothing was dropped")
            rules.check_ended(
                sink_id,
                self._live(connection, sink_id),
                self._quiet_ms(connection, sink),
                min_age_ms=min_age_ms,
                schema=self.schema,
            )
            owners = owned_tables(connection, self._tables.schema)
            own = sorted((table for table, owner in owners.items() if owner == sink_id), key=str)
            for table in own:
                drop_staging(connection, table)
            return own

        return self._transactions.write(steps)

    def _quiet_ms(self, connection: sa.Connection, sink: SinkRow) -> int:
        """Return the time since any row of the sink last changed."""
        a, b = self._attempt.c, self._batch.c
        newest = [
            sa.select(sa.func.max(a.updated_at)).where(a.sink_id == sink.sink_id),
            sa.select(sa.func.max(sa.func.coalesce(b.done_at, b.decided_at))).where(b.sink_id == sink.sink_id),
        ]
        changes = [sink.updated_at, *(connection.scalar(query) for query in newest)]
        latest: dt.datetime = max(change for change in changes if change is not None)
        return _age_ms(connection, latest)

    def mark_lost(self, sink_id: str, prepared: Mapping[str, PreparedTxnState], detail: str) -> int:
        """Record that Kafka has dropped these transactions of COMMITTING attempts; return their number.

        FINISH does this by itself if the log or the coordinator shows it. Call it by hand if neither remembers.
        `prepared` has the prepared state that you have judged, by attempt id: a row that has another one by now was
        published again, and is left alone.
        """

        def steps(connection: sa.Connection) -> int:
            self._locked_sink(connection, sink_id)
            current = self._committing(connection, prepared)
            lost = [each for each, state in prepared.items() if current.get(each) == str(state)]
            for attempt_id in lost:
                self._lose(connection, sink_id, attempt_id, detail)
            self._close_batches(connection, sink_id, lost=True)
            return len(lost)

        return self._transactions.write(steps)

    def acknowledge_lost(
        self, sink_id: str, query_id: str, batch_id: int, *, owed: bool = False, gone: str = ""
    ) -> bool:
        """Let the query continue after a LOST batch, whose records stay lost; or after one whose decision is lost.

        A batch whose files a table can no longer get may be LOST too; with `owed`, also one whose files the table has
        not got yet. A batch whose decision is lost has attempts that are to be aborted although Kafka has committed
        them, or has a newer transaction of their ids (StoreWentBackError). Its records stay in Kafka, and the batch is
        written again. Its other attempts with an abort verdict may be open in Kafka, and are left alone.

        `gone` is the id of a Kafka cluster that is gone: attempts of the batch that were prepared there are given up,
        and the decided ones among them are LOST. Return whether there was such a batch, or such an attempt.
        """
        t, a = self._batch.c, self._attempt.c
        named = (t.sink_id == sink_id, t.query_id == query_id, t.batch_id == batch_id)
        lost = (t.status == BatchStatus.LOST, t.acknowledged_at.is_(None))
        update = sa.update(self._batch).where(*named, *lost).values(acknowledged_at=sa.func.now())
        of_batch = (a.sink_id == sink_id, a.query_id == query_id, a.batch_id == batch_id)

        def steps(connection: sa.Connection) -> bool:
            self._locked_sink(connection, sink_id)
            files = self.lake.acknowledge(connection, sink_id, query_id, batch_id, owed=owed)
            given_up = self._give_up_in(gone, connection, sink_id, of_batch) if gone else False
            if connection.execute(update).rowcount == 1 or files or given_up:
                return True
            condemned = (*of_batch, a.status.in_(before(AttemptEvent.ABORT)), a.detail.is_not(None))
            went_back = connection.scalars(sa.select(a.attempt_id).where(*condemned)).all()
            self._retired.retire(connection, sink_id, went_back)
            return self._change(connection, AttemptEvent.ABORT, a.attempt_id.in_(went_back)) > 0

        return self._transactions.write(steps)

    def _give_up_in(
        self, cluster_id: str, connection: sa.Connection, sink_id: str, of_batch: Sequence[sa.ColumnElement[bool]]
    ) -> bool:
        """Give up the decided and condemned attempts of a batch that were prepared in a cluster that is gone."""
        a = self._attempt.c
        query = sa.select(a.attempt_id, a.prepared_state, a.manifest).where(*of_batch, a.status.in_(list(VERDICTS)))
        given_up = [
            attempt_id
            for attempt_id, state, manifest in connection.execute(query)
            if Prepared(PreparedTxnState(state), manifest or "").prepared_in == cluster_id
        ]
        self._retired.retire(connection, sink_id, given_up)
        for event in (AttemptEvent.LOSE, AttemptEvent.ABORT):
            self._change(connection, event, a.attempt_id.in_(given_up), detail=rules.given_up_in(cluster_id))
        self._close_batches(connection, sink_id, lost=True)
        return bool(given_up)

    # ---- inside a transaction -------------------------------------------------------------------------------

    def _leave_no_trace(self, connection: sa.Connection) -> None:
        name = f"witness/{uuid.uuid4().hex}"  # no sink has a slash in its id
        connection.execute(sa.insert(self._sink).values(sink_id=name, generation=0))
        connection.execute(sa.delete(self._sink).where(self._sink.c.sink_id == name))

    def _locked_sink(self, connection: sa.Connection, sink_id: str) -> SinkRow | None:
        query = sa.select(self._sink).where(self._sink.c.sink_id == sink_id)
        row = connection.execute(locking(query, connection)).one_or_none()
        return None if row is None else sink_row(row)

    def _decided_from(self, sink_id: str, query_id: str, batch_id: int) -> Sequence[sa.ColumnElement[bool]]:
        t = self._batch.c
        return (t.sink_id == sink_id, t.query_id == query_id, t.batch_id >= batch_id)

    def _found(self, connection: sa.Connection, sink_id: str, query_id: str, batch_id: int) -> BatchRow | None:
        """Return the decision of the batch, or of a higher version of its batch job.

        Raises CheckpointMismatchError if it was deleted and a newer one of its query exists.
        """
        decisions = self._decided_from(sink_id, query_id, batch_id)
        query = sa.select(self._batch).where(*decisions).order_by(self._batch.c.batch_id).limit(1)
        row = connection.execute(query).one_or_none()
        decided = rules.is_decided(query_id, batch_id, None if row is None else row.batch_id)
        return batch_row(row) if row is not None and decided else None

    def _newest(self, connection: sa.Connection, sink_id: str, query_id: str) -> int | None:
        """Return the last decided batch of a query."""
        t = self._batch.c
        of_query = (t.sink_id == sink_id, t.query_id == query_id)
        newest: int | None = connection.scalar(sa.select(sa.func.max(t.batch_id)).where(*of_query))
        return newest

    def _live_in(self, sink_id: str) -> Sequence[sa.ColumnElement[bool]]:
        return (self._attempt.c.sink_id == sink_id, self._attempt.c.live_txn_id.is_not(None))

    def _live(self, connection: sa.Connection, sink_id: str) -> list[AttemptRow]:
        query = sa.select(*self._row).where(*self._live_in(sink_id)).order_by(self._attempt.c.partition_id)
        return [attempt_row(row) for row in connection.execute(query)]

    def _named(self, connection: sa.Connection, attempt_ids: Collection[str]) -> list[AttemptRow]:
        if not attempt_ids:
            return []
        query = sa.select(*self._row).where(self._attempt.c.attempt_id.in_(list(attempt_ids)))
        return [attempt_row(row) for row in connection.execute(query)]

    def _change(
        self, connection: sa.Connection, event: AttemptEvent, *where: sa.ColumnElement[bool], **values: Any
    ) -> int:
        """Apply `event` to those of the attempts whose status permits it; return their number."""
        status = after(event)
        changed: dict[str, Any] = {"status": status, "updated_at": sa.func.now(), **values}
        if status in TERMINAL:
            changed["live_txn_id"] = None
        permitted = self._attempt.c.status.in_(before(event))
        return connection.execute(sa.update(self._attempt).where(permitted, *where).values(changed)).rowcount


def _now(connection: sa.Connection) -> dt.datetime:
    now: dt.datetime = connection.execute(sa.select(sa.func.now())).scalar_one()
    return now


def _age_ms(connection: sa.Connection, since: dt.datetime) -> int:
    """Return the time since then, by the database's clock."""
    return max(0, round((_now(connection) - since) / dt.timedelta(milliseconds=1)))


_NAMES_ITS_PAIR: Final = frozenset({Ending.COMMITTED, Ending.LOST})


def _columns_of(prepared: Prepared) -> dict[str, Any]:
    return {"prepared_state": str(prepared.state), "manifest": prepared.manifest or None}


def _followed_by(intact: Intact, inside: Steps | None, last: Last | None) -> Steps:
    def steps(connection: sa.Connection) -> None:
        if inside is not None:
            inside(connection)
        if last is not None:
            last()
        intact()

    return steps
