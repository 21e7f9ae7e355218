"""`Strays`: delete the data files that neither the commit store nor any version of the table knows.

A killed task leaves such a file once the store has forgotten its attempt; so does an attempt that was written anew for
an altered table, or whose batch an operator has given up.

No promise rests on the age of a file, which only gives people time. An attempt that the store does not have can never
be prepared or decided, and the store has each file that it owes. A file that the store no longer owes is in the table,
unless it was given up; a process that read the table before that may still add such a file. So the store is read first;
then the table is outdated (`Publisher.outdate`), which makes the commit of such a process fail; and only then are the
names of files read from the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from spark_sink.errors import SinkError
from spark_sink.lake.files import attempt_of, deleted, library_missing
from spark_sink.lake.place import LakePlace
from spark_sink.store.sink_store import OperatedStore
from spark_sink.store.tables import LakeRow

if TYPE_CHECKING:
    from spark_sink.lake.publishing import Publisher
    from spark_sink.lake.table_log import LakeState


class Strays:
    """The strays of one sink in the table that it has last decided for."""

    def __init__(
        self, sink_id: str, store: OperatedStore, *, min_age_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        """`min_age_s`: least age of a file, relative to the last plan of the sink that the store knows.

        A store that was restored to an older state does not know the plans after that, so their files stay. `clock`
        is compared with the times of files.
        """
        self._sink_id = sink_id
        self._store = store
        self._min_age_s = min_age_s
        self._clock = clock

    def find(self) -> list[Path]:
        """Return the files that `delete` would delete now.

        Raises StoreWentBackError, DualTableError and SinkError if table and store do not belong together, or if the
        table cannot be read.
        """
        return self._look(outdate=False)

    def delete(self) -> int:
        """Delete the strays; return their number. Raises as `find` does; then nothing is deleted."""
        return sum(map(deleted, self._look(outdate=True))) if self.find() else 0

    def _look(self, *, outdate: bool) -> list[Path]:
        row = self._store.lake.row(self._sink_id)
        unknown = [] if row is None else self._unknown(Path(str(LakePlace.of(row.location).directory)))
        if row is None or not unknown:
            return []
        place = LakePlace.of(row.location)
        publisher = self._publisher(place)
        state = publisher.read(place)
        if not _is_of(row, state):
            return []
        if outdate:
            state = publisher.outdate(place)
        kept = publisher.kept_names(place, state)
        return [each for each in unknown if each.name not in kept] if _is_of(row, state) else []

    def _publisher(self, place: LakePlace) -> Publisher:
        try:
            from spark_sink.lake.publishing import Publisher
        except ImportError as error:
            raise library_missing(place) from error
        return Publisher(self._sink_id, self._store.lake, schema=self._store.schema)

    def _unknown(self, directory: Path) -> list[Path]:
        """Return the files of this sink that are old enough, and whose attempts the store does not know."""
        files = self._old_files(directory)
        known: Collection[str] = self._store.lake.attempts(self._sink_id) if files else ()
        return [path for path, attempt_id in files.items() if attempt_id not in known]

    def _old_files(self, directory: Path) -> dict[Path, str]:
        sink = next((each for each in self._store.sinks() if each.sink_id == self._sink_id), None)
        if sink is None or not directory.is_dir():
            return {}
        since_plan_s = (self._store.now() - sink.updated_at).total_seconds()
        newest = self._clock() - since_plan_s - self._min_age_s
        owner = self._store.lake.owner(self._sink_id)
        try:
            named = {path: attempt_of(owner, path.name) for path in directory.iterdir()}
        except OSError as error:
            raise SinkError(f"the directory {directory} cannot be listed ({error}); no file was deleted") from error
        return {path: attempt_id for path, attempt_id in named.items() if attempt_id and _changed(path) <= newest}


def _changed(path: Path) -> float:
    """Return the time of the last write to the file; a file that is gone counts as new."""
    try:
        return path.stat().st_mtime
    except OSError:
        return float("inf")


def _is_of(row: LakeRow, state: LakeState) -> bool:
    """Return whether the table is the one in the store's row, and not another one in its place."""
    return state.table_id == row.table_id and state.mark.owner is not None
