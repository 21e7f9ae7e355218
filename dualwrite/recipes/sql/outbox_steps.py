"""The outbox of a pool in the table `kafka_transaction_outbox`: its rows, and the steps that all databases share.

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
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dualwrite.errors import StateRowError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.store import NO_BATCH, LastBatch, Sent, StoredBlock
from dualwrite.recipes.sql.pinned_tables import OUTBOX_TABLE as OUTBOX_TABLE

MOST_BLOCKS: Final = 1_000
"""The most blocks that are published at a time."""

PUBLISHED_KEPT_MS: Final = 300_000
"""How long published blocks stay noted, by the server's clock. No response relies on this clock."""

_FORGETS_ONE_IN: Final = 16
"""One in this many batches, at random, also deletes old notes: that takes half as long as publishing a batch."""

_MOST_FORGOTTEN: Final = 32
"""How many notes it deletes: more than are made meanwhile."""

OF_ID: Final = "transactional_id = :id"
NOTED: Final = f"{OF_ID} AND seq < 0 AND published IS NOT NULL"
SELECT_LAST_BATCHES: Final = f"SELECT transactional_id, prepared_transaction_state FROM {OUTBOX_TABLE} WHERE seq = 0"


class Words(NamedTuple):
    """The parts of the statements that differ between the dialects."""

    now_ms: str
    listed: str
    """The numbers in a list, `{0}`, as a table `listed`."""
    number: str
    place: str
    size: str
    """The function that returns the bytes of a text."""
    is_block: str
    """Whether a row is that of a block, or of the block that was taken out."""
    is_noted: str
    """Whether a note is one of a block."""
    by_key: str = ""
    """Makes a SELECT find rows by their keys."""
    block: str = ":seq"
    """The number of one block."""
    numbers: str = ""
    """The statement for the numbers of the last batch, if a shorter one is planned faster."""
    sum: str = "coalesce(sum({0}), 0)"
    is_vacuumed: bool = False
    delete: str = ""
    """Deletes the rows of an id with the numbers in the list `:numbers`, where a batch is published in steps."""
    new_number: str = ""
    """The number of a new block; empty if the table gives it."""


class OutboxSql:
    """The statements of one dialect."""

    def __init__(self, words: Words) -> None:
        self.is_vacuumed: Final = words.is_vacuumed
        """Whether deleted rows are removed by VACUUM."""
        self.evidence: Final = (
            f"SELECT EXISTS (SELECT 1 FROM {OUTBOX_TABLE} WHERE {OF_ID} AND {words.is_block})"
            f" OR EXISTS (SELECT 1 FROM {OUTBOX_TABLE} WHERE {NOTED} AND {words.is_noted}),"
            f" (SELECT coalesce(max(forgotten), 0) FROM {OUTBOX_TABLE} WHERE {OF_ID} AND seq = 0)"
        )
        """Selects whether a block is there, or noted, and the highest number of a deleted note."""
        self.of_batch: Final = f"{OUTBOX_TABLE} AS kept CROSS JOIN {words.listed.format('kept.published')}"
        numbers = f"SELECT {words.number} FROM {self.of_batch} WHERE kept.{OF_ID} AND kept.seq = 0"
        self.numbers: Final = words.numbers or numbers
        """The numbers of the last batch."""
        self.waiting: Final = f"{OUTBOX_TABLE}{words.by_key} WHERE {OF_ID} AND seq > 0 AND seq NOT IN ({self.numbers})"
        """A hash table of the numbers filters the rows in the order of the index; a join would sort all of them."""
        self.blocks_of_batch: Final = (
            f" {OUTBOX_TABLE} AS block ON block.transactional_id = kept.transactional_id"
            f" AND block.seq = {words.number} WHERE kept.{OF_ID} AND kept.seq = 0"
        )
        self.take_out: Final = f"UPDATE {OUTBOX_TABLE} SET seq = -seq WHERE {OF_ID} AND seq = {words.block}"
        self.last_batch: Final = (
            f"SELECT block.records, kept.records FROM {self.of_batch} LEFT JOIN{self.blocks_of_batch}"
            f" AND kept.prepared_transaction_state = :state ORDER BY {words.place}"
        )
        self.old_notes: Final = (
            f"SELECT seq FROM (SELECT seq, stored_at_ms FROM {OUTBOX_TABLE} WHERE {NOTED} ORDER BY seq DESC"
            f" LIMIT {_MOST_FORGOTTEN}) AS first WHERE abs({words.now_ms} - stored_at_ms) > {PUBLISHED_KEPT_MS}"
        )
        self.has_waiting: Final = f"SELECT EXISTS (SELECT 1 FROM {self.waiting})"
        size = words.sum.format(f"{words.size}(records)")
        self.backlog: Final = f"SELECT count(*), {size}, coalesce(min(stored_at_ms), 0) FROM {self.waiting}"
        self.is_waiting: Final = (
            "seq > 0 AND (transactional_id, seq) NOT IN"
            f" (SELECT kept.transactional_id, {words.number} FROM {self.of_batch} WHERE kept.seq = 0)"
        )
        """Whether a row of any id is that of a block that waits."""


def forgets() -> bool:
    """Return whether a batch is one that also deletes old notes."""
    return not random.randrange(_FORGETS_ONE_IN)


HasEnded = Callable[[str, int], Awaitable[bool]]
"""Returns whether no transaction in progress has added the block of an id with a number."""


class OutboxTable(ABC):
    """`StoredBlocks` in the outbox, for the publisher."""

    def __init__(self, statements: Any, has_ended: HasEnded, sql: OutboxSql) -> None:
        """`statements` are `OnTables`; where a batch is published in steps, also with `inserted`."""
        self._statements = statements
        self._has_ended = has_ended
        self._sql = sql

    @abstractmethod
    async def append(self, transactional_id: str, content: bytes) -> StoredBlock: ...

    @abstractmethod
    async def _oldest(self, transactional_id: str, max_bytes: int) -> Sequence[tuple[int, int, bytes | None]]:
        """Return the oldest blocks: number, time and records, which are None beyond `max_bytes` or `MOST_BLOCKS`.

        The last one shows whether more wait. A block whose records are missing in the table counts as unreadable, not
        as too large: it comes with empty records.
        """

    @abstractmethod
    async def _publish(self, transactional_id: str, blocks: Sequence[StoredBlock], kept_as: Sent | None) -> None:
        """Delete the last batch and the blocks, which are kept as the last batch then if `kept_as` says how."""

    @abstractmethod
    def _marks_of(self, added: StoredBlock) -> Mapping[str, Any]:
        """Return what tells a block from others with its number, for the statement `evidence`."""

    async def waiting(self, transactional_id: str, *, max_bytes: int) -> tuple[int, Sequence[StoredBlock]]:
        if not await self._statements.has_outbox_table():
            return 0, ()
        found = await self._oldest(transactional_id, max_bytes)
        if not found:
            return 0, ()
        taken = [StoredBlock(seq, at_ms, bytes(records)) for seq, at_ms, records in found if records is not None]
        return found[-1][0], taken[:MOST_BLOCKS]

    async def take_out(self, transactional_id: str, block: StoredBlock) -> None:
        if await self._statements.changed(self._sql.take_out, {"id": transactional_id, "seq": block.seq}) != 1:
            raise gone(transactional_id, "nothing was changed")

    async def publish(
        self, transactional_id: str, blocks: Sequence[StoredBlock], *, kept_as: Sent | None = None
    ) -> None:
        if blocks or await self._statements.has_outbox_table():
            await self._publish(transactional_id, blocks, kept_as)

    async def last_batch(self, transactional_id: str, state: PreparedTxnState) -> LastBatch:
        if not await self._statements.has_outbox_table():
            return NO_BATCH
        found = await self._statements.rows(self._sql.last_batch, {"id": transactional_id, "state": str(state)})
        return _batch_of(transactional_id, found)

    async def was_committed(self, transactional_id: str, added: StoredBlock) -> bool | None:
        if not await self._has_ended(transactional_id, added.seq):
            return None
        values = {"id": transactional_id, "seq": added.seq, "content": added.content, **self._marks_of(added)}
        ((is_there, forgotten),) = await self._statements.rows(self._sql.evidence, values)
        if not is_there and added.seq <= forgotten:
            raise _no_longer_known(transactional_id, added.seq, forgotten)
        return bool(is_there)


def as_last_batch(kept_as: Sent | None) -> dict[str, Any]:
    """Return what the row with the number 0 says of the last batch, beside its numbers."""
    if kept_as is None:
        return {"state": None, "partitions": None}
    return {"state": str(kept_as.state), "partitions": " ".join(map(str, kept_as.partitions)).encode()}


def gone(transactional_id: str, what: str) -> StateRowError:
    return StateRowError(
        f"a block of {transactional_id!r} is missing from {OUTBOX_TABLE}, although the state row of the id is locked: "
        f"another program writes to this table; {what}"
    )


def _no_longer_known(transactional_id: str, seq: int, forgotten: int) -> StateRowError:
    """Return the error for a block that is not there, and may have been published longer ago than is noted."""
    return StateRowError(
        f"block {seq} of {transactional_id!r} is not in {OUTBOX_TABLE}, whose notes of published blocks up to "
        f"{forgotten} are deleted: it was either committed and published, or rolled back; check the application's "
        "tables for the changes of the block"
    )


def _batch_of(transactional_id: str, found: Sequence[Sequence[Any]]) -> LastBatch:
    """Return the last batch from its rows. Raises StateRowError if a block is gone."""
    if any(content is None for content, _ in found):
        raise gone(
            transactional_id,
            "nothing was published again: restore the block from a backup, or give the batch up by emptying "
            "prepared_transaction_state of the row with seq 0",
        )
    partitions = [int(each) for each in bytes(found[0][1]).split()] if found else []
    return LastBatch([bytes(content) for content, _ in found], partitions)
