"""`Publisher`: add to a Delta table what the store has decided, once and in the order of the decisions.

Any process may do it, at any time, twice, or beside another one. A commit to the table carries the generation of its
decision, which the table keeps, and generations increase. So a publisher reads the table, sees whether it has that
generation, and tries the next version if not. Whoever slept in between finds the version taken, and reads again.
The table read anew, and flushed to disk, is what makes the store forget a batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from spark_sink import commands
from spark_sink.errors import BatchLostError, DualTableError, SinkError, SinkOptionError, StoreWentBackError
from spark_sink.lake.columns import check_file
from spark_sink.lake.data_file import examined
from spark_sink.lake.delta_log import DeltaLog, LakeState, NewFile
from spark_sink.lake.files import file_name
from spark_sink.options import DualMode, DualTable
from spark_sink.pause_points import Pause, PausePoint
from spark_sink.store.sink_store import LakeStore
from spark_sink.store.tables import LakeRow, OwedBatch

_TRIES: Final = 30
_WAIT_S: Final = 0.05


class Table(Protocol):
    """A Delta table; `DeltaLog` implements it."""

    def read(self) -> LakeState:
        """See `DeltaLog.read`."""

    def add(self, state: LakeState, generation: int, files: Sequence[NewFile]) -> Exception | None:
        """See `DeltaLog.add`."""

    def flush(self, state: LakeState) -> None:
        """See `DeltaLog.flush`."""


class Publisher:
    """Publishes what one sink owes. Only one thread at a time may use it."""

    def __init__(
        self,
        sink_id: str,
        ledger: LakeStore,
        *,
        schema: str | None,
        open_table: Callable[[str, str], Table] = DeltaLog,
        pause: Pause = lambda point: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Give `schema`, the store's, for commands that a person is told."""
        self._sink_id = sink_id
        self._ledger = ledger
        self._schema = schema
        self._open_table = open_table
        self._pause = pause
        self._sleep = sleep
        self._tables: dict[str, Table] = {}

    def publish(self) -> tuple[OwedBatch, ...]:
        """Publish what is owed; return it.

        Raises BatchLostError for files that cannot be added any more, StoreWentBackError, DualTableError for a table
        that was altered, and SinkError, also without the table or its library. What is decided stays owed.
        """
        owed = self._ledger.owed(self._sink_id)
        for batch in owed:
            self._publish(batch)
        return owed

    def read(self, location: str) -> LakeState:
        """Read a table for a plan or a decision, and check it against what the store knows.

        Raises StoreWentBackError, DualTableError for a table that went back, and what `DeltaLog.read` raises.
        """
        before = self._ledger.row(self._sink_id)
        state = self._table(location).read()
        self._check_history(location, state, before)
        return state

    def _table(self, location: str) -> Table:
        if location not in self._tables:
            self._tables[location] = self._open_table(location, self._sink_id)
        return self._tables[location]

    # ---- one batch ------------------------------------------------------------------------------------------

    def _publish(self, batch: OwedBatch) -> None:
        table = self._table(batch.location)
        version, reason = -1, None
        for number in range(_TRIES):
            state = self._read_for(batch)
            if state.published is not None and state.published >= batch.generation:
                table.flush(state)
                self._pause(PausePoint.BEFORE_FORGETTING)
                self._ledger.published(batch)
                return
            if reason is not None and state.version == version:
                raise self._not_added(batch, reason) from reason
            if number:
                self._sleep(_WAIT_S * min(number, 10))
            self._check_files(batch, state)
            self._pause(PausePoint.BEFORE_ADDITION)
            files = [NewFile(file_name(file.attempt_id), file.size, file.rows) for file in batch.files]
            version, reason = state.version, table.add(state, batch.generation, files)
            self._pause(PausePoint.AFTER_ADDITION)
        raise self._not_added(batch, reason)

    def _read_for(self, batch: OwedBatch) -> LakeState:
        try:
            return self.read(batch.location)
        except SinkOptionError as error:
            raise self._not_added(batch, error) from error

    def _check_files(self, batch: OwedBatch, state: LakeState) -> None:
        if state.table_id != batch.table_id:
            why = f"the directory has another Delta table now ({state.table_id}, not {batch.table_id})"
            raise self._lost(batch, [file.attempt_id for file in batch.files], why)
        found = {
            file.attempt_id: examined(Path(batch.location, file_name(file.attempt_id)), size=file.size, rows=file.rows)
            for file in batch.files
        }
        reasons = {attempt_id: reason for attempt_id, reason in found.items() if isinstance(reason, str)}
        if reasons:
            raise self._lost(batch, list(reasons), "; ".join(sorted(reasons.values())[:5]))
        self._check_columns(batch, state, [columns for columns in found.values() if not isinstance(columns, str)])

    def _check_columns(self, batch: OwedBatch, state: LakeState, columns: Sequence[pa.Schema]) -> None:
        target = DualTable(f"delta:{batch.location}", None, DualMode.INSERT, None, lake=batch.location)
        for each in columns:
            try:
                check_file(target, each, state.columns)
            except SinkOptionError as error:
                raise DualTableError(
                    f"batch {batch.batch_id} of the query {batch.query_id} is decided, and Kafka has it, but its files "
                    f"do not fit the table, which was altered since ({error}). Alter it back, and start the query "
                    f"again, or run {commands.recover(self._sink_id, schema=self._schema)}"
                ) from error

    def _lost(self, batch: OwedBatch, attempt_ids: Sequence[str], why: str) -> BatchLostError:
        self._ledger.note_lost(batch, attempt_ids, why)
        advice = commands.after_lost_files(batch.sink_id, batch.query_id, batch.batch_id, schema=self._schema)
        return BatchLostError(
            f"batch {batch.batch_id} of the query {batch.query_id} was decided, but {len(attempt_ids)} of its "
            f"{len(batch.files)} files for the Delta table {batch.location} cannot be added: {why}. Nothing of the "
            f"batch was added, and the sink is stopped: {advice}"
        )

    def _not_added(self, batch: OwedBatch, reason: Exception | None) -> SinkError:
        why = "other writers commit to it all the time" if reason is None else " ".join(str(reason).split())
        return SinkError(
            f"batch {batch.batch_id} of the query {batch.query_id} is decided, but could not be added to the Delta "
            f"table {batch.location}: {why}. It stays decided; the next plan, or "
            f"{commands.recover(self._sink_id, schema=self._schema)}, adds it"
        )

    # ---- the history of the table and the store's -----------------------------------------------------------

    def _check_history(self, location: str, state: LakeState, before: LakeRow | None) -> None:
        """Check the table against the store: `before` was read before the table.

        The store decides first, so what the table has must be in the store when that is read after the table; and what
        the store has noted as published must be in a table that is read after the store.
        """
        self._check_store_is_not_behind(location, state, before)
        if before is None or (before.location, before.table_id) != (location, state.table_id):
            return  # another table, which has nothing of this sink yet
        if before.published is not None and (state.published is None or state.published < before.published):
            raise DualTableError(
                f"the Delta table {location} had the batch of generation {before.published} of the sink "
                f"{self._sink_id!r}, and now its newest is {state.published}: an older copy of it was restored. "
                "Nothing new has begun. Bring the newer table back; or, if it is to stay without those rows, set "
                "`published` of the sink's row in dw_lake to NULL"
            )

    def _check_store_is_not_behind(self, location: str, state: LakeState, before: LakeRow | None) -> None:
        if state.published is None or (before is not None and state.published <= before.decided):
            return
        now = self._ledger.row(self._sink_id)
        if now is None or state.published > now.decided:
            known = "none" if now is None else f"{now.decided} as the newest"
            raise StoreWentBackError(
                f"the Delta table {location} has a batch of generation {state.published} of the sink "
                f"{self._sink_id!r}, but the commit store has {known}: the database has lost decisions. Nothing new "
                "has begun. Bring the newer database back; if it is gone, compare table and topic, and go on with a "
                "new sinkId and a new checkpoint after the last batch that is written"
            )
