"""The outbox of a pool in the table `kafka_transaction_outbox`, as SQL for PostgreSQL that a backend executes.

A block adds its records as one row, in its own transaction and without a lock of ours. The server assigns `seq` at that
moment, so a transaction that had to wait for a row lock of an earlier one has a higher number, and every reader of its
row sees the earlier one too. Reading in the order of `seq` therefore keeps the order of such commits. A row with a
lower number may still be committed later, but only by a transaction that conflicts with none of these.

Rows are read and deleted only by a transaction that has locked the state row of the outbox's id. A block that an
operator has taken out keeps its row, under a negative number. Published blocks are noted for some minutes.

Where a broker may abort what was decided, the rows of the last batch stay until the next one is decided, or the row is
settled: by then their end is known (`core/last_batch.py`). The row with the number 0 has their numbers, by which those
that wait are told from them, and the partitions of their records.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from dualwrite.errors import StateRowError
from dualwrite.prepared_state import PreparedTxnState
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
from dualwrite.recipes.sql.lease_statements import POSTGRES_NOW_MS
from dualwrite.recipes.sql.pinned_tables import PinnedTables
from dualwrite.recipes.sql.postgres import ANOTHER_TRANSACTION, BY_INDEX, IS_MARKED, LOCATION, RAISE, with_literals

OUTBOX_TABLE: Final = "kafka_transaction_outbox"

MOST_BLOCKS: Final = 1_000
"""The most blocks that are published at a time."""

PUBLISHED_KEPT_MS: Final = 300_000
"""How long published blocks stay noted, by the server's clock. No response relies on this clock."""

_FORGETS_ONE_IN: Final = 16
"""One in this many batches, at random, also deletes old notes: that takes half as long as publishing a batch."""

MOST_FORGOTTEN: Final = 32
"""How many notes it deletes: more than are made meanwhile."""

_OF_ID: Final = "transactional_id = :id"
_OF_BLOCK: Final = f"{_OF_ID} AND seq = CAST(:seq AS bigint)"
_LAST_BATCH: Final = f"SELECT unnest(published) FROM {OUTBOX_TABLE} WHERE {_OF_ID} AND seq = 0"
_WAITING: Final = f"{_OF_ID} AND seq > 0 AND seq NOT IN ({_LAST_BATCH})"
"""A hash table of the numbers filters the rows as the index orders them; a join would read all rows, to sort them."""

_GONE_NUMBERS: Final = "CAST(CAST(:gone AS text) AS bigint[])"  # for asyncpg, which looks up the types of arrays
_KEPT_NUMBERS: Final = "CAST(CAST(:kept AS text) AS bigint[])"
_NOTED: Final = f"{_OF_ID} AND seq < 0 AND published IS NOT NULL"

ADD: Final = (
    f"INSERT INTO {OUTBOX_TABLE} (transactional_id, stored_at_ms, records)"
    f" VALUES (CASE WHEN {IS_MARKED} THEN CAST(:id AS varchar) END, {POSTGRES_NOW_MS}, CAST(:content AS bytea))"
    f" RETURNING concat_ws(' ', seq, stored_at_ms, current_setting('synchronous_commit'), {LOCATION})"
)
"""Adds a block. Violates NOT NULL if this is not the transaction of `:mark` (empty: any).

Returns one text, because each column costs a driver a few microseconds; `place_of` reads it. Without prepared
statements, which a pooler may not allow, the server plans it each time: that takes half as long as planning an
equivalent statement with WHERE and set_config.
"""

NOT_MARKED: Final = "23502"
"""The SQLSTATE of `ADD` in a transaction without the mark."""

_DURABLE: Final = ("on", "remote_apply")
"""The values of synchronous_commit with which COMMIT waits for disk and standbys."""

_COMMIT_IF_ADDED: Final = (
    f"SELECT CAST(CASE WHEN EXISTS (SELECT 1 FROM {OUTBOX_TABLE} WHERE {_OF_BLOCK}) AND {IS_MARKED} THEN '1'"
    f" ELSE '{ANOTHER_TRANSACTION} ' || :token END AS integer), {RAISE}; COMMIT"
)
WAIT_BRIEFLY: Final = "SELECT set_config('lock_timeout', '20ms', true)"
"""Limits how long `ADD_AGAIN` waits, while its transaction keeps the publisher waiting."""

ADD_AGAIN: Final = (
    f"INSERT INTO {OUTBOX_TABLE} (transactional_id, seq, stored_at_ms)"
    " VALUES (CAST(:id AS varchar), CAST(:seq AS bigint), 0) ON CONFLICT DO NOTHING"
)
"""Inserts a block's key once more, in a transaction that is rolled back.

It waits until no transaction in progress has inserted the same key; the next statement sees that key if it was
committed.
"""
_SELECT_EVIDENCE: Final = (
    f"SELECT EXISTS (SELECT 1 FROM {OUTBOX_TABLE} WHERE {_OF_ID} AND records = CAST(:content AS bytea)"
    " AND seq IN (CAST(:seq AS bigint), -CAST(:seq AS bigint)) AND stored_at_ms = CAST(:stored_at AS bigint))"
    f" OR EXISTS (SELECT 1 FROM {OUTBOX_TABLE} WHERE {_NOTED} AND seq <= -CAST(:seq AS bigint)"
    " AND hashint8extended(CAST(:seq AS bigint), CAST(:stored_at AS bigint)) = ANY(published)),"
    f" (SELECT coalesce(max(forgotten), 0) FROM {OUTBOX_TABLE} WHERE {_OF_ID} AND seq = 0)"
)
_SELECT_NEWEST: Final = f"SELECT seq, stored_at_ms FROM {OUTBOX_TABLE} WHERE {_WAITING} ORDER BY seq DESC LIMIT 1"
_SELECT_OLDEST: Final = (
    "SELECT seq, stored_at_ms, CASE WHEN bytes_before = 0 OR bytes_before + octet_length(records) <="
    " CAST(:most AS bigint) THEN records END FROM (SELECT seq, stored_at_ms, records,"
    " sum(octet_length(records)) OVER (ORDER BY seq) - octet_length(records) AS bytes_before"
    f" FROM (SELECT seq, stored_at_ms, coalesce(records, '') AS records FROM {OUTBOX_TABLE} WHERE {_WAITING}"
    f" ORDER BY seq LIMIT {MOST_BLOCKS + 1}) AS oldest) AS summed ORDER BY seq"
)
"""The oldest blocks; those beyond the byte limit come without their records. The last one shows that more wait.

A block whose records are missing in the table counts as unreadable, not as too large: it comes with empty records.
"""

_TAKE_OUT: Final = f"UPDATE {OUTBOX_TABLE} SET seq = -seq WHERE {_OF_BLOCK}"
_FORGOTTEN: Final = (
    f" forgotten AS (DELETE FROM {OUTBOX_TABLE} WHERE {_OF_ID} AND seq = ANY(ARRAY(SELECT seq FROM"
    f" (SELECT seq, stored_at_ms FROM {OUTBOX_TABLE} WHERE {_NOTED} ORDER BY seq DESC LIMIT {MOST_FORGOTTEN}) AS first"
    f" WHERE abs({POSTGRES_NOW_MS} - stored_at_ms) > {PUBLISHED_KEPT_MS})) RETURNING -seq AS up_to),"
)
_PUBLISH_AND_FORGET: Final = (
    f"WITH gone AS (DELETE FROM {OUTBOX_TABLE} WHERE {_OF_ID}"
    f" AND seq = ANY(ARRAY({_LAST_BATCH} UNION ALL SELECT unnest({_GONE_NUMBERS})))"
    f" RETURNING seq, hashint8extended(seq, stored_at_ms) AS block),{_FORGOTTEN}"
    f" noted AS (INSERT INTO {OUTBOX_TABLE} (transactional_id, seq, stored_at_ms, published) SELECT"
    f" CAST(:id AS varchar), -max(seq), {POSTGRES_NOW_MS}, array_agg(block) FROM gone HAVING count(*) > 0),"
    f" kept AS (INSERT INTO {OUTBOX_TABLE} AS was (transactional_id, seq, stored_at_ms, published, records,"
    " prepared_transaction_state, forgotten)"
    f" VALUES (CAST(:id AS varchar), 0, {POSTGRES_NOW_MS}, {_KEPT_NUMBERS}, CAST(:partitions AS bytea),"
    " CAST(:state AS varchar), (SELECT max(up_to) FROM forgotten))"
    " ON CONFLICT (transactional_id, seq) DO UPDATE SET stored_at_ms = excluded.stored_at_ms,"
    " published = excluded.published, records = excluded.records,"
    " prepared_transaction_state = excluded.prepared_transaction_state,"
    " forgotten = greatest(excluded.forgotten, was.forgotten))"
    f" SELECT count(*) FROM {OUTBOX_TABLE} WHERE {_OF_ID} AND seq = ANY({_GONE_NUMBERS} || {_KEPT_NUMBERS})"
)
"""Deletes the last batch and the blocks `:gone`, and notes them; `:kept` are the last batch from now on.

Returns how many of `:gone` and `:kept` were there. A note has the number of its newest block, and a hash of each
block's number and time, because after a crash the server can reuse the number. Notes that are old, or seem to be, are
deleted; the row with the number 0 keeps the highest number of any, so that it is right regardless of the clock.
"""
_PUBLISH: Final = _PUBLISH_AND_FORGET.replace(_FORGOTTEN, "").replace("(SELECT max(up_to) FROM forgotten)", "NULL")
"""The same, and deletes no notes."""

SELECT_LAST_BATCH: Final = (
    f"SELECT block.records, last.records FROM {OUTBOX_TABLE} AS last"
    " CROSS JOIN unnest(last.published) WITH ORDINALITY AS sent (seq, place)"
    f" LEFT JOIN {OUTBOX_TABLE} AS block ON block.transactional_id = last.transactional_id AND block.seq = sent.seq"
    " WHERE last.transactional_id = :id AND last.seq = 0 AND last.prepared_transaction_state = :state ORDER BY place"
)
SELECT_LAST_BATCHES: Final = f"SELECT transactional_id, prepared_transaction_state FROM {OUTBOX_TABLE} WHERE seq = 0"
HAS_WAITING: Final = f"SELECT EXISTS (SELECT 1 FROM {OUTBOX_TABLE} WHERE {_WAITING})"
SELECT_BACKLOG: Final = (
    "SELECT count(*), CAST(coalesce(sum(octet_length(records)), 0) AS bigint), coalesce(min(stored_at_ms), 0)"
    f" FROM {OUTBOX_TABLE} WHERE {_WAITING}"
)
IS_WAITING: Final = (
    "seq > 0 AND (transactional_id, seq) NOT IN"
    f" (SELECT transactional_id, unnest(published) FROM {OUTBOX_TABLE} WHERE seq = 0)"
)
"""Whether a row of any id is that of a block that waits."""

RAISE_SEQUENCE: Final = (
    "SELECT setval(sequence, greatest(nextval(sequence),"
    f" (SELECT coalesce(max(abs(seq)), 1) FROM {OUTBOX_TABLE})))"
    " FROM (SELECT CAST(pg_get_serial_sequence(:name, 'seq') AS regclass) AS sequence) AS named"
)
"""Makes the next number higher than all in the table `:name`: a copy by rows has the rows, and a new sequence."""

VACUUM: Final = f"VACUUM (SKIP_LOCKED, INDEX_CLEANUP ON, TRUNCATE OFF) {OUTBOX_TABLE}"
"""Removes dead rows. It is not executed in a transaction, and waits for no lock."""

MAY_VACUUM: Final = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(:name)"
"""Whether the role owns the table `:name`; for other tables VACUUM only logs a warning."""


def commit_if_added(pinned: PinnedTables, transactional_id: str, added: Added, *, mark: str, token: str) -> str:
    """Return a message that makes its COMMIT durable and commits, if a block is still added, in its transaction.

    Otherwise the server does not reach COMMIT, and its error quotes ANOTHER_TRANSACTION and the token.
    """
    sql = pinned.sql(_COMMIT_IF_ADDED)
    return with_literals(sql, id=transactional_id, seq=str(added.seq), mark=mark, token=token)


class Place(NamedTuple):
    """The result of `ADD`."""

    added: Added
    is_durable: bool
    """Whether COMMIT waits for disk and standbys already; otherwise `RAISE` must precede it."""
    location: str
    """The database, as `LOCATION` names it."""


def place_of(text: str, content: bytes) -> Place:
    """Read the text that `ADD` returns."""
    seq, stored_at_ms, waits, location = text.split(" ", 3)
    return Place(Added(int(seq), int(stored_at_ms), content), waits in _DURABLE, location)


def forgets() -> bool:
    """Return whether a batch is one that also deletes old notes."""
    return not random.randrange(_FORGETS_ONE_IN)


class OutboxStatements(Protocol):
    """Executes statements in one transaction; parameters are written `:name`."""

    async def rows(self, sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Execute a SELECT and return its rows."""

    async def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        """Execute a statement and return the number of rows it changed."""

    async def has_outbox_table(self) -> bool:
        """Return whether the table exists; a positive answer is cached."""


HasEnded = Callable[[str, int], Awaitable[bool]]
"""Returns whether no transaction in progress has added the block of an id with a number."""


class OutboxTable:
    """`StoredBlocks` in the outbox, for the publisher. Does not count the bytes, which would be slow."""

    def __init__(self, statements: OutboxStatements, has_ended: HasEnded) -> None:
        self._statements = statements
        self._has_ended = has_ended

    async def stored(self, transactional_id: str) -> Stored:
        if not await self._statements.has_outbox_table():
            return NOTHING_STORED
        newest = await self._statements.rows(_SELECT_NEWEST, {"id": transactional_id})
        return Stored(newest[0][0], NOT_COUNTED, newest[0][1]) if newest else NOTHING_STORED

    async def append(self, transactional_id: str, content: bytes, *, before: Stored, now_ms: int) -> StoredBlock:
        values = {"id": transactional_id, "content": content, "mark": ""}
        ((text,),) = await self._statements.rows(ADD, values)
        return StoredBlock(place_of(text, content).added.seq, now_ms, content)

    async def waiting(self, transactional_id: str, *, max_bytes: int) -> tuple[Stored, Sequence[StoredBlock]]:
        if not await self._statements.has_outbox_table():
            return NOTHING_STORED, ()
        await self._statements.rows(BY_INDEX, {})
        found = await self._statements.rows(_SELECT_OLDEST, {"id": transactional_id, "most": max_bytes})
        if not found:
            return NOTHING_STORED, ()
        taken = [StoredBlock(seq, at_ms, bytes(records)) for seq, at_ms, records in found if records is not None]
        return Stored(found[-1][0], NOT_COUNTED, found[0][1]), taken[:MOST_BLOCKS]

    async def take_out(self, transactional_id: str, block: StoredBlock, *, before: Stored) -> None:
        if await self._statements.changed(_TAKE_OUT, {"id": transactional_id, "seq": block.seq}) != 1:
            raise gone(transactional_id, "nothing was changed")

    async def publish(
        self, transactional_id: str, blocks: Sequence[StoredBlock], *, before: Stored, kept_as: Sent | None = None
    ) -> None:
        if not blocks and not await self._statements.has_outbox_table():
            return
        numbers = f"{{{','.join(str(block.seq) for block in blocks)}}}"
        values = {
            "id": transactional_id,
            "gone": numbers if kept_as is None else "{}",
            "kept": "{}" if kept_as is None else numbers,
            "state": None if kept_as is None else str(kept_as.state),
            "partitions": None if kept_as is None else " ".join(map(str, kept_as.partitions)).encode(),
        }
        sql = _PUBLISH_AND_FORGET if forgets() else _PUBLISH
        ((found,),) = await self._statements.rows(sql, values)
        if found != len(blocks):
            raise gone(transactional_id, "nothing was published")

    async def last_batch(self, transactional_id: str, state: PreparedTxnState) -> LastBatch:
        if not await self._statements.has_outbox_table():
            return NO_BATCH
        found = await self._statements.rows(SELECT_LAST_BATCH, {"id": transactional_id, "state": str(state)})
        return batch_of(transactional_id, found)

    async def was_committed(self, transactional_id: str, added: Added) -> bool | None:
        """Return whether the transaction that added a block was committed; None if it is in progress.

        Raises StateRowError if the evidence may have been deleted.
        """
        if not await self._has_ended(transactional_id, added.seq):
            return None
        values = {"id": transactional_id, "seq": added.seq, "content": added.content, "stored_at": added.stored_at_ms}
        ((is_there, forgotten),) = await self._statements.rows(_SELECT_EVIDENCE, values)
        if not is_there and added.seq <= forgotten:
            raise no_longer_known(transactional_id, added.seq, forgotten)
        return bool(is_there)


def gone(transactional_id: str, what: str) -> StateRowError:
    """Return the error for a row that is gone, or has changed, under the lock."""
    return StateRowError(
        f"a block of {transactional_id!r} is missing from {OUTBOX_TABLE}, although the state row of the id is locked: "
        f"another program writes to this table; {what}"
    )


def no_longer_known(transactional_id: str, seq: int, forgotten: int) -> StateRowError:
    """Return the error for a block that is not there, and may have been published longer ago than is noted."""
    return StateRowError(
        f"block {seq} of {transactional_id!r} is not in {OUTBOX_TABLE}, whose notes of published blocks up to "
        f"{forgotten} are deleted: it was either committed and published, or rolled back; check the application's "
        "tables for the changes of the block"
    )


def batch_of(transactional_id: str, found: Sequence[Sequence[Any]]) -> LastBatch:
    """Return the last batch from the records of its blocks, each beside the partitions of all their records.

    Raises StateRowError if a block is gone.
    """
    if any(content is None for content, _ in found):
        raise gone(
            transactional_id,
            "nothing was published again: restore the block from a backup, or give the batch up by emptying "
            "prepared_transaction_state of the row with seq 0",
        )
    partitions = [int(each) for each in bytes(found[0][1]).split()] if found else []
    return LastBatch([bytes(content) for content, _ in found], partitions)
