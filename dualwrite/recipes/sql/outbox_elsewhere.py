"""The outbox on MySQL, MariaDB and SQLite, with the statements of each dialect: the parts that differ are in `Words`.

The table and the meaning of its rows are those of PostgreSQL (`outbox_steps.py`), with lists as JSON texts. A batch
is published in several statements, because neither database returns what it deletes.

A published block is noted by the random token in its records: a server that crashed gives the number of a block that
it has lost to another. SQLite has one writer at a time, so its numbers are counted, and go on behind every number that
was published: each is in the table, noted, or not above `forgotten`.

InnoDB has to find the rows to delete by their whole keys, or it waits for the row of each open block. Only a join with
a list that is forced to the primary key guarantees that: for more than some hundred numbers in IN it scans the table,
and where it believes that the table has few rows, a join reads all of an id.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from dualwrite.recipes.core.record_block import token_of
from dualwrite.recipes.core.store import Sent, StoredBlock
from dualwrite.recipes.sql.diversion_statements import UNNUMBERED
from dualwrite.recipes.sql.lease_statements import NOW_MS
from dualwrite.recipes.sql.outbox_statements import OF_POSTGRES
from dualwrite.recipes.sql.outbox_steps import (
    MOST_BLOCKS,
    OF_ID,
    OUTBOX_TABLE,
    HasEnded,
    OutboxSql,
    OutboxTable,
    Words,
    as_last_batch,
    forgets,
    gone,
)

_COLUMNS: Final = "transactional_id, seq, stored_at_ms"

_LISTED_IN_MYSQL: Final = "JSON_TABLE({0}, '$[*]' COLUMNS (place FOR ORDINALITY, number BIGINT PATH '$')) AS listed"
_IS_BLOCK: Final = "seq IN (:seq, :taken_out) AND records = :content"
_IS_NOTED: Final = "seq <= :taken_out AND published LIKE :noted"
_MYSQL: Final = Words(
    now_ms=NOW_MS["mysql"],
    listed=_LISTED_IN_MYSQL,
    number="listed.number",
    place="listed.place",
    size="OCTET_LENGTH",
    is_block=_IS_BLOCK,
    is_noted=_IS_NOTED,
    by_key=" FORCE INDEX (PRIMARY)",
    delete=(
        f"DELETE gone FROM {_LISTED_IN_MYSQL.format(':numbers')} STRAIGHT_JOIN {OUTBOX_TABLE} AS gone"
        f" FORCE INDEX (PRIMARY) ON gone.{OF_ID} AND gone.seq = listed.number"
    ),
)
_SQLITE: Final = Words(
    now_ms=NOW_MS["sqlite"],
    listed="json_each({0}) AS listed",
    number="listed.value",
    place="listed.key",
    size="length",
    is_block=_IS_BLOCK,
    is_noted=_IS_NOTED,
    delete=f"DELETE FROM {OUTBOX_TABLE} WHERE {OF_ID} AND seq IN (SELECT value FROM json_each(:numbers))",
    new_number=(
        f"1 + max(coalesce((SELECT max(seq) FROM {OUTBOX_TABLE} WHERE {OF_ID}), 0),"
        f" coalesce((SELECT -min(seq) FROM {OUTBOX_TABLE} WHERE {OF_ID}), 0),"
        f" coalesce((SELECT forgotten FROM {OUTBOX_TABLE} WHERE {OF_ID} AND seq = 0), 0))"
    ),
)


class SqlOfSteps(OutboxSql):
    """The statements of one dialect that publishes in steps."""

    def __init__(self, words: Words) -> None:
        super().__init__(words)
        self.add = (
            f"INSERT INTO {OUTBOX_TABLE} (transactional_id, stored_at_ms, records)"
            f" VALUES (:id, {words.now_ms}, :content)"
        )
        """Adds a block. The driver knows its number, or it is returned."""
        if words.new_number:
            self.add = (
                f"INSERT INTO {OUTBOX_TABLE} ({_COLUMNS}, records)"
                f" SELECT :id, {words.new_number}, {words.now_ms}, :content WHERE true RETURNING seq"
            )
        self.is_there = f"SELECT 1 FROM {OUTBOX_TABLE} WHERE {OF_ID} AND seq = :seq AND records = :content"
        self.sizes = f"SELECT seq, {words.size}(records) FROM {self.waiting} ORDER BY seq LIMIT {MOST_BLOCKS + 1}"
        self.blocks = (
            f"SELECT seq, stored_at_ms, coalesce(records, X'') FROM {self.waiting} AND seq <= :last ORDER BY seq"
        )
        self.last_tokens = (
            f"SELECT block.seq, substr(block.records, 1, 9) FROM {self.of_batch} JOIN{self.blocks_of_batch}"
        )
        self.delete = words.delete
        self.note = f"INSERT INTO {OUTBOX_TABLE} ({_COLUMNS}, published) VALUES (:id, :seq, {words.now_ms}, :published)"
        self.update_head = (
            f"UPDATE {OUTBOX_TABLE} SET stored_at_ms = {words.now_ms}, published = :published, records = :partitions,"
            " prepared_transaction_state = :state,"
            " forgotten = CASE WHEN :forgotten > coalesce(forgotten, 0) THEN :forgotten ELSE forgotten END"
            f" WHERE {OF_ID} AND seq = 0"
        )
        self.insert_head = f"INSERT INTO {OUTBOX_TABLE} ({_COLUMNS}) VALUES (:id, {UNNUMBERED}, 0)"
        self.number_head = f"UPDATE {OUTBOX_TABLE} SET seq = 0 WHERE {OF_ID} AND seq = {UNNUMBERED}"


OF_MYSQL: Final = SqlOfSteps(_MYSQL)
OF_SQLITE: Final = SqlOfSteps(_SQLITE)
OUTBOX_SQL: Final[Mapping[str, OutboxSql]] = {
    "postgresql": OF_POSTGRES,
    "mysql": OF_MYSQL,
    "mariadb": OF_MYSQL,
    "sqlite": OF_SQLITE,
}
"""By the name of the dialect."""

IS_BEING_ADDED: Final = f"SELECT 1 FROM {OUTBOX_TABLE} WHERE {OF_ID} AND seq = :seq FOR UPDATE NOWAIT"
"""Fails in InnoDB as long as a transaction is in progress that has added a block.

In READ COMMITTED it locks nothing where no row is. It says the same as an INSERT of the key, which cannot be limited to
less than a second.
"""


class OutboxInSteps(OutboxTable):
    """The outbox on MySQL, MariaDB or SQLite, and the block that is added."""

    def __init__(
        self, statements: Any, has_ended: HasEnded, sql: SqlOfSteps, *, forgets: Callable[[], bool] = forgets
    ) -> None:
        super().__init__(statements, has_ended, sql)
        self._in_steps = sql
        self._forgets = forgets

    async def append(self, transactional_id: str, content: bytes) -> StoredBlock:
        seq = await self._statements.inserted(self._in_steps.add, {"id": transactional_id, "content": content})
        return StoredBlock(seq, int(time.time() * 1000), content)

    async def _oldest(self, transactional_id: str, max_bytes: int) -> Sequence[Any]:
        sizes = await self._statements.rows(self._in_steps.sizes, {"id": transactional_id})
        if not sizes:
            return ()
        sums = accumulate(size or 0 for _, size in sizes)
        fitting = [seq for (seq, _), total in zip(sizes, sums, strict=True) if total <= max_bytes]
        last, newest = max(sizes[0][0], *fitting[:MOST_BLOCKS], 0), sizes[-1][0]
        found = await self._statements.rows(self._in_steps.blocks, {"id": transactional_id, "last": last})
        return found if last == newest else [*found, (newest, 0, None)]

    async def _publish(self, transactional_id: str, blocks: Sequence[StoredBlock], kept_as: Sent | None) -> None:
        last = await self._statements.rows(self._in_steps.last_tokens, {"id": transactional_id})
        published = {seq: token_of(bytes(content or b"")) for seq, content in last}
        if kept_as is None:
            published |= {block.seq: token_of(block.content) for block in blocks}
        if published:
            await self._delete(transactional_id, published)
        forgotten = await self._forget(transactional_id) if self._forgets() else 0
        if last or forgotten or kept_as is not None:
            await self._write_head(transactional_id, blocks, kept_as, forgotten)

    async def _delete(self, transactional_id: str, published: Mapping[int, str]) -> None:
        numbers = {"id": transactional_id, "numbers": json.dumps(list(published))}
        if await self._statements.changed(self._in_steps.delete, numbers) != len(published):
            raise gone(transactional_id, "nothing was published")
        tokens = json.dumps(list(published.values()))
        note = {"id": transactional_id, "seq": -max(published), "published": tokens}
        await self._statements.changed(self._in_steps.note, note)

    async def _forget(self, transactional_id: str) -> int:
        """Delete notes that are old, or seem to be. Return the highest number of any, 0 if there are none."""
        old = [seq for (seq,) in await self._statements.rows(self._in_steps.old_notes, {"id": transactional_id})]
        if old:
            numbers = {"id": transactional_id, "numbers": json.dumps(old)}
            await self._statements.changed(self._in_steps.delete, numbers)
        return max((-seq for seq in old), default=0)

    async def _write_head(
        self, transactional_id: str, blocks: Sequence[StoredBlock], kept_as: Sent | None, forgotten: int
    ) -> None:
        kept = [] if kept_as is None else [block.seq for block in blocks]
        values = {"id": transactional_id, "published": json.dumps(kept), "forgotten": forgotten}
        values |= as_last_batch(kept_as)
        if await self._statements.changed(self._in_steps.update_head, values) == 0:
            await self._statements.changed(self._in_steps.insert_head, {"id": transactional_id})
            await self._statements.changed(self._in_steps.number_head, {"id": transactional_id})
            await self._statements.changed(self._in_steps.update_head, values)

    async def is_there(self, transactional_id: str, added: StoredBlock) -> bool:
        """Return whether a block is in the table, as its own transaction sees it."""
        values = {"id": transactional_id, "seq": added.seq, "content": added.content}
        return bool(await self._statements.rows(self._in_steps.is_there, values))

    def _marks_of(self, added: StoredBlock) -> Mapping[str, Any]:
        return {"taken_out": -added.seq, "noted": f'%"{token_of(added.content)}"%'}
