"""Where a batch is decided: sinks, decisions and attempts in a SQL database.

A batch is decided when it has a row in `dw_batch`; that row, the winners' change to COMMITTING and the rows of the
dual table appear in one transaction. Every method is one transaction. Those that change who may win hold the lock of
the sink's row from their first statement on; a task that takes a lease shares it. So a generation, once read in there,
is the sink's until the transaction ends.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dualwrite.prepared_state import PreparedTxnState
from spark_sink.attempt.states import TERMINAL, AttemptEvent, AttemptStatus, after, before
from spark_sink.errors import SinkError
from spark_sink.handoff import TaskIdentity
from spark_sink.options import OnNewCheckpoint, StoreOptions
from spark_sink.sink_kafka import Claim, Ended, Ending, Verdict
from spark_sink.store import rules
from spark_sink.store.rows import AttemptRow, BatchRow, BatchStatus, Decided, Decision, Lease, Planned, SinkRow
from spark_sink.store.tables import DETAIL_LENGTH, StoreTables
from spark_sink.store.transactions import Intact, StoreTransactions, engine_for, locking

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
        if self._may_create:
            self.create_tables()
            self._may_create = False

        def steps(connection: sa.Connection) -> Planned | None:
            sink = self._locked_sink(connection, sink_id)
            if sink is None:
                return None
            rules.check_nothing_lost(sink_id, self._unacknowledged(connection, sink_id))
            claimed = rules.query_to_claim(sink_id, sink.query_id, query_id, on_new_checkpoint)
            self._renew(connection, sink, claimed)
            live = self._live(connection, sink_id)
            if any(attempt.status in rules.CONDEMNABLE for attempt in live):
                self._change(connection, AttemptEvent.CONDEMN, *self._live_in(sink_id))
                live = self._live(connection, sink_id)
            if inside is not None:
                inside(connection)
            return Planned(sink.generation + 1, _claims(live))

        while (planned := self._transactions.write(steps)) is None:
            self._add_sink(sink_id)
        return planned

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
            return  # another planner added it in the same instant, which is as good

    def _unacknowledged(self, connection: sa.Connection, sink_id: str) -> list[BatchRow]:
        t = self._batch.c
        lost = (t.sink_id == sink_id, t.status == BatchStatus.LOST, t.acknowledged_at.is_(None))
        return [_batch_row(row) for row in connection.execute(sa.select(self._batch).where(*lost))]

    # ---- WRITE ----------------------------------------------------------------------------------------------

    def is_decided_for(self, sink_id: str, generation: int, task: TaskIdentity, policy: OnNewCheckpoint) -> bool:
        """Whether the task's batch is decided. Raises SinkFencedError, CheckpointMismatchError."""
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

    def lease(self, sink_id: str, generation: int, task: TaskIdentity) -> Lease | None:
        """An OPEN attempt with a transactional id of its own; None where the batch was decided in the meantime.

        Raises SinkFencedError.
        """
        for _ in range(_LEASE_TRIES - 1):
            try:
                return self._transactions.write(lambda connection: self._lease(connection, sink_id, generation, task))
            except IntegrityError:
                continue  # another attempt of the same partition took the slot in this instant
        return self._transactions.write(lambda connection: self._lease(connection, sink_id, generation, task))

    def _lease(self, connection: sa.Connection, sink_id: str, generation: int, task: TaskIdentity) -> Lease | None:
        # The lock lets plans and decisions wait. What they did before it was granted, the next statements see.
        query = sa.select(self._sink.c.generation).where(self._sink.c.sink_id == sink_id)
        rules.check_generation(sink_id, connection.scalar(locking(query, connection, shared=True)), generation)
        if self._found(connection, sink_id, task.query_id, task.batch_id) is not None:
            return None
        prefix = f"{sink_id}-{task.partition_id}-"
        of_partition = (*self._live_in(sink_id), self._attempt.c.partition_id == task.partition_id)
        leased = set(connection.scalars(sa.select(self._attempt.c.live_txn_id).where(*of_partition)))
        transactional_id = f"{prefix}{rules.smallest_free_slot(prefix, leased)}"
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

    def is_open(self, attempt_id: str) -> bool:
        """Whether the attempt is still its task's own."""
        query = sa.select(self._attempt.c.status).where(self._attempt.c.attempt_id == attempt_id)
        return self._transactions.read(lambda connection: connection.scalar(query)) == AttemptStatus.OPEN

    def stage(self, attempt_id: str, steps: Steps) -> None:
        """Carry out `steps` in a transaction in which the attempt stays OPEN. Raises AttemptCondemnedError."""
        query = sa.select(self._attempt.c.status).where(self._attempt.c.attempt_id == attempt_id)

        def locked(connection: sa.Connection) -> None:
            if connection.scalar(locking(query, connection)) != AttemptStatus.OPEN:
                raise rules.condemned(attempt_id)
            steps(connection)

        self._transactions.write(locked)

    def mark_prepared(
        self, attempt_id: str, state: PreparedTxnState, *, records: int, inside: Steps | None = None
    ) -> None:
        """Make the prepared state durable, in one transaction with `inside`. Raises AttemptCondemnedError."""

        def steps(connection: sa.Connection) -> None:
            if inside is not None:
                inside(connection)
            # Last, because a Postgres transaction that has failed answers COMMIT with a rollback and no error.
            values = {"prepared_state": str(state), "n_records": records}
            if not self._change(connection, AttemptEvent.PREPARE, self._attempt.c.attempt_id == attempt_id, **values):
                raise rules.condemned(attempt_id)

        self._transactions.write(steps)

    # ---- COMMIT, ABORT --------------------------------------------------------------------------------------

    def decide(self, decision: Decision, policy: OnNewCheckpoint, inside: Steps | None = None) -> Decided:
        """Take the decision, or find that it stands; then the batch is committed, whatever happens to this process.

        `inside` is carried out in the transaction, unless the decision stands; once more where a deadlock undid it.
        Raises SinkFencedError, CheckpointMismatchError, AttemptCondemnedError, SinkError and what `inside` raises, and
        the database's errors; then nothing is decided. Raises DecisionUnknownError where only `resolve` can tell.
        """
        return self._transactions.decide(
            lambda connection, intact: self._decide(connection, decision, policy, _followed_by(intact, inside)),
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
            rules.check_decided(stands, decision, self._named(connection, decision.winners))
            return Decided(False, stands.records, _claims(self._live(connection, decision.sink_id)))
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
        return Decided(True, decision.records, _claims(rules.as_decided(decision, live)))

    def _insert_decision(self, connection: sa.Connection, decision: Decision, *, nothing_left: bool) -> None:
        """The last statement, and only in the transaction in which the winners were chosen.

        `inside` may have lost that one without telling: the driver begins another, and Postgres turns COMMIT into
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
        }
        row = [sa.literal(value, self._batch.c[name].type) for name, value in values.items()]
        select = sa.select(*row, self._sink.c.generation, sa.func.now() if nothing_left else sa.null()).where(
            self._sink.c.sink_id == decision.sink_id, chosen.scalar_subquery() == len(decision.winners)
        )
        insert = sa.insert(self._batch).from_select([*values, "generation", "done_at"], select)
        if connection.execute(insert, execution_options={"preserve_rowcount": True}).rowcount != 1:
            raise SinkError(
                f"the transaction that was to decide batch {decision.batch_id} of the query {decision.query_id} was "
                "ended by something inside it, and another one begun; nothing was decided: leave COMMIT and ROLLBACK "
                "to the sink"
            )

    def resolve(self, decision: Decision) -> Decided | None:
        """What became of a decision whose COMMIT got no answer: it stands, or None, and then it never will.

        Waits at the sink's row until the lost transaction has happened or is gone.
        """

        def steps(connection: sa.Connection) -> Decided | None:
            self._locked_sink(connection, decision.sink_id)
            stands = self._found(connection, decision.sink_id, decision.query_id, decision.batch_id)
            if stands is None:
                return None
            return Decided(True, stands.records, _claims(self._live(connection, decision.sink_id)))

        return self._transactions.write(steps)

    def is_decided(self, sink_id: str, query_id: str, batch_id: int) -> bool:
        """Whether the batch has a decision. Raises CheckpointMismatchError where it is older than what is known."""
        return self._transactions.read(lambda c: self._found(c, sink_id, query_id, batch_id) is not None)

    def condemn(
        self, sink_id: str, *, query_id: str | None = None, batch_id: int | None = None, generation: int | None = None
    ) -> int:
        """Condemn the attempts that are OPEN or PREPARED, of the whole sink or of a part; returns how many.

        Nothing of a decision is touched: its winners are neither. A driver that lives goes on, and finds its attempts
        gone; `plan` is what fences it.
        """
        wanted = {"query_id": query_id, "batch_id": batch_id, "generation": generation}
        part = [self._attempt.c[name] == value for name, value in wanted.items() if value is not None]

        def steps(connection: sa.Connection) -> int:
            self._locked_sink(connection, sink_id)
            return self._change(connection, AttemptEvent.CONDEMN, *self._live_in(sink_id), *part)

        return self._transactions.write(steps)

    def give_up(self, sink_id: str, *, query_id: str, batch_id: int, generation: int | None) -> None:
        """Condemn the undecided attempts of a batch and, unless it is decided, end its generation.

        Spark gives a batch up while tasks of it still run: one that comes late must get no transaction that nobody
        would end until the query is started again. Without `generation`, which no task has told then, the current one
        is meant if the sink is this query's.
        """

        def steps(connection: sa.Connection) -> None:
            sink = self._locked_sink(connection, sink_id)
            if sink is None:
                return
            part = [self._attempt.c.query_id == query_id, self._attempt.c.batch_id == batch_id]
            if generation is not None:
                part.append(self._attempt.c.generation == generation)
            self._change(connection, AttemptEvent.CONDEMN, *self._live_in(sink_id), *part)
            is_current = sink.query_id == query_id if generation is None else sink.generation == generation
            if is_current and self._found(connection, sink_id, query_id, batch_id) is None:
                self._renew(connection, sink, None)

        self._transactions.write(steps)

    # ---- FINISH ---------------------------------------------------------------------------------------------

    def claims(self, sink_id: str, verdicts: Collection[Verdict] = tuple(Verdict)) -> tuple[Claim, ...]:
        """What is to be ended in Kafka."""
        live = self._transactions.read(lambda connection: self._live(connection, sink_id))
        return tuple(claim for claim in _claims(live) if claim.verdict in verdicts)

    def still_wanted(self, wanted: Mapping[str, Verdict], attempt_ids: Collection[str]) -> set[str]:
        """Of these attempts, those that have still the verdict in `wanted`."""
        t = self._attempt.c
        query = sa.select(t.attempt_id, t.status).where(t.attempt_id.in_(list(attempt_ids)))
        rows = self._transactions.read(lambda connection: connection.execute(query).all())
        return {attempt_id for attempt_id, status in rows if VERDICTS.get(AttemptStatus(status)) is wanted[attempt_id]}

    def record(self, sink_id: str, ended: Mapping[str, Ended]) -> None:
        """Write down, by attempt id, what Kafka has answered; FAILED and LEFT change nothing.

        A batch of which nothing is left to do becomes DONE, and one that lost a transaction LOST.
        """

        def steps(connection: sa.Connection) -> None:
            self._locked_sink(connection, sink_id)
            for ending in (Ending.COMMITTED, Ending.ABORTED):
                if ids := [attempt_id for attempt_id, end in ended.items() if end.ending is ending]:
                    self._change(connection, _EVENTS[ending], self._attempt.c.attempt_id.in_(ids))
            for attempt_id, end in ended.items():
                if end.ending is Ending.LOST:
                    self._lose(connection, (attempt_id,), str(end.error))
            self._close_batches(connection, sink_id, lost=any(end.ending is Ending.LOST for end in ended.values()))

        self._transactions.write(steps)

    def _lose(self, connection: sa.Connection, attempt_ids: Collection[str], detail: str) -> int:
        named = self._attempt.c.attempt_id.in_(list(attempt_ids))
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

    # ---- operators ------------------------------------------------------------------------------------------

    def sinks(self) -> list[SinkRow]:
        """Every sink of the store, by its id."""
        query = sa.select(self._sink).order_by(self._sink.c.sink_id)
        return self._transactions.read(lambda connection: [_sink_row(row) for row in connection.execute(query)])

    def batches(self, sink_id: str, statuses: Collection[BatchStatus] = tuple(BatchStatus)) -> list[BatchRow]:
        """The decided batches of a sink, the newest first."""
        t = self._batch.c
        query = sa.select(self._batch).where(t.sink_id == sink_id, t.status.in_(list(statuses)))
        ordered = query.order_by(t.generation.desc(), t.batch_id.desc())
        return self._transactions.read(lambda connection: [_batch_row(row) for row in connection.execute(ordered)])

    def attempts(self, sink_id: str, statuses: Collection[AttemptStatus] = tuple(AttemptStatus)) -> list[AttemptRow]:
        """The attempts of a sink, by generation and partition."""
        t = self._attempt.c
        query = sa.select(self._attempt).where(t.sink_id == sink_id, t.status.in_(list(statuses)))
        ordered = query.order_by(t.generation, t.partition_id, t.created_at)
        return self._transactions.read(lambda connection: [_attempt_row(row) for row in connection.execute(ordered)])

    def prune(self, sink_id: str, keep: int) -> int:
        """Forget all but the newest `keep` decided batches of each query, and of all batch jobs together.

        At least one stays, and so does what is not done, or lost and not acknowledged. With the batches go their
        attempts, and those that were aborted `keep` generations ago. Returns how many batches went.
        """
        batches = self.batches(sink_id)
        forgotten = rules.expired(batches, keep)
        if not forgotten:
            return 0
        a, b = self._attempt.c, self._batch.c
        of_query = sa.and_(a.query_id == sa.bindparam("of_query"), a.batch_id == sa.bindparam("of_batch"))
        old = sa.and_(a.status == AttemptStatus.ABORTED, a.generation < batches[0].generation - keep)
        over = (a.sink_id == sink_id, a.live_txn_id.is_(None))
        batch = (b.query_id == sa.bindparam("of_query"), b.batch_id == sa.bindparam("of_batch"))
        keys = [{"of_query": row.query_id, "of_batch": row.batch_id} for row in forgotten]

        def steps(connection: sa.Connection) -> None:
            connection.execute(sa.delete(self._attempt).where(*over, of_query), keys)
            connection.execute(sa.delete(self._attempt).where(*over, old))
            connection.execute(sa.delete(self._batch).where(b.sink_id == sink_id, *batch), keys)

        self._transactions.write(steps)
        return len(forgotten)

    def mark_lost(self, sink_id: str, attempt_ids: Collection[str], detail: str) -> int:
        """Say of COMMITTING attempts that Kafka has dropped their transactions; returns how many they were.

        FINISH does so by itself where the broker says it. By hand it is for a broker that can no longer tell.
        """

        def steps(connection: sa.Connection) -> int:
            self._locked_sink(connection, sink_id)
            lost = self._lose(connection, attempt_ids, detail)
            self._close_batches(connection, sink_id, lost=True)
            return lost

        return self._transactions.write(steps)

    def acknowledge_lost(self, sink_id: str, query_id: str, batch_id: int) -> bool:
        """Let the query go on after a LOST batch; its lost records stay lost. Returns whether there was one."""
        t = self._batch.c
        named = (t.sink_id == sink_id, t.query_id == query_id, t.batch_id == batch_id)
        lost = (t.status == BatchStatus.LOST, t.acknowledged_at.is_(None))
        update = sa.update(self._batch).where(*named, *lost).values(acknowledged_at=sa.func.now())
        return self._transactions.write(lambda connection: connection.execute(update).rowcount) == 1

    # ---- inside a transaction -------------------------------------------------------------------------------

    def _locked_sink(self, connection: sa.Connection, sink_id: str) -> SinkRow | None:
        query = sa.select(self._sink).where(self._sink.c.sink_id == sink_id)
        row = connection.execute(locking(query, connection)).one_or_none()
        return None if row is None else _sink_row(row)

    def _decided_from(self, sink_id: str, query_id: str, batch_id: int) -> Sequence[sa.ColumnElement[bool]]:
        t = self._batch.c
        return (t.sink_id == sink_id, t.query_id == query_id, t.batch_id >= batch_id)

    def _found(self, connection: sa.Connection, sink_id: str, query_id: str, batch_id: int) -> BatchRow | None:
        """The decision of the batch. Raises CheckpointMismatchError where a newer one has outlived it."""
        decisions = self._decided_from(sink_id, query_id, batch_id)
        query = sa.select(self._batch).where(*decisions).order_by(self._batch.c.batch_id).limit(1)
        row = connection.execute(query).one_or_none()
        decided = rules.is_decided(query_id, batch_id, None if row is None else row.batch_id)
        return _batch_row(row) if row is not None and decided else None

    def _live_in(self, sink_id: str) -> Sequence[sa.ColumnElement[bool]]:
        return (self._attempt.c.sink_id == sink_id, self._attempt.c.live_txn_id.is_not(None))

    def _live(self, connection: sa.Connection, sink_id: str) -> list[AttemptRow]:
        query = sa.select(self._attempt).where(*self._live_in(sink_id)).order_by(self._attempt.c.partition_id)
        return [_attempt_row(row) for row in connection.execute(query)]

    def _named(self, connection: sa.Connection, attempt_ids: Collection[str]) -> list[AttemptRow]:
        if not attempt_ids:
            return []
        query = sa.select(self._attempt).where(self._attempt.c.attempt_id.in_(list(attempt_ids)))
        return [_attempt_row(row) for row in connection.execute(query)]

    def _change(
        self, connection: sa.Connection, event: AttemptEvent, *where: sa.ColumnElement[bool], **values: Any
    ) -> int:
        """Let `event` happen to those attempts to which it may; returns how many they were."""
        status = after(event)
        changed: dict[str, Any] = {"status": status, "updated_at": sa.func.now(), **values}
        if status in TERMINAL:
            changed["live_txn_id"] = None
        may = self._attempt.c.status.in_(before(event))
        return connection.execute(sa.update(self._attempt).where(may, *where).values(changed)).rowcount


def _followed_by(intact: Intact, inside: Steps | None) -> Steps:
    def steps(connection: sa.Connection) -> None:
        if inside is not None:
            inside(connection)
        intact()

    return steps


def _claims(live: Sequence[AttemptRow]) -> tuple[Claim, ...]:
    return tuple(
        Claim(attempt.attempt_id, attempt.transactional_id, verdict, PreparedTxnState(attempt.prepared_state))
        for attempt in live
        if (verdict := VERDICTS.get(attempt.status)) is not None
    )


def _sink_row(row: sa.Row[Any]) -> SinkRow:
    return SinkRow(row.sink_id, row.generation, row.query_id, row.updated_at)


def _batch_row(row: sa.Row[Any]) -> BatchRow:
    return BatchRow(
        sink_id=row.sink_id,
        query_id=row.query_id,
        batch_id=row.batch_id,
        status=BatchStatus(row.status),
        generation=row.generation,
        attempts=row.n_attempts,
        records=row.n_records,
        offsets_digest=row.offsets_digest,
        decided_at=row.decided_at,
        done_at=row.done_at,
        acknowledged_at=row.acknowledged_at,
    )


def _attempt_row(row: sa.Row[Any]) -> AttemptRow:
    return AttemptRow(
        attempt_id=row.attempt_id,
        sink_id=row.sink_id,
        query_id=row.query_id,
        batch_id=row.batch_id,
        generation=row.generation,
        partition_id=row.partition_id,
        task_attempt_id=row.task_attempt_id,
        host=row.host,
        transactional_id=row.txn_id,
        prepared_state=row.prepared_state,
        records=row.n_records,
        status=AttemptStatus(row.status),
        detail=row.detail,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
