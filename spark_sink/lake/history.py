"""`History`: compare a table's record of a sink with the commit store's, to notice if either went back.

The store decides first. So every batch in the table must be in the store when the store is read after the table; and
every batch that the store has noted as published must be in a table that is read after the store. Generations alone do
not tell: a copy of the store counts on from the same one. Therefore a table also notes the numbers of the sink and of
its last batch.
"""

from __future__ import annotations

from spark_sink.errors import DualTableError, SinkOptionError, StoreWentBackError
from spark_sink.lake.place import LakePlace
from spark_sink.lake.table_log import LakeState
from spark_sink.store.sink_store import LakeStore
from spark_sink.store.tables import LakeRow, OwedBatch


class History:
    """The history of one sink in its tables and in its store."""

    def __init__(self, sink_id: str, ledger: LakeStore) -> None:
        self._sink_id = sink_id
        self._ledger = ledger

    def check(self, place: LakePlace, state: LakeState, before: LakeRow | None) -> None:
        """Check a table against the store: `before` was read before the table.

        Raises SinkOptionError for a table that another store has claimed under this sink id, StoreWentBackError, and
        DualTableError for a table that went back.
        """
        self._check_owner(place, state)
        self._check_store_is_not_behind(place, state, before)
        if before is None or (before.location, before.table_id) != (place.location, state.table_id):
            return  # another table, which has no batch of this sink yet
        if before.published is None:
            return
        newest = state.mark.generation
        if newest is None or newest < before.published:
            raise DualTableError(
                f"{place.named} had the batch of generation {before.published} of the sink "
                f"{self._sink_id!r}, and now its newest is {newest}: an older copy of it was restored. "
                "No new batch has begun. Bring the newer table back; or, if it is to stay without those rows, set "
                "`published` of the sink's row in dw_lake to NULL"
            )
        if newest > before.published:
            self._check_is_own(place, state, before)

    def has(self, place: LakePlace, state: LakeState, batch: OwedBatch) -> bool:
        """Return whether the table has an owed batch.

        Raises StoreWentBackError if it has that generation from a copy of the store.
        """
        newest = state.mark.generation
        if newest is None or newest < batch.generation:
            return False
        is_same = (newest, state.mark.batch) == (batch.generation, batch.mark)
        owed = self._ledger.owed(self._sink_id, durably=False)
        if not is_same and any(each.generation == batch.generation for each in owed):
            raise self._foreign(place, newest)
        return True

    def _check_owner(self, place: LakePlace, state: LakeState) -> None:
        owner = state.mark.owner
        if owner is not None and owner != self._ledger.owner(self._sink_id):
            raise SinkOptionError(
                f"{place.named} is written to by a sink {self._sink_id!r} that has another commit store, and no new "
                "batch has begun. If that is another application, give this one another sinkId. If the other store was "
                "lost, compare table and topic, and go on with a new sinkId and a new checkpoint after the last batch "
                "that is written"
            )

    def _check_store_is_not_behind(self, place: LakePlace, state: LakeState, before: LakeRow | None) -> None:
        newest = state.mark.generation
        if newest is None or (before is not None and newest <= before.decided):
            return
        now = self._ledger.row(self._sink_id)
        if now is None or newest > now.decided:
            known = "none" if now is None else f"{now.decided} as the newest"
            raise StoreWentBackError(
                f"{place.named} has a batch of generation {newest} of the sink {self._sink_id!r}, but the "
                f"commit store has {known}: the database has lost decisions. No new batch has begun. Bring the newer "
                "database back; if it is gone, compare table and topic, and go on with a new sinkId and a new "
                "checkpoint after the last batch that is written"
            )

    def _check_is_own(self, place: LakePlace, state: LakeState, before: LakeRow) -> None:
        """Check a batch not noted as published: the store owes it, unless a process has just noted it."""
        marks = self._ledger.marks(self._sink_id)
        now = self._ledger.row(self._sink_id)
        newest = state.mark.generation
        if newest is None or now is None or now.published != before.published:
            return
        if marks.get(newest, -1) != state.mark.batch:
            raise self._foreign(place, newest)

    def _foreign(self, place: LakePlace, generation: int) -> StoreWentBackError:
        return StoreWentBackError(
            f"{place.named} has a batch of generation {generation} of the sink {self._sink_id!r} that this commit "
            "store has not decided: the database was restored to an older state, or a copy of it is in use. Files "
            "that this store owes to the table stay owed, and no new batch has begun. Stop the applications on all "
            "copies but one, compare table and topic, and go on with a new sinkId and a new checkpoint after the last "
            "batch that is written"
        )
