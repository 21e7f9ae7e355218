"""The outbox of a pool as SQL for PostgreSQL that a backend executes; `outbox_steps.py` says what its rows mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from dualwrite.recipes.core.store import Sent, StoredBlock
from dualwrite.recipes.sql.lease_statements import POSTGRES_NOW_MS
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
from dualwrite.recipes.sql.pinned_tables import PinnedTables
from dualwrite.recipes.sql.postgres import ANOTHER_TRANSACTION, BY_INDEX, IS_MARKED, LOCATION, RAISE, BeforeCommit

_GONE_NUMBERS: Final = "CAST(CAST(:gone AS text) AS bigint[])"  # for asyncpg, which looks up the types of arrays
_KEPT_NUMBERS: Final = "CAST(CAST(:kept AS text) AS bigint[])"
_BLOCK: Final = "CAST(:seq AS bigint)"

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

_IF_ADDED: Final = (
    f"SELECT CAST(CASE WHEN EXISTS (SELECT 1 FROM {OUTBOX_TABLE} WHERE {OF_ID} AND seq = {_BLOCK})"
    f" AND {IS_MARKED} THEN '1'"
    f" ELSE '{ANOTHER_TRANSACTION} ' || :token END AS integer), {RAISE}"
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
OF_POSTGRES: Final = OutboxSql(
    Words(
        now_ms=POSTGRES_NOW_MS,
        listed="unnest({0}) WITH ORDINALITY AS listed (number, place)",
        number="listed.number",
        place="listed.place",
        size="octet_length",
        block=_BLOCK,
        is_block=(
            f"records = CAST(:content AS bytea) AND seq IN ({_BLOCK}, -{_BLOCK})"
            " AND stored_at_ms = CAST(:stored_at AS bigint)"
        ),
        is_noted=f"seq <= -{_BLOCK} AND hashint8extended({_BLOCK}, CAST(:stored_at AS bigint)) = ANY(published)",
        numbers=f"SELECT unnest(published) FROM {OUTBOX_TABLE} WHERE {OF_ID} AND seq = 0",
        sum="CAST(coalesce(sum({0}), 0) AS bigint)",
        is_vacuumed=True,
    )
)
_SELECT_OLDEST: Final = (
    "SELECT seq, stored_at_ms, CASE WHEN bytes_before = 0 OR bytes_before + octet_length(records) <="
    " CAST(:most AS bigint) THEN records END FROM (SELECT seq, stored_at_ms, records,"
    " sum(octet_length(records)) OVER (ORDER BY seq) - octet_length(records) AS bytes_before"
    f" FROM (SELECT seq, stored_at_ms, coalesce(records, '') AS records FROM {OF_POSTGRES.waiting}"
    f" ORDER BY seq LIMIT {MOST_BLOCKS + 1}) AS oldest) AS summed ORDER BY seq"
)
"""The oldest blocks; those beyond the byte limit come without their records. The last one shows that more wait."""

_FORGOTTEN: Final = (
    f" forgotten AS (DELETE FROM {OUTBOX_TABLE} WHERE {OF_ID} AND seq = ANY(ARRAY({OF_POSTGRES.old_notes}))"
    " RETURNING -seq AS up_to),"
)
_PUBLISH_AND_FORGET: Final = (
    f"WITH gone AS (DELETE FROM {OUTBOX_TABLE} WHERE {OF_ID}"
    f" AND seq = ANY(ARRAY({OF_POSTGRES.numbers} UNION ALL SELECT unnest({_GONE_NUMBERS})))"
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
    f" SELECT count(*) FROM {OUTBOX_TABLE} WHERE {OF_ID} AND seq = ANY({_GONE_NUMBERS} || {_KEPT_NUMBERS})"
)
"""Deletes the last batch and the blocks `:gone`, and notes them; `:kept` are the last batch from now on.

Returns how many of `:gone` and `:kept` were there. A note has the number of its newest block, and a hash of each
block's number and time, because after a crash the server can reuse the number. Notes that are old, or seem to be, are
deleted; the row with the number 0 keeps the highest number of any, so that it is right regardless of the clock.
"""
_PUBLISH: Final = _PUBLISH_AND_FORGET.replace(_FORGOTTEN, "").replace("(SELECT max(up_to) FROM forgotten)", "NULL")
"""The same, and deletes no notes."""


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


def if_added(pinned: PinnedTables, transactional_id: str, added: StoredBlock, *, mark: str, token: str) -> BeforeCommit:
    """Return a statement that makes COMMIT durable if the block is added; else its error quotes the token."""
    values = {"id": transactional_id, "seq": str(added.seq), "mark": mark, "token": token}
    return BeforeCommit(pinned.sql(_IF_ADDED), values)


class Place(NamedTuple):
    """The result of `ADD`."""

    added: StoredBlock
    is_durable: bool
    """Whether COMMIT waits for disk and standbys already; otherwise `RAISE` must precede it."""
    location: str
    """The database, as `LOCATION` names it."""


def place_of(text: str, content: bytes) -> Place:
    seq, stored_at_ms, waits, location = text.split(" ", 3)
    return Place(StoredBlock(int(seq), int(stored_at_ms), content), waits in _DURABLE, location)


class PostgresOutbox(OutboxTable):
    """The outbox on PostgreSQL, which publishes by one statement."""

    def __init__(self, statements: Any, has_ended: HasEnded) -> None:
        super().__init__(statements, has_ended, OF_POSTGRES)

    async def append(self, transactional_id: str, content: bytes) -> StoredBlock:
        ((text,),) = await self._statements.rows(ADD, {"id": transactional_id, "content": content, "mark": ""})
        return place_of(text, content).added

    async def _oldest(self, transactional_id: str, max_bytes: int) -> Sequence[Any]:
        await self._statements.rows(BY_INDEX, {})
        values = {"id": transactional_id, "most": max_bytes}
        found: Sequence[Any] = await self._statements.rows(_SELECT_OLDEST, values)
        return found

    async def _publish(self, transactional_id: str, blocks: Sequence[StoredBlock], kept_as: Sent | None) -> None:
        numbers = f"{{{','.join([str(block.seq) for block in blocks])}}}"
        values = {"id": transactional_id, "gone": "{}", "kept": "{}", **as_last_batch(kept_as)}
        values["gone" if kept_as is None else "kept"] = numbers
        sql = _PUBLISH_AND_FORGET if forgets() else _PUBLISH
        ((found,),) = await self._statements.rows(sql, values)
        if found != len(blocks):
            raise gone(transactional_id, "nothing was published")

    def _marks_of(self, added: StoredBlock) -> Mapping[str, Any]:
        return {"stored_at": added.stored_at_ms}
