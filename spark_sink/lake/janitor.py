"""`Janitor`: delete the data files of condemned attempts. Loads libraries only if there are files to delete."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spark_sink.errors import StoreWentBackError
from spark_sink.lake.files import deleted, file_name, library_missing
from spark_sink.lake.place import LakePlace
from spark_sink.store.sink_store import LakeStore


class Janitor:
    """Deletes the data files of attempts that are condemned for good.

    A store that went back may condemn a decided batch that is in the table. So the table is read before, and no file is
    deleted if the table has a batch that the store does not know.
    """

    def __init__(self, sink_id: str, ledger: LakeStore, *, schema: str | None) -> None:
        """Take `schema`, the store's, for commands in messages."""
        self._sink_id = sink_id
        self._ledger = ledger
        self._schema = schema

    def clean(self) -> int:
        """Delete the files that attempts have recorded; return their number.

        Raises StoreWentBackError, and SinkError if the table cannot be read; then nothing is deleted.
        """
        gone = self._delete(self._here(self._ledger.condemned(self._sink_id)))
        if gone:
            self._ledger.forget(gone)
        return len(gone)

    def clean_all(self) -> int:
        """Do the same, and delete files that attempts have begun but not recorded."""
        return self.clean() + len(self._delete(self._begun()))

    def left(self) -> int:
        """Return the number of files that `clean_all` would delete."""
        return len(self._ledger.condemned(self._sink_id)) + len(self._begun())

    def _begun(self) -> dict[str, str]:
        begun = self._ledger.unrecorded(self._sink_id)
        return {each: location for each, location in begun.items() if self._path(location, each).exists()}

    def _here(self, condemned: Mapping[str, str]) -> dict[str, str]:
        """Return the files in directories that exist on this machine."""
        return {each: location for each, location in condemned.items() if _directory(location).is_dir()}

    def _delete(self, condemned: Mapping[str, str]) -> list[str]:
        for location in set(condemned.values()):
            self._check(location, {self._name(each) for each, where in condemned.items() if where == location})
        return [each for each, location in condemned.items() if deleted(self._path(location, each))]

    def _check(self, location: str, names: set[str]) -> None:
        place = LakePlace.of(location)
        try:
            from spark_sink.lake.publishing import Publisher
        except ImportError as error:
            raise library_missing(place) from error
        named = Publisher(self._sink_id, self._ledger, schema=self._schema).file_names(place) & names
        if named:
            raise StoreWentBackError(
                f"{place.named} has {len(named)} files of attempts that the commit store has given up "
                f"({', '.join(sorted(named)[:3])}): the database has lost decisions. No file was deleted; bring the "
                "newer database back"
            )

    def _name(self, attempt_id: str) -> str:
        return file_name(self._ledger.owner(self._sink_id), attempt_id)

    def _path(self, location: str, attempt_id: str) -> Path:
        return _directory(location) / self._name(attempt_id)


def _directory(location: str) -> Path:
    return Path(str(LakePlace.of(location).directory))
