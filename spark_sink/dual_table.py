"""The table half of the dual write: rows wait in a staging table, and the decision moves them into the table.

There is one staging table for each sink and target. Its columns have the target's own types, so a value that the target
would refuse or round is met by the same rules when a task stages it, long before the decision. Whoever stages shows no
row to anybody: readers of the target see the rows of all tasks when the decision is committed, or none of them.

A table that somebody alters while a batch is under way is found out by `move`, after it has locked the target against
alterations and before the decision can be committed; the next batch gets a staging table that fits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import sqlalchemy as sa

from spark_sink.options import DualTable

if TYPE_CHECKING:
    import pyarrow as pa


class DualTableWriter:
    """Stages the rows of tasks and moves those of the winners. Holds no connection; picklable; one thread at a time."""

    def __init__(
        self, options: DualTable, *, sink_id: str, store_schema: str | None, create_tables: bool = True
    ) -> None:
        """`store_schema` is where the staging table is; without `create_tables` it must be there and fit."""
        raise NotImplementedError

    @property
    def staging_table(self) -> str:
        """Its name, as it is written in SQL."""
        raise NotImplementedError

    def check(self, conn: sa.Connection, schema: pa.Schema) -> None:
        """Raise SinkOptionError where rows of this schema cannot go into the table. Only reads."""
        raise NotImplementedError

    def create(self, engine: sa.Engine, schema: pa.Schema) -> None:
        """Check, then see to it that the staging table is there and fits; harmless when repeated or done by several.

        For PLAN, before its transaction: it has a connection of its own, because DDL commits on MySQL. A staging table
        that does not fit any more is dropped: rows in it belong to attempts that the same PLAN condemns.
        """
        raise NotImplementedError

    def stage(
        self,
        conn: sa.Connection,
        attempt_id: str,
        partition_id: int,
        rows: Sequence[pa.RecordBatch],
        *,
        first_seq: int = 0,
    ) -> int:
        """Copy rows into the staging table, in the transaction that marks the attempt PREPARED; returns how many.

        The batches are whole ones of the DataFrame: the table's columns are picked here. May be called several times
        for an attempt, each time with the next `first_seq`. Raises DualTableError for values that the table cannot hold.
        """
        raise NotImplementedError

    def move(self, conn: sa.Connection, winners: Collection[str], *, rows: int) -> None:
        """Move the winners' rows into the table, in the decision; `rows` is the sum of their `staged_rows`.

        An upsert's key that comes twice is decided by the last row in the order of partitions and rows. Raises
        DualTableError, after which the transaction must be rolled back: where the table refuses the rows, where it was
        altered since they were staged, and where they are not as many as were staged.
        """
        raise NotImplementedError

    def discard(self, conn: sa.Connection, attempt_ids: Collection[str]) -> None:
        """Delete what losers have staged."""
        raise NotImplementedError

    def discard_all(self, conn: sa.Connection) -> None:
        """Delete whatever is staged: for PLAN, in the transaction in which it has condemned every live attempt."""
        raise NotImplementedError
