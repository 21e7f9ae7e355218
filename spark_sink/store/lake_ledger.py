"""`LakeLedger`: the files that a Delta or Iceberg table is owed, in the commit store's database.

The decision marks the row of a file in its transaction; from then on the file is owed, until the table has it.
`dw_lake_file` outlives batches and attempts, so no owed file is ever pruned.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from spark_sink.errors import DualTableError, SinkError
from spark_sink.store.attempt_states import AttemptEvent, after
from spark_sink.store.tables import DETAIL_LENGTH, Decision, LakeFile, LakeRow, OwedBatch, StoreTables
from spark_sink.store.transactions import StoreTransactions

_MARK_BITS: Final = 63
_OWNER: Final = 0
"""The generation of the sink's own mark; a plan's generation is higher."""
_CONDEMNED: Final = (after(AttemptEvent.CONDEMN), after(AttemptEvent.ABORT))


class LakeLedger:
    """The tables `dw_lake`, `dw_lake_file` and `dw_lake_mark`."""

    def __init__(self, transactions: StoreTransactions, tables: StoreTables) -> None:
        self._transactions = transactions
        self._lake, self._file, self._mark = tables.lake, tables.lake_file, tables.lake_mark
        self._attempt = tables.attempt

    # ---- in transactions of the store -----------------------------------------------------------------------

    def record(self, connection: sa.Connection, attempt_id: str, location: str, file: LakeFile) -> None:
        """See `LakeStore.record`."""
        a = self._attempt.c
        of_attempt = sa.select(
            a.attempt_id,
            a.sink_id,
            a.query_id,
            a.batch_id,
            a.generation,
            sa.literal(location, sa.Text),
            sa.literal(file.size, sa.BigInteger),
            sa.literal(file.rows, sa.BigInteger),
        ).where(a.attempt_id == attempt_id)
        names = ["attempt_id", "sink_id", "query_id", "batch_id", "generation", "location", "n_bytes", "n_rows"]
        connection.execute(sa.insert(self._file).from_select(names, of_attempt))

    def choose(self, connection: sa.Connection, decision: Decision, location: str, table_id: str) -> None:
        """See `LakeStore.choose`."""
        f = self._file.c
        winners = f.attempt_id.in_(list(decision.winners))
        count, rows = connection.execute(
            sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(f.n_rows), 0)).where(
                winners, f.decided_at.is_(None), f.location == location
            )
        ).one()
        if (count, rows) != (len(decision.winners), decision.staged_rows):
            raise DualTableError(
                f"{len(decision.winners)} data files with {decision.staged_rows} rows were written, but the commit "
                f"store has {count} with {rows} rows for {location}. No part of the batch is visible; start the query "
                "again, which writes it again"
            )
        values = {"decided_at": sa.func.now(), "table_id": table_id}
        connection.execute(sa.update(self._file).where(winners).values(values))
        self._advance(connection, decision, location, table_id)
        if decision.winners:
            self._add_mark(connection, decision.sink_id, decision.generation)

    def _advance(self, connection: sa.Connection, decision: Decision, location: str, table_id: str) -> None:
        mine = self._lake.c.sink_id == decision.sink_id
        known = self._row(connection, decision.sink_id)
        values = {"location": location, "table_id": table_id, "decided": decision.generation}
        if known is None:
            connection.execute(sa.insert(self._lake).values(sink_id=decision.sink_id, **values))
            return
        if decision.generation is None or known.decided >= decision.generation:
            raise SinkError(
                f"generation {decision.generation} of the sink {decision.sink_id!r} has decided a batch for its "
                "table before; nothing was decided now: start the query again"
            )
        if (known.location, known.table_id) != (location, table_id):
            values["published"] = None
        connection.execute(sa.update(self._lake).where(mine).values(values))

    def _add_mark(self, connection: sa.Connection, sink_id: str, generation: int | None) -> None:
        values = {"sink_id": sink_id, "generation": generation, "mark": secrets.randbits(_MARK_BITS)}
        connection.execute(sa.insert(self._mark).values(values))

    # ---- transactions of its own ----------------------------------------------------------------------------

    def owner(self, sink_id: str) -> int:
        """See `LakeStore.owner`."""
        m = self._mark.c
        query = sa.select(m.mark).where(m.sink_id == sink_id, m.generation == _OWNER)

        def known(connection: sa.Connection) -> int | None:
            mark: int | None = connection.scalar(query)
            return mark

        while (mark := self._transactions.read(known)) is None:
            try:
                self._transactions.write(lambda connection: self._add_mark(connection, sink_id, _OWNER))
            except IntegrityError:
                continue  # another process has just added it
        return mark

    def files(self, attempt_ids: Collection[str]) -> tuple[LakeFile, ...]:
        """See `LakeStore.files`."""
        f = self._file.c
        query = sa.select(f.attempt_id, f.n_rows, f.n_bytes).where(f.attempt_id.in_(list(attempt_ids)))
        return self._transactions.read(lambda connection: tuple(LakeFile(*row) for row in connection.execute(query)))

    def row(self, sink_id: str) -> LakeRow | None:
        """See `LakeStore.row`."""
        return self._transactions.read(lambda connection: self._row(connection, sink_id))

    def owed(self, sink_id: str, *, durably: bool = True) -> tuple[OwedBatch, ...]:
        """See `LakeStore.owed`."""

        def steps(connection: sa.Connection) -> tuple[OwedBatch, ...]:
            return self._owed(connection, sink_id)

        shown = self._transactions.read(steps)
        return self._transactions.read_durably(steps) if shown and durably else shown

    def marks(self, sink_id: str) -> dict[int, int]:
        """See `LakeStore.marks`."""
        m = self._mark.c
        query = sa.select(m.generation, m.mark).where(m.sink_id == sink_id, m.generation > _OWNER)
        return self._transactions.read(lambda connection: {row[0]: row[1] for row in connection.execute(query)})

    def published(self, batch: OwedBatch) -> None:
        """See `LakeStore.published`."""
        f, t, m = self._file.c, self._lake.c, self._mark.c
        of_batch = (f.sink_id == batch.sink_id, f.generation == batch.generation, f.decided_at.is_not(None))
        here = (t.sink_id == batch.sink_id, t.table_id == batch.table_id)
        newer = sa.or_(t.published.is_(None), t.published < batch.generation)

        def steps(connection: sa.Connection) -> None:
            connection.execute(sa.delete(self._file).where(*of_batch))
            update = sa.update(self._lake).where(*here, newer)
            connection.execute(update.values(published=batch.generation))
            old = (m.sink_id == batch.sink_id, m.generation > _OWNER, m.generation <= batch.generation)
            connection.execute(sa.delete(self._mark).where(*old))

        self._transactions.write(steps)

    def note_lost(self, batch: OwedBatch, attempt_ids: Collection[str], detail: str) -> None:
        """See `LakeStore.note_lost`."""
        f = self._file.c
        lost = (f.attempt_id.in_(list(attempt_ids)), f.decided_at.is_not(None))
        update = sa.update(self._file).where(*lost).values(detail=detail[:DETAIL_LENGTH])
        self._transactions.write(lambda connection: connection.execute(update))

    def acknowledge(self, connection: sa.Connection, sink_id: str, query_id: str, batch_id: int, *, owed: bool) -> int:
        """Forget the files of a batch that were found lost, or all files that are `owed`; return their number.

        Their mark stays: a suspended process may still add them.
        """
        f = self._file.c
        named = (f.sink_id == sink_id, f.query_id == query_id, f.batch_id == batch_id)
        lost = (f.decided_at.is_not(None), sa.true() if owed else f.detail.is_not(None))
        return connection.execute(sa.delete(self._file).where(*named, *lost)).rowcount

    # ---- condemned files ------------------------------------------------------------------------------------

    def condemned(self, sink_id: str) -> dict[str, str]:
        """See `LakeStore.condemned`."""
        f, a = self._file.c, self._attempt.c
        query = (
            sa.select(f.attempt_id, f.location)
            .select_from(self._file.outerjoin(self._attempt, f.attempt_id == a.attempt_id))
            .where(f.sink_id == sink_id, f.decided_at.is_(None))
            .where(sa.or_(a.status.is_(None), a.status.in_(_CONDEMNED)))
        )

        def steps(connection: sa.Connection) -> dict[str, str]:
            return {row.attempt_id: row.location for row in connection.execute(query)}

        return self._transactions.read_durably(steps) if self._transactions.read(steps) else {}

    def unrecorded(self, sink_id: str) -> dict[str, str]:
        """See `LakeStore.unrecorded`."""
        f, a, t = self._file.c, self._attempt.c, self._lake.c
        query = (
            sa.select(a.attempt_id, t.location)
            .select_from(self._attempt.join(self._lake, a.sink_id == t.sink_id))
            .where(a.sink_id == sink_id, a.status.in_(_CONDEMNED), ~sa.exists().where(f.attempt_id == a.attempt_id))
        )

        def steps(connection: sa.Connection) -> dict[str, str]:
            return {row.attempt_id: row.location for row in connection.execute(query)}

        return self._transactions.read_durably(steps) if self._transactions.read(steps) else {}

    def forget(self, attempt_ids: Collection[str]) -> None:
        """See `LakeStore.forget`."""
        f = self._file.c
        deleted = (f.attempt_id.in_(list(attempt_ids)), f.decided_at.is_(None))
        self._transactions.write(lambda connection: connection.execute(sa.delete(self._file).where(*deleted)))

    def attempts(self, sink_id: str) -> frozenset[str]:
        """See `LakeStore.attempts`."""
        f, a = self._file.c, self._attempt.c
        query = sa.union(
            sa.select(a.attempt_id).where(a.sink_id == sink_id), sa.select(f.attempt_id).where(f.sink_id == sink_id)
        )
        return self._transactions.read_durably(lambda connection: frozenset(connection.scalars(query)))

    # ---- inside a transaction -------------------------------------------------------------------------------

    def _row(self, connection: sa.Connection, sink_id: str) -> LakeRow | None:
        row = connection.execute(sa.select(self._lake).where(self._lake.c.sink_id == sink_id)).one_or_none()
        return None if row is None else LakeRow(row.location, row.table_id, row.decided, row.published)

    def _owed(self, connection: sa.Connection, sink_id: str) -> tuple[OwedBatch, ...]:
        f, m = self._file.c, self._mark.c
        marked = self._file.outerjoin(self._mark, sa.and_(m.sink_id == f.sink_id, m.generation == f.generation))
        query = sa.select(self._file, m.mark).select_from(marked)
        query = query.where(f.sink_id == sink_id, f.decided_at.is_not(None))
        batches: dict[int, list[sa.Row[tuple[object, ...]]]] = {}
        for row in connection.execute(query.order_by(f.generation, f.attempt_id)):
            batches.setdefault(row.generation, []).append(row)
        return tuple(_owed_batch(rows) for rows in batches.values())


def _owed_batch(rows: list[sa.Row[tuple[object, ...]]]) -> OwedBatch:
    first = rows[0]
    return OwedBatch(
        sink_id=first.sink_id,
        query_id=first.query_id,
        batch_id=first.batch_id,
        generation=first.generation,
        location=first.location,
        table_id=first.table_id,
        mark=first.mark,
        files=tuple(LakeFile(row.attempt_id, row.n_rows, row.n_bytes) for row in rows),
        decided_at=first.decided_at,
        detail=next((row.detail for row in rows if row.detail is not None), None),
    )
