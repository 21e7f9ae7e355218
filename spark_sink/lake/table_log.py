"""What the publisher needs from a table of files: the port `TableLog`, for Delta and for Iceberg."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spark_sink.lake.columns import LakeColumns


@dataclass(frozen=True)
class Mark:
    """What the table notes of a sink. Numbers have 63 bits."""

    owner: int | None
    """The sink's number in its commit store: no other store has the same sink with the same one, except a copy."""
    generation: int | None = None
    """Of the sink's last batch in the table; None if it has none."""
    batch: int | None = None
    """That batch's own number."""


@dataclass(frozen=True)
class LakeState:
    """A table as it was read."""

    version: str
    """Another one after each commit."""
    table_id: str
    """Another one if the table was dropped and created again."""
    directory: str
    """Where data files are put."""
    mark: Mark
    """Of the sink for which the table was read."""
    columns: LakeColumns
    handle: Any
    """What the log itself needs of this state."""


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
        """Try to add the files and the mark in one commit after exactly this state; return what went wrong.

        Without a generation, the mark only claims the table for the sink, and there are no files. Only the table read
        anew says whether it has them: also after an error, and also without one. The commit may also take effect later.
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
