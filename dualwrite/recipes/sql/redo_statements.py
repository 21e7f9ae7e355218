"""The stored blocks in the table `kafka_transaction_redo`, as SQL that a backend executes.

Only a transaction that has locked the state row of an id touches its rows here, so no two transactions compete for one.
The row with seq 0, the *head*, is made ahead of time, so that a locking read finds it. On MySQL a locking read without
a match locks the gap in which other ids insert their rows, and two ids that store for the first time would wait for
each other. Rows are deleted by their numbers, and not by a range, for the same reason.

A block that an operator has taken out keeps its row, under a negative number: it is not lost, and a process whose
commit got no response still finds that its block was stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, Protocol

from dualwrite.errors import StateRowError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.store import NO_BATCH, NOTHING_STORED, LastBatch, Sent, Stored, StoredBlock

REDO_TABLE: Final = "kafka_transaction_redo"

_MOST_BLOCKS: Final = 500
"""The most blocks that are read at a time."""

_OF_ID: Final = "transactional_id = :id"
_OF_HEAD: Final = f"{_OF_ID} AND seq = 0"
_OF_BLOCK: Final = f"{_OF_ID} AND seq = :seq"

SELECT_HEAD: Final = f"SELECT newest_seq, stored_bytes, stored_at_ms FROM {REDO_TABLE} WHERE {_OF_HEAD}"
SELECT_HEADS: Final = f"SELECT transactional_id, stored_at_ms FROM {REDO_TABLE} WHERE seq = 0 AND newest_seq > 0"
SELECT_COUNTS: Final = f"SELECT transactional_id, count(*) FROM {REDO_TABLE} WHERE seq > 0 GROUP BY transactional_id"
INSERT_HEAD: Final = f"INSERT INTO {REDO_TABLE} (transactional_id, seq) VALUES (:id, 0)"
_UPDATE_HEAD: Final = (
    f"UPDATE {REDO_TABLE} SET newest_seq = :newest, stored_bytes = :size, stored_at_ms = :since WHERE {_OF_HEAD}"
)
_INSERT_BLOCK: Final = (
    f"INSERT INTO {REDO_TABLE} (transactional_id, seq, stored_at_ms, records) VALUES (:id, :seq, :now, :content)"
)
_SELECT_SIZES: Final = (
    f"SELECT seq, length(records) FROM {REDO_TABLE} WHERE {_OF_ID} AND seq > 0 ORDER BY seq LIMIT {_MOST_BLOCKS}"
)
_SELECT_BLOCKS: Final = (
    f"SELECT seq, stored_at_ms, records FROM {REDO_TABLE} WHERE {_OF_ID} AND seq > 0 AND seq <= :last ORDER BY seq"
)
_SELECT_OLDEST: Final = f"SELECT stored_at_ms FROM {REDO_TABLE} WHERE {_OF_ID} AND seq > :last ORDER BY seq LIMIT 1"
_SELECT_CONTENT: Final = f"SELECT records FROM {REDO_TABLE} WHERE {_OF_BLOCK}"
_SELECT_LOWEST: Final = f"SELECT min(seq) FROM {REDO_TABLE} WHERE {_OF_ID}"
_TAKE_OUT: Final = f"UPDATE {REDO_TABLE} SET seq = :place WHERE {_OF_BLOCK}"
_SELECT_TAKEN_OUT: Final = f"SELECT seq FROM {REDO_TABLE} WHERE {_OF_ID} AND seq < 0 AND records = :content"
DELETE: Final = f"DELETE FROM {REDO_TABLE} WHERE {_OF_ID} AND seq IN "
DELETE_BY_KEY: Final = f"DELETE b FROM {REDO_TABLE} AS b FORCE INDEX (PRIMARY) WHERE b.{_OF_ID} AND b.seq IN "
"""The same for InnoDB, which otherwise scans the table for more than some hundred numbers, and locks all it passes."""


class Statements(Protocol):
    """Executes statements in the transaction that has locked the state row; parameters are written `:name`."""

    async def rows(self, sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Execute a SELECT and return its rows."""

    async def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        """Execute a statement and return the number of rows it changed."""

    async def has_redo_table(self) -> bool:
        """Return whether the table exists; a positive answer is cached."""


class RedoTable:
    """`StoredBlocks` in the table. `lock_clause` makes a SELECT return the newest row at every isolation level.

    `by_index` is a statement after which the transaction finds rows by an index only; empty if there is none. `delete`
    is the statement that deletes blocks, without their numbers.
    """

    def __init__(
        self, statements: Statements, *, lock_clause: str = " FOR UPDATE", by_index: str = "", delete: str = DELETE
    ) -> None:
        self._statements = statements
        self._delete = delete
        self._lock_clause = lock_clause
        self._by_index = by_index

    async def stored(self, transactional_id: str) -> Stored:
        if not await self._statements.has_redo_table():
            return NOTHING_STORED
        found = await self._statements.rows(SELECT_HEAD + self._lock_clause, {"id": transactional_id})
        return Stored(*found[0]) if found else NOTHING_STORED

    async def append(self, transactional_id: str, content: bytes, *, before: Stored, now_ms: int) -> StoredBlock:
        block = StoredBlock(before.newest_seq + 1, now_ms, content)
        values = {"id": transactional_id, "seq": block.seq, "now": now_ms, "content": content}
        await self._statements.changed(_INSERT_BLOCK, values)
        since_ms = before.since_ms if before.newest_seq else now_ms
        await self._update(transactional_id, Stored(block.seq, before.size_bytes + len(content), since_ms))
        return block

    async def _update(self, transactional_id: str, after: Stored) -> None:
        newest, size, since = after
        await self._change_head(_UPDATE_HEAD, {"id": transactional_id, "newest": newest, "size": size, "since": since})

    async def _change_head(self, sql: str, values: Mapping[str, Any]) -> None:
        if await self._statements.changed(sql, values) != 1:
            raise StateRowError(
                f"{REDO_TABLE} has no row with seq 0 for transactional id {values['id']!r}; neither database nor "
                "Kafka was changed: the row was deleted after this writer had created it. Restore it from a backup, "
                "or, if the table has no other row of this id, create a new writer, which adds it again"
            )

    async def waiting(self, transactional_id: str, *, max_bytes: int) -> tuple[Stored, Sequence[StoredBlock]]:
        stored = await self.stored(transactional_id)
        return stored, await self._oldest(transactional_id, max_bytes) if stored.newest_seq else ()

    async def _oldest(self, transactional_id: str, max_bytes: int) -> Sequence[StoredBlock]:
        if self._by_index:
            await self._statements.rows(self._by_index, {})
        sizes = await self._statements.rows(_SELECT_SIZES, {"id": transactional_id})
        if not sizes:
            return ()
        sums = accumulate(size for _, size in sizes)
        last = max(sizes[0][0], *(seq for (seq, _), total in zip(sizes, sums, strict=True) if total <= max_bytes), 0)
        found = await self._statements.rows(_SELECT_BLOCKS, {"id": transactional_id, "last": last})
        return [StoredBlock(seq, stored_at_ms, bytes(content)) for seq, stored_at_ms, content in found]

    async def is_stored(self, transactional_id: str, block: StoredBlock) -> bool:
        values = {"id": transactional_id, "seq": block.seq}
        found = await self._statements.rows(_SELECT_CONTENT + self._lock_clause, values)
        if found and bytes(found[0][0]) == block.content:
            return True
        values = {"id": transactional_id, "content": block.content}
        return bool(await self._statements.rows(_SELECT_TAKEN_OUT + self._lock_clause, values))

    async def publish(
        self, transactional_id: str, blocks: Sequence[StoredBlock], *, before: Stored, kept_as: Sent | None = None
    ) -> None:
        if blocks:
            numbers = ", ".join(str(block.seq) for block in blocks)
            await self._statements.changed(f"{self._delete}({numbers})", {"id": transactional_id})
            await self._note_left(transactional_id, blocks, before)

    async def last_batch(self, transactional_id: str, state: PreparedTxnState) -> LastBatch:
        return NO_BATCH

    async def take_out(self, transactional_id: str, block: StoredBlock, *, before: Stored) -> None:
        lowest = await self._statements.rows(_SELECT_LOWEST, {"id": transactional_id})
        values = {"id": transactional_id, "seq": block.seq, "place": lowest[0][0] - 1}
        if await self._statements.changed(_TAKE_OUT, values) != 1:
            raise StateRowError(
                f"{REDO_TABLE} has no block {block.seq} of transactional id {transactional_id!r} any more, although "
                "its state row is locked; neither database nor Kafka was changed: another program writes to this "
                "table. Call again, which takes the oldest block that is left"
            )
        await self._note_left(transactional_id, [block], before)

    async def _note_left(self, transactional_id: str, blocks: Sequence[StoredBlock], before: Stored) -> None:
        """Update the head after the oldest blocks were deleted."""
        rest = await self._statements.rows(_SELECT_OLDEST, {"id": transactional_id, "last": blocks[-1].seq})
        left = NOTHING_STORED
        if rest:
            size_bytes = before.size_bytes - sum(len(block.content) for block in blocks)
            left = Stored(before.newest_seq, size_bytes, rest[0][0])
        await self._update(transactional_id, left)
