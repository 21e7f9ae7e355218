"""`take_out`: an operator's decision that a stored block, which Kafka refuses for good, is not published.

taken = take_out(engine, "orders-1", 3)              # only returns the block; changes nothing
taken = take_out(engine, "orders-1", 3, apply=True)

The block keeps its row, under a negative number, so that its records are not lost, and so that a process whose commit
got no response still finds that it was stored. The blocks behind it are published as before.

Owed records are not stored blocks: `RecoveryService(take_out_owed=...)` takes those out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import sqlalchemy as sa

from dualwrite.errors import StateRowError
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.own_transactions import in_own_transaction
from dualwrite.recipes.core.record_block import decode
from dualwrite.recipes.core.store import DatabaseTransaction, StoredBlock
from dualwrite.recipes.recovery.plan import TakenOut
from dualwrite.recipes.recovery.stored_rows import known_database
from dualwrite.recipes.sqlalchemy.events import watch
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase

__all__ = ["TakenOut", "take_out"]

_LOCK_TIMEOUT_MS: Final = 10_000
"""Longer than a publisher needs for a batch: a person waits for it instead of trying again."""


def take_out(
    engine: sa.Engine,
    transactional_id: str,
    seq: int,
    *,
    apply: bool = False,
    keep: Callable[[TakenOut], object] | None = None,
    schema: str | None = None,
    lock_timeout_ms: int = _LOCK_TIMEOUT_MS,
) -> TakenOut:
    """Take the oldest stored block of an id out, so that it is not published; without `apply`, only return it.

    The id may be given with or without the suffix that Kafka sees. `keep` gets the block before the database commits;
    if it raises, nothing is changed. Raises StateRowError if `seq` is not the oldest block that is stored,
    RowLockTimeoutError if the row stays locked, and the database's own errors: after an error of the
    commit, call it again to see whether the block is still stored.
    """
    watch(engine)  # the transaction's end is ours
    name = known_database(engine, schema)[1].name_as_given(transactional_id)
    database = SqlAlchemyDatabase(engine, schema, only_recovers=True)

    async def steps(transaction: DatabaseTransaction) -> TakenOut:
        row = await transaction.lock(name, timeout_ms=lock_timeout_ms)
        block = await _oldest(transaction, name, seq)
        found = _read(name, block)
        if not apply:
            return found
        if keep is not None:
            keep(found)
        manifest = await transaction.read_manifest(name)
        await transaction.stored_blocks(name).take_out(name, block)
        # a publisher that waits for the lock with an older snapshot fails, and does not publish the block
        await transaction.write(name, previous=row, new=row, manifest=manifest)
        await transaction.commit()
        return replace(found, changed=True)

    return blocking.run(in_own_transaction(database.begin, steps))


def _read(transactional_id: str, block: StoredBlock) -> TakenOut:
    try:
        return TakenOut(transactional_id, block.seq, block.stored_at_ms, tuple(decode(block.content).records))
    except ValueError:
        return TakenOut(transactional_id, block.seq, block.stored_at_ms, (), unreadable=block.content)


async def _oldest(transaction: DatabaseTransaction, transactional_id: str, seq: int) -> StoredBlock:
    """Return the oldest stored block. Raises StateRowError if it has another number."""
    _, blocks = await transaction.stored_blocks(transactional_id).waiting(transactional_id, max_bytes=1)
    if not blocks or blocks[0].seq != seq:
        there = f"the oldest one is {blocks[0].seq}" if blocks else "none is stored"
        raise StateRowError(
            f"block {seq} is not the oldest stored block of transactional id {transactional_id!r} ({there}); nothing "
            "was changed: only the oldest block can hold up the others, and `dualwrite recover --apply` names it"
        )
    return blocks[0]
