"""The rows of sinks, decisions and attempts, as the steps of the commit store read and change them."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from spark_sink.store import rules
from spark_sink.store.attempt_states import (
    TERMINAL,
    AttemptEvent,
    AttemptStatus,
    Prepared,
    after,
    before,
)
from spark_sink.store.connections import rest
from spark_sink.store.lake_ledger import LakeLedger
from spark_sink.store.retired_slots import RetiredSlots
from spark_sink.store.tables import (
    DETAIL_LENGTH,
    AttemptRow,
    BatchRow,
    BatchStatus,
    SinkRow,
    StoreTables,
    attempt_row,
    batch_row,
    sink_row,
)
from spark_sink.store.transactions import StoreTransactions, is_unreachable, locking


class StoreRows:
    """The statements that several of the steps share, each inside a transaction of its caller."""

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
        return self._transactions.read(now_of)

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

    # ---- inside a transaction of the caller ------------------------------------------------------------------

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

    def _renew(self, connection: sa.Connection, sink: SinkRow, claimed: str | None) -> None:
        values = {"generation": sink.generation + 1, "updated_at": sa.func.now()}
        if claimed is not None:
            values["query_id"] = claimed
        connection.execute(sa.update(self._sink).where(self._sink.c.sink_id == sink.sink_id).values(values))

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

    def _committing(self, connection: sa.Connection, attempt_ids: Collection[str]) -> dict[str, str]:
        """Return the prepared states of the attempts that are still to be committed. The sink's row must be locked."""
        if not attempt_ids:
            return {}
        t = self._attempt.c
        live = (t.attempt_id.in_(list(attempt_ids)), t.status == after(AttemptEvent.CHOOSE))
        rows = connection.execute(sa.select(t.attempt_id, t.prepared_state).where(*live))
        return {row.attempt_id: row.prepared_state for row in rows}


def now_of(connection: sa.Connection) -> dt.datetime:
    now: dt.datetime = connection.execute(sa.select(sa.func.now())).scalar_one()
    return now


def age_ms(connection: sa.Connection, since: dt.datetime) -> int:
    """Return the time since then, by the database's clock."""
    return max(0, round((now_of(connection) - since) / dt.timedelta(milliseconds=1)))


def columns_of(prepared: Prepared) -> dict[str, Any]:
    return {"prepared_state": str(prepared.state), "manifest": prepared.manifest or None}
