"""PLAN: the next generation of a sink begins, and no attempt of an earlier one can win any more."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dualwrite.recipes.sqlalchemy.deciding import examine
from spark_sink.handoff import BatchName
from spark_sink.options import OnNewCheckpoint
from spark_sink.store import rules
from spark_sink.store.attempt_states import (
    AttemptEvent,
)
from spark_sink.store.sink_store import Steps
from spark_sink.store.store_rows import StoreRows, age_ms
from spark_sink.store.tables import (
    AttemptRow,
    BatchInDoubt,
    BatchRow,
    BatchStatus,
    Planned,
    SinkRow,
    batch_row,
)


class PlanSteps(StoreRows):
    """The steps of a plan."""

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
        return tuple(BatchInDoubt(row, age_ms(connection, row.decided_at)) for row in rows)
