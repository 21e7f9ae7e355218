"""The rows of one attempt on their way into the staging table, in pieces that fit into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_sink.store.commit_store import CommitStore
from spark_sink.store.dual_table import DualTableWriter

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa

_PIECE_BYTES: Final = 33_554_432
"""As much as a producer buffers by default."""


class StagedRows:
    """Pieces are staged as they come, each in a transaction in which the attempt is OPEN. The last one is staged in the
    transaction that makes the attempt PREPARED. Until the decision nobody sees any of them."""

    def __init__(self, store: CommitStore, table: DualTableWriter, attempt_id: str, partition_id: int) -> None:
        self._store = store
        self._table = table
        self._attempt_id = attempt_id
        self._partition_id = partition_id
        self._waiting: list[pa.RecordBatch] = []
        self._committed = 0
        self._in_transaction = 0

    @property
    def count(self) -> int:
        """How many were staged, if the transaction of the last piece was committed."""
        return self._committed + self._in_transaction

    def add(self, rows: pa.RecordBatch) -> None:
        """Keep these rows, or stage them with those before. Raises AttemptCondemnedError, DualTableError."""
        self._waiting.append(rows)
        if sum(waiting.nbytes for waiting in self._waiting) >= _PIECE_BYTES:
            self._store.stage(self._attempt_id, self.stage_rest)
            self._committed, self._in_transaction = self.count, 0
            self._waiting.clear()

    def stage_rest(self, connection: sa.Connection) -> None:
        """Stage what waits in this transaction; which may be repeated. Raises DualTableError."""
        if self._waiting:
            self._in_transaction = self._table.stage(
                connection, self._attempt_id, self._partition_id, self._waiting, first_seq=self._committed
            )
