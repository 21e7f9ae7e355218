"""`NoLake`: a store in a topic keeps nothing for tables of files, which need the transaction of a database."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NoReturn

from spark_sink.errors import SinkOptionError
from spark_sink.options import NO_SQL
from spark_sink.store.tables import Decision, LakeFile, LakeRow, OwedBatch

if TYPE_CHECKING:
    import sqlalchemy as sa


class NoLake:
    """A `LakeStore` that always stays empty."""

    def record(self, connection: sa.Connection, attempt_id: str, location: str, file: LakeFile) -> None:
        """Raise SinkOptionError."""
        _refuse()

    def choose(self, connection: sa.Connection, decision: Decision, location: str, table_id: str) -> None:
        """Raise SinkOptionError."""
        _refuse()

    def owner(self, sink_id: str) -> int:
        """Raise SinkOptionError."""
        _refuse()

    def files(self, attempt_ids: Collection[str]) -> tuple[LakeFile, ...]:
        """Return nothing."""
        return ()

    def row(self, sink_id: str) -> LakeRow | None:
        """Return None."""
        return None

    def owed(self, sink_id: str, *, durably: bool = True) -> tuple[OwedBatch, ...]:
        """Return nothing."""
        return ()

    def marks(self, sink_id: str) -> Mapping[int, int]:
        """Return nothing."""
        return {}

    def published(self, batch: OwedBatch) -> None:
        """Raise SinkOptionError."""
        _refuse()

    def note_lost(self, batch: OwedBatch, attempt_ids: Collection[str], detail: str) -> None:
        """Raise SinkOptionError."""
        _refuse()

    def condemned(self, sink_id: str) -> Mapping[str, str]:
        """Return nothing."""
        return {}

    def unrecorded(self, sink_id: str) -> Mapping[str, str]:
        """Return nothing."""
        return {}

    def forget(self, attempt_ids: Collection[str]) -> None:
        """Do nothing."""

    def attempts(self, sink_id: str) -> frozenset[str]:
        """Return nothing: there are no files."""
        return frozenset()


def _refuse() -> NoReturn:
    raise SinkOptionError(NO_SQL)
