"""The outbox on MySQL, MariaDB and SQLite, with the statements of each dialect: what differs is in `_Words`.

The table, and what its rows mean, are those of PostgreSQL (`outbox_statements.py`), with lists as JSON texts. A batch
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
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, Protocol

from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.record_block import token_of
from dualwrite.recipes.core.store import (
    NO_BATCH,
    NOT_COUNTED,
    NOTHING_STORED,
    Added,
    LastBatch,
    Sent,
    Stored,
    StoredBlock,
)
from dualwrite.recipes.sql.lease_statements import NOW_MS
from dualwrite.recipes.sql.outbox_statements import (
    MOST_BLOCKS,
    MOST_FORGOTTEN,
    OUTBOX_TABLE,
    PUBLISHED_KEPT_MS,
    HasEnded,
    OutboxStatements,
    batch_of,
    forgets,
    gone,
    no_longer_known,
)

_UNNUMBERED: Final = -(2**63) + 1
"""The number of a row that is to become number 0, for which MySQL would choose another."""


class _Words(NamedTuple):
    """The parts of the statements in which the dialects differ."""

    now_ms: str
    listed: str
    """The numbers in a list, `{0}`, as a table `listed`."""
    number: str
    place: str
    size: str
    """The function that returns the bytes of a text."""
    by_key: str
    """Makes a SELECT find rows by their keys."""
    delete: str
    """Deletes the rows of an id with the numbers in the list `:numbers`."""
    new_number: str
    """The number of a new block; empty if the table gives it."""


_OF_ID: Final = "transactional_id = :id"
_NOTES: Final = f"{_OF_ID} AND seq < 0 AND published IS NOT NULL"
_COLUMNS: Final = "transactional_id, seq, stored_at_ms"

_LISTED_IN_MYSQL: Final = "JSON_TABLE({0}, '$[*]' COLUMNS (place FOR ORDINALITY, number BIGINT PATH '$')) AS listed"
_MYSQL: Final = _Words(
    now_ms=NOW_MS["mysql"],
    listed=_LISTED_IN_MYSQL,
    number="listed.number",
    place="listed.place",
    size="OCTET_LENGTH",
    by_key=" FORCE INDEX (PRIMARY)",
    delete=(
        f"DELETE gone FROM {_LISTED_IN_MYSQL.format(':numbers')} STRAIGHT_JOIN {OUTBOX_TABLE} AS gone"
        f" FORCE INDEX (PRIMARY) ON gone.{_OF_ID} AND gone.seq = listed.number"
    ),
    new_number="",
)
_SQLITE: Final = _Words(
    now_ms=NOW_MS["sqlite"],
    listed="json_each({0}) AS listed",
    number="listed.value",
    place="listed.key",
    size="length",
    by_key="",
    delete=f"DELETE FROM {OUTBOX_TABLE} WHERE {_OF_ID} AND seq IN (SELECT value FROM json_each(:numbers))",
    new_number=(
        f"1 + max(coalesce((SELECT max(seq) FROM {OUTBOX_TABLE} WHERE {_OF_ID}), 0),"
        f" coalesce((SELECT -min(seq) FROM {OUTBOX_TABLE} WHERE {_OF_ID}), 0),"
        f" coalesce((SELECT forgotten FROM {OUTBOX_TABLE} WHERE {_OF_ID} AND seq = 0), 0))"
    ),
)


class OutboxSql:
    """The statements of one dialect."""

    def __init__(self, words: _Words) -> None:
        of_batch = f"{OUTBOX_TABLE} AS kept CROSS JOIN {words.listed.format('kept.published')}"
        last_batch = f"SELECT {words.number} FROM {of_batch} WHERE kept.{_OF_ID} AND kept.seq = 0"
        waiting = f"{OUTBOX_TABLE}{words.by_key} WHERE {_OF_ID} AND seq > 0 AND seq NOT IN ({last_batch})"
        block = (
            f" LEFT JOIN {OUTBOX_TABLE} AS block ON block.transactional_id = kept.transactional_id"
            f" AND block.seq = {words.number} WHERE kept.{_OF_ID} AND kept.seq = 0"
        )
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
        self.is_there = f"SELECT 1 FROM {OUTBOX_TABLE} WHERE {_OF_ID} AND seq = :seq AND records = :content"
        self.evidence = (
            f"SELECT EXISTS (SELECT 1 FROM {OUTBOX_TABLE} WHERE {_OF_ID} AND seq IN (:seq, :taken_out)"
            f" AND records = :content) OR EXISTS (SELECT 1 FROM {OUTBOX_TABLE}"
            f" WHERE {_NOTES} AND seq <= :taken_out AND published LIKE :noted),"
            f" (SELECT coalesce(max(forgotten), 0) FROM {OUTBOX_TABLE} WHERE {_OF_ID} AND seq = 0)"
        )
        self.newest = f"SELECT seq, stored_at_ms FROM {waiting} ORDER BY seq DESC LIMIT 1"
        self.sizes = f"SELECT seq, {words.size}(records) FROM {waiting} ORDER BY seq LIMIT {MOST_BLOCKS + 1}"
        self.blocks = f"SELECT seq, stored_at_ms, records FROM {waiting} AND seq <= :last ORDER BY seq"
        self.take_out = f"UPDATE {OUTBOX_TABLE} SET seq = -seq WHERE {_OF_ID} AND seq = :seq"
        self.last_batch = (
            f"SELECT block.records, kept.records FROM {of_batch}{block}"
            f" AND kept.prepared_transaction_state = :state ORDER BY {words.place}"
        )
        self.last_tokens = f"SELECT block.seq, substr(block.records, 1, 9) FROM {of_batch}{block.removeprefix(' LEFT')}"
        self.delete = words.delete
        self.note = f"INSERT INTO {OUTBOX_TABLE} ({_COLUMNS}, published) VALUES (:id, :seq, {words.now_ms}, :published)"
        self.old_notes = (
            f"SELECT seq FROM (SELECT seq, stored_at_ms FROM {OUTBOX_TABLE} WHERE {_NOTES} ORDER BY seq DESC"
            f" LIMIT {MOST_FORGOTTEN}) AS first WHERE abs({words.now_ms} - stored_at_ms) > {PUBLISHED_KEPT_MS}"
        )
        self.update_head = (
            f"UPDATE {OUTBOX_TABLE} SET stored_at_ms = {words.now_ms}, published = :published, records = :partitions,"
            " prepared_transaction_state = :state,"
            " forgotten = CASE WHEN :forgotten > coalesce(forgotten, 0) THEN :forgotten ELSE forgotten END"
            f" WHERE {_OF_ID} AND seq = 0"
        )
        self.insert_head = f"INSERT INTO {OUTBOX_TABLE} ({_COLUMNS}) VALUES (:id, {_UNNUMBERED}, 0)"
        self.number_head = f"UPDATE {OUTBOX_TABLE} SET seq = 0 WHERE {_OF_ID} AND seq = {_UNNUMBERED}"
        self.has_waiting = f"SELECT EXISTS (SELECT 1 FROM {waiting})"
        self.backlog = (
            f"SELECT count(*), coalesce(sum({words.size}(records)), 0), coalesce(min(stored_at_ms), 0) FROM {waiting}"
        )
        self.is_waiting = (
            f"seq > 0 AND (transactional_id, seq) NOT IN"
            f" (SELECT kept.transactional_id, {words.number} FROM {of_batch} WHERE kept.seq = 0)"
        )
        """Whether a row of any id is that of a block that waits."""


OF_MYSQL: Final = OutboxSql(_MYSQL)
OF_SQLITE: Final = OutboxSql(_SQLITE)

IS_BEING_ADDED: Final = f"SELECT 1 FROM {OUTBOX_TABLE} WHERE {_OF_ID} AND seq = :seq FOR UPDATE NOWAIT"
"""Fails in InnoDB as long as a transaction is in progress that has added a block.

In READ COMMITTED it locks nothing where no row is. It says the same as an INSERT of the key, which cannot be limited to
less than a second.
"""


class Statements(OutboxStatements, Protocol):
    """The same, and statements that add rows."""

    async def inserted(self, sql: str, values: Mapping[str, Any]) -> int:
        """Execute an INSERT, and return the number that the row got."""


class OutboxInSteps:
    """`StoredBlocks` in the outbox of MySQL, MariaDB or SQLite, for the publisher, and the block that is added."""

    def __init__(
        self, statements: Statements, has_ended: HasEnded, sql: OutboxSql, *, forgets: Callable[[], bool] = forgets
    ) -> None:
        self._statements = statements
        self._has_ended = has_ended
        self._sql = sql
        self._forgets = forgets

    async def add(self, transactional_id: str, content: bytes, *, now_ms: int) -> Added:
        """Add a block in its own transaction, which has locked nothing."""
        seq = await self._statements.inserted(self._sql.add, {"id": transactional_id, "content": content})
        return Added(seq, now_ms, content)

    async def stored(self, transactional_id: str) -> Stored:
        if not await self._statements.has_outbox_table():
            return NOTHING_STORED
        newest = await self._statements.rows(self._sql.newest, {"id": transactional_id})
        return Stored(newest[0][0], NOT_COUNTED, newest[0][1]) if newest else NOTHING_STORED

    async def append(self, transactional_id: str, content: bytes, *, before: Stored, now_ms: int) -> StoredBlock:
        return StoredBlock(*await self.add(transactional_id, content, now_ms=now_ms))

    async def waiting(self, transactional_id: str, *, max_bytes: int) -> tuple[Stored, Sequence[StoredBlock]]:
        if not await self._statements.has_outbox_table():
            return NOTHING_STORED, ()
        sizes = await self._statements.rows(self._sql.sizes, {"id": transactional_id})
        if not sizes:
            return NOTHING_STORED, ()
        sums = accumulate(size or 0 for _, size in sizes)
        fitting = [seq for (seq, _), total in zip(sizes, sums, strict=True) if total <= max_bytes]
        last = max(sizes[0][0], *fitting[:MOST_BLOCKS], 0)
        found = await self._statements.rows(self._sql.blocks, {"id": transactional_id, "last": last})
        taken = [StoredBlock(seq, at_ms, b"" if records is None else bytes(records)) for seq, at_ms, records in found]
        since_ms = taken[0].stored_at_ms if taken else 0
        return Stored(sizes[-1][0], NOT_COUNTED, since_ms), taken

    async def take_out(self, transactional_id: str, block: StoredBlock, *, before: Stored) -> None:
        if await self._statements.changed(self._sql.take_out, {"id": transactional_id, "seq": block.seq}) != 1:
            raise gone(transactional_id, "nothing was changed")

    async def publish(
        self, transactional_id: str, blocks: Sequence[StoredBlock], *, before: Stored, kept_as: Sent | None = None
    ) -> None:
        if not blocks and not await self._statements.has_outbox_table():
            return
        last = await self._statements.rows(self._sql.last_tokens, {"id": transactional_id})
        published = {seq: token_of(bytes(content or b"")) for seq, content in last}
        if kept_as is None:
            published |= {block.seq: token_of(block.content) for block in blocks}
        if published:
            await self._delete(transactional_id, published)
        forgotten = await self._forget(transactional_id) if self._forgets() else 0
        if last or forgotten or kept_as is not None:
            await self._write_head(transactional_id, blocks, kept_as, forgotten)

    async def _delete(self, transactional_id: str, published: Mapping[int, str]) -> None:
        numbers = json.dumps(list(published))
        if await self._statements.changed(self._sql.delete, {"id": transactional_id, "numbers": numbers}) != len(
            published
        ):
            raise gone(transactional_id, "nothing was published")
        tokens = json.dumps(list(published.values()))
        note = {"id": transactional_id, "seq": -max(published), "published": tokens}
        await self._statements.changed(self._sql.note, note)

    async def _forget(self, transactional_id: str) -> int:
        """Delete notes that are old, or seem to be. Return the highest number of any, 0 if there are none."""
        old = [seq for (seq,) in await self._statements.rows(self._sql.old_notes, {"id": transactional_id})]
        if old:
            await self._statements.changed(self._sql.delete, {"id": transactional_id, "numbers": json.dumps(old)})
        return max((-seq for seq in old), default=0)

    async def _write_head(
        self, transactional_id: str, blocks: Sequence[StoredBlock], kept_as: Sent | None, forgotten: int
    ) -> None:
        kept = [] if kept_as is None else [block.seq for block in blocks]
        values = {
            "id": transactional_id,
            "published": json.dumps(kept),
            "partitions": None if kept_as is None else " ".join(map(str, kept_as.partitions)).encode(),
            "state": None if kept_as is None else str(kept_as.state),
            "forgotten": forgotten,
        }
        if await self._statements.changed(self._sql.update_head, values) == 0:
            await self._statements.changed(self._sql.insert_head, {"id": transactional_id})
            await self._statements.changed(self._sql.number_head, {"id": transactional_id})
            await self._statements.changed(self._sql.update_head, values)

    async def last_batch(self, transactional_id: str, state: PreparedTxnState) -> LastBatch:
        if not await self._statements.has_outbox_table():
            return NO_BATCH
        found = await self._statements.rows(self._sql.last_batch, {"id": transactional_id, "state": str(state)})
        return batch_of(transactional_id, found)

    async def is_there(self, transactional_id: str, added: Added) -> bool:
        """Return whether a block is in the table, as its own transaction sees it."""
        values = {"id": transactional_id, "seq": added.seq, "content": added.content}
        return bool(await self._statements.rows(self._sql.is_there, values))

    async def was_committed(self, transactional_id: str, added: Added) -> bool | None:
        """Return whether the transaction that added a block was committed; None if it is in progress.

        Raises StateRowError if the evidence may have been deleted.
        """
        if not await self._has_ended(transactional_id, added.seq):
            return None
        values = {
            "id": transactional_id,
            "seq": added.seq,
            "taken_out": -added.seq,
            "content": added.content,
            "noted": f'%"{token_of(added.content)}"%',
        }
        ((is_there, forgotten),) = await self._statements.rows(self._sql.evidence, values)
        if not is_there and added.seq <= forgotten:
            raise no_longer_known(transactional_id, added.seq, forgotten)
        return bool(is_there)
