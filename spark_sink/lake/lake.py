"""`Lake`: the part of a table of files in each step of a batch, as `Sink` uses it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spark_sink.errors import DualTableError, SinkOptionError, StoreWentBackError
from spark_sink.handoff import FilePlan
from spark_sink.lake.columns import check_file, file_columns
from spark_sink.lake.data_file import examined
from spark_sink.lake.files import create_directory, file_name
from spark_sink.lake.place import LakePlace
from spark_sink.lake.publishing import Publisher
from spark_sink.options import DualTable
from spark_sink.store.sink_store import LakeStore

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa

    from spark_sink.store.tables import Decision

_log = logging.getLogger("spark_sink")


class ChosenTable(NamedTuple):
    """The table that a decision is for."""

    location: str
    table_id: str


class Lake:
    """The table of files of one sink."""

    def __init__(
        self, options: DualTable, place: LakePlace, sink_id: str, ledger: LakeStore, publisher: Publisher
    ) -> None:
        """Take `options.lake` as `place`."""
        self._options = options
        self._place = place
        self._sink_id = sink_id
        self._ledger = ledger
        self._publisher = publisher

    def plan_for(self, schema: pa.Schema) -> FilePlan:
        """PLAN: return the directory and the columns of data files. The first plan claims the table.

        Raises SinkOptionError if rows of this schema do not fit the table, and the errors of `Publisher.read`.
        """
        state = self._publisher.read(self._place)
        location = self._place.at(state.directory).location
        known = self._ledger.row(self._sink_id)
        if known is not None and known.location == location and known.table_id != state.table_id:
            _log.warning(
                "sink %s: %s is another table than before (%s, not %s); it gets the rows from now on",
                self._sink_id,
                self._place.named,
                state.table_id,
                known.table_id,
            )
        columns = file_columns(self._options, schema, state.columns)
        if state.mark.owner is None:
            self._publisher.claim(self._place)
        if self._place.catalog is not None:
            create_directory(Path(state.directory))
        return FilePlan(location, state.directory, self._ledger.owner(self._sink_id), columns)

    def check_decision(self, decision: Decision) -> ChosenTable:
        """COMMIT: check that the files can be added once the batch is decided; return the table.

        Only for a batch that is not decided: the files of a decided one may be gone, because the table has compacted
        them.

        Raises DualTableError, StoreWentBackError and the errors of `Publisher.read`; then nothing is decided.
        """
        state = self._publisher.read(self._place)
        owner, newest = state.mark.owner, state.mark.generation
        if owner is None:
            raise DualTableError(
                f"batch {decision.batch_id} of the query {decision.query_id} is not decided, because "
                f"{self._place.named} was replaced while it was written, and is not claimed by this sink. No part of "
                "the batch is visible; start the query again"
            )
        if newest is not None and decision.generation is not None and self._decided() < decision.generation <= newest:
            raise StoreWentBackError(
                f"{self._place.named} has generation {newest} of the sink {self._sink_id!r} already, and this batch "
                f"would be decided at {decision.generation}: the database has lost decisions. Nothing was decided; "
                "start the query again, whose error has the remedy"
            )
        for attempt_id, (rows, size) in self._recorded(decision).items():
            found = examined(Path(state.directory, file_name(owner, attempt_id)), size=size, rows=rows)
            if isinstance(found, str):
                raise DualTableError(
                    f"batch {decision.batch_id} of the query {decision.query_id} is not decided: {found}. No part of "
                    "it is visible, and Spark replays it. Driver and executors must see one directory under this "
                    "path, and a job that removes orphan files (VACUUM) must keep them for longer than a batch takes"
                )
            try:
                check_file(self._options, found, state.columns)
            except SinkOptionError as error:
                raise DualTableError(
                    f"batch {decision.batch_id} of the query {decision.query_id} is not decided, because the table was "
                    f"altered while it was written ({error}). No part of it is visible; start the query again"
                ) from error
        return ChosenTable(self._place.at(state.directory).location, state.table_id)

    def _decided(self) -> int:
        known = self._ledger.row(self._sink_id)
        return -1 if known is None else known.decided

    def _recorded(self, decision: Decision) -> Mapping[str, tuple[int, int]]:
        return {each.attempt_id: (each.rows, each.size) for each in self._ledger.files(decision.winners)}

    def choose(self, connection: sa.Connection, decision: Decision, table: ChosenTable | None) -> None:
        """COMMIT: mark the winners' files as owed, in the transaction of the decision. Raises DualTableError.

        Works without a table, too: it is read only for an undecided batch, and no file of a decided one can be chosen.
        """
        table = table or ChosenTable("", "")
        self._ledger.choose(connection, decision, table.location, table.table_id)
