"""`Publisher`: add decided batches to a table of files, once and in the order of the decisions.

Any process may do it, at any time, twice, or beside another one. A commit to the table carries the generation of its
decision, which the table keeps, and generations increase. So a publisher reads the table, sees whether it has that
generation, and if not tries one commit after exactly this state. If it was suspended in between, the state has changed,
and it reads again. The store forgets a batch only after the table was read anew and flushed to disk.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from spark_sink import commands
from spark_sink.errors import BatchLostError, DualTableError, SinkError, SinkOptionError
from spark_sink.lake.columns import columns_now, is_same
from spark_sink.lake.data_file import examined, rewritten
from spark_sink.lake.files import copy_name, file_name
from spark_sink.lake.history import History
from spark_sink.lake.opening import OpenLog, open_log
from spark_sink.lake.place import LakePlace
from spark_sink.lake.table_log import LakeState, Mark, NewFile, TableLog
from spark_sink.options import DualMode, DualTable
from spark_sink.pause_points import Pause, PausePoint
from spark_sink.store.sink_store import LakeStore
from spark_sink.store.tables import LakeFile, OwedBatch


class _GivenUpError(Exception):
    """The store no longer owes the batch, and the table does not have it."""


_TRIES: Final = 30
_WAIT_S: Final = 0.05


class Publisher:
    """Publishes the batches that one sink owes. Only one thread at a time may use it."""

    def __init__(
        self,
        sink_id: str,
        ledger: LakeStore,
        *,
        schema: str | None,
        open_table: OpenLog = open_log,
        pause: Pause = lambda point: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take `schema`, the store's, for commands in messages."""
        self._sink_id = sink_id
        self._ledger = ledger
        self._schema = schema
        self._open_table = open_table
        self._pause = pause
        self._sleep = sleep
        self._tables: dict[LakePlace, TableLog] = {}
        self._history = History(sink_id, ledger)

    def publish(self) -> tuple[OwedBatch, ...]:
        """Publish the owed batches; return them.

        Raises BatchLostError for files that can no longer be added, StoreWentBackError, DualTableError for a table
        that was altered, and SinkError, also without the table or its library. Then the batches stay owed.
        """
        owed = self._ledger.owed(self._sink_id)
        for batch in owed:
            self._publish(batch)
        return owed

    def read(self, place: LakePlace) -> LakeState:
        """Read a table for a plan or a decision, and check it against the store.

        Raises SinkOptionError for a table that a sink of this id but another store has claimed, StoreWentBackError,
        DualTableError for a table that went back, and the errors of `TableLog.read`.
        """
        before = self._ledger.row(self._sink_id)
        state = self._table(place).read()
        self._history.check(place.at(state.directory), state, before)
        return state

    def claim(self, place: LakePlace) -> None:
        """Claim a table for the sink of this id and this store, durably. Raises as `read` does, and SinkError."""
        table, mark = self._table(place), Mark(self._ledger.owner(self._sink_id))
        self._commit_once(
            table,
            read=lambda: self.read(place),
            is_there=lambda state: state.mark.owner is not None,
            add=lambda state: table.add(state, mark, ()),
            failed=lambda reason: SinkError(
                f"{place.named} could not be claimed for the sink {self._sink_id!r}: {_why(reason)}. Nothing new has "
                "begun; start the query again"
            ),
        )

    def file_names(self, place: LakePlace) -> set[str]:
        """Read a table in the same way; return the names of its data files."""
        return self._table(place).file_names(self.read(place))

    def kept_names(self, place: LakePlace, state: LakeState) -> set[str]:
        """Return the names of the data files of sinks in all versions that a table keeps. Raises SinkError."""
        return self._table(place).kept_names(state)

    def outdate(self, place: LakePlace) -> LakeState:
        """Let commits fail that are based on an older state of a table; return its new state.

        Raises as `read` does, and SinkError.
        """
        table, mark = self._table(place), Mark(self._ledger.owner(self._sink_id))
        old = self.read(place).version
        newest: list[LakeState] = []

        def is_there(state: LakeState) -> bool:
            newest[:] = [state]
            return state.version != old

        self._commit_once(
            table,
            read=lambda: self.read(place),
            is_there=is_there,
            add=lambda state: table.add(state, mark, ()),
            failed=lambda reason: SinkError(f"{place.named} could not be written to: {_why(reason)}"),
        )
        return newest[0]

    def _table(self, place: LakePlace) -> TableLog:
        table = place.identity
        if table not in self._tables:
            self._tables[table] = self._open_table(table, self._sink_id)
        return self._tables[table]

    # ---- one batch ------------------------------------------------------------------------------------------

    def _publish(self, batch: OwedBatch) -> None:
        place = LakePlace.of(batch.location)
        table = self._table_for(batch, place)

        def add(state: LakeState) -> Exception | None:
            if not self._is_still_owed(batch, place):
                return SinkError("another process has added it")
            owner = self._ledger.owner(self._sink_id)
            files = self._fitting_files(batch, place, state, owner)
            self._pause(PausePoint.BEFORE_ADDITION)
            reason = table.add(state, Mark(owner, batch.generation, batch.mark), files)
            self._pause(PausePoint.AFTER_ADDITION)
            return reason

        try:
            self._commit_once(
                table,
                read=lambda: self._read_for(batch, place),
                is_there=lambda state: self._history.has(place, state, batch),
                add=add,
                failed=lambda reason: self._not_added(batch, reason),
            )
        except _GivenUpError:
            return
        self._pause(PausePoint.BEFORE_FORGETTING)
        self._ledger.published(batch)

    def _is_still_owed(self, batch: OwedBatch, place: LakePlace) -> bool:
        """Return whether the whole batch is still owed, now that the table was read; False if another process added it.

        `Strays` reads the store, then outdates the table, and then deletes files that were not owed: so a commit of the
        files that it deletes fails. Raises _GivenUpError.
        """
        owed = self._ledger.owed(self._sink_id, durably=False)
        files = {file.attempt_id for each in owed for file in each.files}
        if files.issuperset(file.attempt_id for file in batch.files):
            return True
        if not self._history.has(place, self._read_for(batch, place), batch):
            raise _GivenUpError
        return False

    def _commit_once(
        self,
        table: TableLog,
        *,
        read: Callable[[], LakeState],
        is_there: Callable[[LakeState], bool],
        add: Callable[[LakeState], Exception | None],
        failed: Callable[[Exception | None], SinkError],
    ) -> None:
        """Add to the table until it is found to have the addition when read anew, and is flushed to disk."""
        version, reason = "", None
        for number in range(_TRIES):
            state = read()
            if is_there(state):
                if table.flush(state):
                    return
                continue
            if reason is not None and state.version == version:
                raise failed(reason) from reason
            if number:
                self._sleep(_WAIT_S * min(number, 10))
            version, reason = state.version, add(state)
        raise failed(reason)

    def _table_for(self, batch: OwedBatch, place: LakePlace) -> TableLog:
        try:
            return self._table(place)
        except SinkOptionError as error:
            raise self._not_added(batch, error) from error

    def _read_for(self, batch: OwedBatch, place: LakePlace) -> LakeState:
        try:
            return self.read(place)
        except SinkOptionError as error:
            raise SinkError(f"{self._not_added(batch, error)}. {self._way_out(batch)}") from error

    def _fitting_files(self, batch: OwedBatch, place: LakePlace, state: LakeState, owner: int) -> list[NewFile]:
        """Return the batch's files, or copies that fit a table which has changed in a way that allows it."""
        if state.table_id != batch.table_id:
            why = f"there is another table in its place now ({state.table_id}, not {batch.table_id})"
            raise self._lost(batch, [file.attempt_id for file in batch.files], why)
        found = {
            file.attempt_id: examined(_path(place, owner, file), size=file.size, rows=file.rows) for file in batch.files
        }
        reasons = {attempt_id: reason for attempt_id, reason in found.items() if isinstance(reason, str)}
        if reasons:
            raise self._lost(batch, list(reasons), "; ".join(sorted(reasons.values())[:5]))
        columns = {attempt_id: each for attempt_id, each in found.items() if not isinstance(each, str)}
        now = {attempt_id: self._columns_now(batch, place, each, state) for attempt_id, each in columns.items()}
        return [
            _fitting_file(place, owner, file, columns[file.attempt_id], now[file.attempt_id]) for file in batch.files
        ]

    def _columns_now(self, batch: OwedBatch, place: LakePlace, file: pa.Schema, state: LakeState) -> list[pa.Field]:
        target = DualTable(place.named, None, DualMode.INSERT, None, lake=place)
        try:
            return columns_now(target, file, state.columns)
        except SinkOptionError as error:
            raise DualTableError(
                f"batch {batch.batch_id} of the query {batch.query_id} is decided, and Kafka has it, but its files "
                f"do not fit the table, which was altered since ({error}). Alter it back, and start the query again, "
                f"or run {commands.recover(self._sink_id, schema=self._schema)}. {self._way_out(batch)}"
            ) from error

    def _way_out(self, batch: OwedBatch) -> str:
        name = (batch.sink_id, batch.query_id, batch.batch_id)
        return (
            "If the table is to stay like that, copy the files with "
            f"{commands.export_files(*name, schema=self._schema)}, write their rows by other means, and run "
            f"{commands.acknowledge_lost(*name, schema=self._schema, owed=True)}"
        )

    def _lost(self, batch: OwedBatch, attempt_ids: Sequence[str], why: str) -> BatchLostError:
        self._ledger.note_lost(batch, attempt_ids, why)
        advice = commands.after_lost_files(batch.sink_id, batch.query_id, batch.batch_id, schema=self._schema)
        return BatchLostError(
            f"batch {batch.batch_id} of the query {batch.query_id} was decided, but {len(attempt_ids)} of its "
            f"{len(batch.files)} files for {LakePlace.of(batch.location).named} cannot be added: {why}. No part of the "
            f"batch was added, and the sink is stopped: {advice}"
        )

    def _not_added(self, batch: OwedBatch, reason: Exception | None) -> SinkError:
        return SinkError(
            f"batch {batch.batch_id} of the query {batch.query_id} is decided, but could not be added to "
            f"{LakePlace.of(batch.location).named}: {_why(reason)}. It stays decided; the next plan, or "
            f"{commands.recover(self._sink_id, schema=self._schema)}, adds it"
        )


def _fitting_file(place: LakePlace, owner: int, file: LakeFile, columns: pa.Schema, now: Sequence[pa.Field]) -> NewFile:
    path = _path(place, owner, file)
    if all(is_same(*each) for each in zip(columns, now, strict=True)):
        return NewFile(path, file.size, file.rows)
    # A name of its own: another process may be about to add another copy.
    new = path.with_name(copy_name(owner, file.attempt_id, uuid.uuid4().hex))
    return NewFile(new, rewritten(path, new, now), file.rows)


def _path(place: LakePlace, owner: int, file: LakeFile) -> Path:
    return Path(str(place.directory), file_name(owner, file.attempt_id))


def _why(reason: Exception | None) -> str:
    return "other writers keep committing to it" if reason is None else " ".join(str(reason).split())
