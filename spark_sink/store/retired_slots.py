"""Transactional ids that are never leased again, because a request for them may still be under way.

Only a transaction that ends by its own pair of producer id and epoch leaves an id that can be leased to the next
attempt. To abort an attempt, or to publish it again, processes send InitProducerId, which below tier 1 aborts any open
transaction; and the task of an attempt that was given up may send one, too. If a process is suspended just before that,
or the network delays the request, it would abort the prepared transaction of the next holder of the id, decided or not.
So the id gets no next holder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import sqlalchemy as sa

from spark_sink.store.rules import Leasable, slots_by_partition
from spark_sink.store.tables import StoreTables


class RetiredSlots:
    """The tables `dw_retired` and `dw_spare`: for each partition of a sink, the slots that may be leased.

    Call every method in a transaction; retiring needs the lock of the sink's row.
    """

    def __init__(self, tables: StoreTables) -> None:
        self._first = tables.retired
        self._spare = tables.spare
        self._attempt = tables.attempt

    def queries(self, sink_id: str, partition_id: int) -> tuple[sa.Select[Any], sa.Select[Any]]:
        """Return the queries for the fields of the partition's `Leasable`; without a row the field has its default."""
        first, spare = self._first.c, self._spare.c
        return (
            sa.select(first.first_slot).where(first.sink_id == sink_id, first.partition_id == partition_id),
            sa.select(spare.slot).where(spare.sink_id == sink_id, spare.partition_id == partition_id),
        )

    def retire(self, connection: sa.Connection, sink_id: str, attempt_ids: Collection[str]) -> None:
        """Retire the ids of these attempts."""
        a = self._attempt.c
        ids = connection.scalars(sa.select(a.txn_id).where(a.attempt_id.in_(list(attempt_ids))))
        for partition_id, slots in slots_by_partition(ids).items():
            known = self._leasable(connection, sink_id, partition_id)
            self._replace(connection, sink_id, partition_id, known, known.without(slots))

    def retire_orphans(self, connection: sa.Connection, sink_id: str, ids: Iterable[str]) -> None:
        """Retire these ids, and those with smaller slots in their partitions: another store may have leased them."""
        for partition_id, slots in slots_by_partition(ids).items():
            known = self._leasable(connection, sink_id, partition_id)
            self._replace(connection, sink_id, partition_id, known, known.beyond(max(slots)))

    def _leasable(self, connection: sa.Connection, sink_id: str, partition_id: int) -> Leasable:
        first_slot, spare_slot = self.queries(sink_id, partition_id)
        return Leasable(connection.scalar(first_slot) or 0, connection.scalar(spare_slot))

    def _replace(
        self, connection: sa.Connection, sink_id: str, partition_id: int, old: Leasable, new: Leasable
    ) -> None:
        for table, column, before, after in (
            (self._first, "first_slot", old.first or None, new.first),
            (self._spare, "slot", old.spare, new.spare),
        ):
            mine = (table.c.sink_id == sink_id, table.c.partition_id == partition_id)
            if before == after:
                continue
            if before is None:
                values = {"sink_id": sink_id, "partition_id": partition_id, column: after}
                connection.execute(sa.insert(table).values(values))
            elif after is None:
                connection.execute(sa.delete(table).where(*mine))
            else:
                connection.execute(sa.update(table).where(*mine).values({column: after}))
