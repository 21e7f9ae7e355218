"""The publisher's port to a table of files, Delta or Iceberg: `TableLog`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spark_sink.lake.columns import LakeColumns


@dataclass(frozen=True)
class Mark:
    """The table's note about a sink. Numbers have 63 bits."""

    owner: int | None
    """The sink's number in its commit store, unique to sink and store, except for a copy of the store."""
    generation: int | None = None
    """The generation of the sink's last batch in the table; None if it has none."""
    batch: int | None = None
    """The number of that batch."""


@dataclass(frozen=True)
class LakeState:
    """A table as it was read."""

    version: str
    """Changes with each commit."""
    table_id: str
    """Changes if the table is dropped and created again."""
    directory: str
    """The directory for data files."""
    mark: Mark
    """The mark of the sink for which the table was read."""
    columns: LakeColumns
    handle: Any
    """The log's own data about this state."""


@dataclass(frozen=True)
class NewFile:
    """A data file that is to be added."""

    path: Path
    size: int
    rows: int


class TableLog(Protocol):
    """The log of one table, as one sink sees it."""

    def read(self) -> LakeState:
        """Read the newest state. Raises SinkOptionError if there is no table or no library, SinkError otherwise."""

    def add(self, state: LakeState, mark: Mark, files: Sequence[NewFile]) -> Exception | None:
        """Try to add the files and the mark in one commit after exactly this state; return the error, if any.

        Without a generation, the mark only claims the table for the sink, and there are no files. With or without an
        error, only reading the table anew shows whether it has them. The commit may also take effect later.
        """

    def flush(self, state: LakeState) -> bool:
        """Make sure that the table as it was read survives a crash of a machine. Raises SinkError.

        Return False if the table is found in another state: then read it again.
        """

    def file_names(self, state: LakeState) -> set[str]:
        """Return the names of the data files that the table has in this state. Raises SinkError."""

    def kept_names(self, state: LakeState) -> set[str]:
        """Return the names of data files of sinks in all versions that the table keeps, up to this one or newer.

        Also of files that a version has removed: readers of older versions need them. Raises SinkError.
        """
