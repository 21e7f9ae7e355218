"""Transactional ids that are never leased again, because a request for them may still be under way.

Only what ends by its own pair of producer id and epoch leaves an id that can be leased to the next attempt. To abort an
attempt, or to publish it again, processes send InitProducerId, which below tier 1 aborts whatever is open; and the task
of an attempt that was given up may send one, too. A process that is suspended just before that, or a network that
delays the request, would abort what the next holder of the id has prepared, decided or not. So it gets no next holder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import sqlalchemy as sa

from spark_sink.store.rules import partition_of, slot_of
from spark_sink.store.tables import StoreTables


class RetiredSlots:
    """The table `dw_retired`: for each partition of a sink, the first slot that may be leased.

    Call all of it in a transaction; `retire` needs the lock of the sink's row.
    """

    def __init__(self, tables: StoreTables) -> None:
        self._table = tables.retired
        self._attempt = tables.attempt

    def first_slot(self, connection: sa.Connection, sink_id: str, partition_id: int) -> int:
        """Return the smallest slot of the partition that may be leased, if it is free."""
        return connection.scalar(self.first_slot_query(sink_id, partition_id)) or 0

    def first_slot_query(self, sink_id: str, partition_id: int) -> sa.Select[tuple[int]]:
        """Return the query for that slot; it finds no row while nothing of the partition was retired."""
        t = self._table.c
        return sa.select(t.first_slot).where(t.sink_id == sink_id, t.partition_id == partition_id)

    def retire(self, connection: sa.Connection, attempt_ids: Collection[str]) -> None:
        """Retire the ids of these attempts, and those with smaller slots in their partitions."""
        a = self._attempt.c
        query = sa.select(a.sink_id, a.txn_id).where(a.attempt_id.in_(list(attempt_ids)))
        self.retire_ids(connection, [(sink_id, each) for sink_id, each in connection.execute(query)])

    def retire_ids(self, connection: sa.Connection, ids: Iterable[tuple[str, str]]) -> None:
        """Retire these transactional ids of sinks, and those with smaller slots in their partitions."""
        first: dict[tuple[str, int], int] = {}
        for sink_id, transactional_id in ids:
            partition = (sink_id, partition_of(transactional_id))
            first[partition] = max(first.get(partition, 0), slot_of(transactional_id) + 1)
        for (sink_id, partition_id), first_slot in first.items():
            self._raise(connection, sink_id, partition_id, first_slot)

    def _raise(self, connection: sa.Connection, sink_id: str, partition_id: int, first_slot: int) -> None:
        known = self.first_slot(connection, sink_id, partition_id)
        values = {"sink_id": sink_id, "partition_id": partition_id, "first_slot": first_slot}
        if not known:
            connection.execute(sa.insert(self._table).values(values))
        elif known < first_slot:
            t = self._table.c
            mine = (t.sink_id == sink_id, t.partition_id == partition_id)
            connection.execute(sa.update(self._table).where(*mine).values(first_slot=first_slot))
