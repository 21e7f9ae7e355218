"""`CommitStore`: the SQL database that decides batches, and keeps the sinks, decisions and attempts.

A batch is decided when it has a row in `dw_batch`. One transaction writes that row, changes the winners to COMMITTING,
and moves the rows of the dual table. Every method is one transaction. Those that change which attempts may win hold the
lock of the sink's row from their first statement on; a task that takes a lease shares the lock. So a generation that
was read under the lock is the sink's generation until the transaction ends.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Self

import sqlalchemy as sa

from dualwrite.prepared_state import PreparedTxnState
from spark_sink.errors import SinkError
from spark_sink.options import StoreOptions
from spark_sink.store import rules
from spark_sink.store.attempt_states import (
    VERDICTS,
    AttemptEvent,
    AttemptStatus,
    Prepared,
)
from spark_sink.store.connections import engine_for
from spark_sink.store.deciding import DecisionSteps
from spark_sink.store.finishing import FinishSteps
from spark_sink.store.leasing import AttemptSteps
from spark_sink.store.planning import PlanSteps
from spark_sink.store.staging_tables import drop_staging, owned_tables
from spark_sink.store.store_rows import age_ms
from spark_sink.store.table_catalog import TableName
from spark_sink.store.tables import (
    AttemptRow,
    BatchRow,
    BatchStatus,
    SinkRow,
    attempt_row,
    batch_row,
    sink_row,
)

_NEWEST: Final = 2_000
"""Attempts whose manifests are read in search of topics."""


class CommitStore(PlanSteps, AttemptSteps, DecisionSteps, FinishSteps):
    """A `SinkStore` on one engine. Threads may share it; processes may not."""

    @classmethod
    def open(cls, options: StoreOptions) -> Self:
        """Open the store on this process's engine for the options. Raises SinkOptionError."""
        return cls(
            engine_for(options), schema=options.schema, create_tables=options.create_tables, accept=options.accept
        )

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

    def newest_prepared(self, sink_id: str) -> dict[str, Prepared]:
        """See `OperatedStore.newest_prepared`."""
        t = self._attempt.c
        query = sa.select(t.txn_id, t.prepared_state, t.manifest).where(t.sink_id == sink_id, t.prepared_state != "")
        newest = query.order_by(t.generation.desc(), t.created_at.desc()).limit(_NEWEST)
        rows = self._transactions.read(lambda connection: connection.execute(newest).all())
        return {each: Prepared(PreparedTxnState(state), manifest or "") for each, state, manifest in reversed(rows)}

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
        return age_ms(connection, latest)

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
        written again. Its other attempts with an abort verdict may be open in Kafka, and are left alone. A batch whose
        decision is there may have such ids too, of a later batch; its attempts there are committed.

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
            noted = (*of_batch, a.status.in_(list(VERDICTS)), a.detail.is_not(None))
            went_back = connection.scalars(sa.select(a.attempt_id).where(*noted)).all()
            self._retired.retire(connection, sink_id, went_back)
            for event in (AttemptEvent.COMMIT, AttemptEvent.ABORT):
                self._change(connection, event, a.attempt_id.in_(went_back))
            self._close_batches(connection, sink_id, lost=False)
            return bool(went_back)

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
