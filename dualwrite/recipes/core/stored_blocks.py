"""The blocks that wait in an outbox, and the batches in which they go to Kafka.

A block is stored, in the outbox of its pool, by its own database transaction, which asks nothing of Kafka. The id of
the outbox publishes the stored blocks under the lock of its state row: the oldest are sent, prepared, and taken out of
those that wait by the same database commit that writes the prepared state and its manifest. That is an ordinary dual
write, whose changes in the database are its row and these blocks, so each of its crashes is one of an ordinary dual
write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple

from dualwrite.errors import (
    DualWriteError,
    InvalidRecordError,
    KafkaError,
    OwedRecordsRefusedError,
    RecordsRefusedError,
    StoredBlockRefusedError,
)
from dualwrite.recipes.core.buffer import BufferedRecord
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.core.dual_write import DualWriteProgress
from dualwrite.recipes.core.leases import is_outbox
from dualwrite.recipes.core.metrics import Counted, count
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.record_block import Placement, decode, encode
from dualwrite.recipes.core.refused import OWED, UNKNOWN_TOPIC, NewTimestamps, RefusedBlock, is_refusal, remedy_of
from dualwrite.recipes.core.store import DatabaseTransaction, Sent, StoredBlock

_log = logging.getLogger("dualwrite.recipes.core.coordinator")  # one logger for all steps of a dual write

MOST_BYTES_AT_A_TIME: Final = 8_388_608
"""The most bytes of stored blocks that one transaction publishes, unless a single block is larger."""


class Waiting(NamedTuple):
    """The oldest stored blocks, which the next transaction publishes; the number of the newest one; and the records."""

    blocks: Sequence[StoredBlock]
    newest_seq: int
    records: Sequence[BufferedRecord]

    @property
    def is_part(self) -> bool:
        """Whether more blocks are stored behind these."""
        return bool(self.blocks) and self.blocks[-1].seq < self.newest_seq


class NextAttemptError(Exception):
    """Nothing was published, and the next attempt differs: it has fewer blocks, or more is known about their topics.

    `topics` have to be known first, and are asked for without the lock of the row; `beside` are those of later blocks.
    """

    def __init__(self, topics: Collection[str] = (), beside: Collection[str] = ()) -> None:
        super().__init__(*topics)
        self.topics = topics
        self.beside = beside


class _Refusal(NamedTuple):
    block: StoredBlock
    error: StoredBlockRefusedError


NOTHING_WAITS: Final = Waiting((), 0, ())


def why_refused(error: DualWriteError) -> str:
    """Return why a record is refused, without the advice to the caller of a producer.

    A call that comes after the refusal only tells that the transaction has failed; its cause is the refusal.
    """
    while isinstance(error, KafkaError) and isinstance(error.__cause__, KafkaError):
        error = error.__cause__
    return first_line(error).partition("; ")[0]


def assert_publishable(records: Sequence[BufferedRecord], limit: int | None) -> None:
    """Raise InvalidRecordError for a record that the producer would refuse: no block behind it could be published."""
    for record in records:
        if limit is not None and record.size_bytes > limit:
            raise InvalidRecordError(
                f"a record for {record.topic!r} takes up to {record.size_bytes} bytes, more than "
                f"max.request.size={limit}; it was not stored, and neither side was changed"
            )


class BlockStore:
    """The stored blocks and the owed records of one transactional id; only that of an outbox has stored blocks."""

    def __init__(self, owned: OwnedId) -> None:
        self._owned = owned
        self._refusal: _Refusal | None = None
        self.owed_refusal: OwedRecordsRefusedError | None = None
        """Why Kafka refuses the owed records, which come before all blocks; None if it does not, as far as is known."""
        self.timestamps: Final = NewTimestamps()
        self._placement = Placement(owned.partitioner)
        self._unavailable: dict[str, DualWriteError] = {}
        """Why topics are not known, by the last response that no attempt has used yet."""
        self._missing: dict[str, DualWriteError] = {}
        """The topics for which an earlier attempt has waited in vain, because they do not exist."""
        self._most_blocks: int | None = None
        """How many blocks one transaction publishes, to find the block that Kafka refuses; None: any number."""

        self.published_blocks = 0
        """How many were published."""

    @property
    def refused(self) -> RefusedBlock | None:
        """The owed records, or the oldest stored block, if Kafka refused them for good, as known here."""
        error: RecordsRefusedError | None = self.owed_refusal
        if error is None and self._refusal is not None:
            error = self._refusal.error
        if error is None:
            return None
        return RefusedBlock(error.transactional_id, error.seq, error.topic, error.why)

    async def oldest(self, database: DatabaseTransaction) -> Waiting:
        """Return the blocks to publish next; none goes with owed records.

        The row must be locked, in a transaction of our own. Raises StoredBlockRefusedError if the oldest block cannot
        be published, and NextAttemptError if Kafka has to be asked for its topics first.
        """
        owned = self._owned
        self.note_nothing_owed()
        table = database.stored_blocks(owned.transactional_id)
        newest_seq, blocks = await table.waiting(owned.transactional_id, max_bytes=MOST_BYTES_AT_A_TIME)
        owned.has_stored = newest_seq > 0
        if not owned.has_stored:
            self._forget_refusal()
            return NOTHING_WAITS
        if self._refusal is not None and blocks[:1] != [self._refusal.block]:
            self._forget_refusal()
        return Waiting((), newest_seq, ()) if owned.owed else self._ready(blocks[: self._most_blocks], newest_seq)

    def _ready(self, blocks: Sequence[StoredBlock], newest_seq: int) -> Waiting:
        """Return the blocks before the first one that cannot be sent now. Raises as `oldest` does if there are none."""
        records: list[BufferedRecord] = []
        unavailable, self._unavailable = self._unavailable, {}
        partitions = cache(self._owned.kafka.partitions)
        for number, block in enumerate(blocks):
            found, obstacle = self._placed(block, partitions)
            if obstacle is not None and number:  # those before it go first
                return Waiting(blocks[:number], newest_seq, records)
            if isinstance(obstacle, StoredBlockRefusedError):
                raise self._note_refusal(block, obstacle, obstacle.__cause__)
            if obstacle is not None:
                raise self._unknown({topic: unavailable.get(topic) for topic in obstacle.topics}, blocks)
            records += found
        return Waiting(blocks, newest_seq, records)

    def _placed(
        self, block: StoredBlock, partitions: Callable[[str], int]
    ) -> tuple[Sequence[BufferedRecord], StoredBlockRefusedError | NextAttemptError | None]:
        """Return the records of a block with their partitions, or why they cannot be sent now."""
        refuse = self._unreadable
        try:
            found = decode(block.content)
            refuse = self._unplaceable
            unknown = self._placement.place(found, partitions)
        except (ValueError, InvalidRecordError) as error:
            refused = refuse(block, str(error))
            refused.__cause__ = error
            return (), refused
        return found.records, NextAttemptError(unknown) if unknown else None

    def _unknown(self, topics: Mapping[str, DualWriteError | None], blocks: Sequence[StoredBlock]) -> Exception:
        """Return the error to raise for the oldest block, whose `topics` are not known, with Kafka's reasons if any."""
        for topic, error in topics.items():
            if error is not None and is_refusal(error):
                return self._note_refusal(blocks[0], self._refused(blocks[0], topic, error), error)
            if error is not None:
                return error
        later: dict[str, None] = {}
        for block in blocks[1:]:
            with suppress(ValueError):  # it is reported when the block is the oldest
                later.update(dict.fromkeys(record.topic for record in decode(block.content).records))
        return NextAttemptError([*topics], [topic for topic in later if topic not in topics])

    async def get_ready(self, attempt: NextAttemptError) -> None:
        """Ask Kafka for the topics of the next attempt. The row must not be locked: a missing topic is waited for.

        A topic that was missing before is only looked up again.
        """
        kafka, topics = self._owned.kafka, attempt.topics
        if not topics:
            return
        unavailable: dict[str, DualWriteError] = {}
        missing = [topic for topic in topics if topic in self._missing]
        for topic, found in (await kafka.describe_topics(missing)).items() if missing else ():
            if found.why_not_known is not None and found.why_not_known.error_code == UNKNOWN_TOPIC:
                unavailable[topic] = self._missing[topic]
        left = [topic for topic in topics if topic not in unavailable]
        if left:
            unavailable |= await kafka.learn_topics(left, attempt.beside)
        self._unavailable = unavailable
        self._missing = {
            topic: error
            for topic, error in unavailable.items()
            if isinstance(error, KafkaError) and error.error_code == UNKNOWN_TOPIC
        }

    def keeps_batch(self, write: DualWriteProgress) -> bool:
        """Return whether the database keeps the records of a dual write, because a broker may abort them."""
        return self._owned.is_outbox and write.bounded_ms is not None

    async def publish(self, write: DualWriteProgress, waiting: Waiting) -> None:
        """Delete the blocks that were sent, in the transaction that decides that, or keep them as the last batch.

        The rows of the last batch are deleted: its end is known. What is owed of it may be only a part, so it becomes
        a block of its own.
        """
        owned, blocks, sent = self._owned, waiting.blocks, None
        table = write.database.stored_blocks(owned.transactional_id)
        if self.keeps_batch(write):
            records = (*owned.owed, *waiting.records)
            sent = Sent(write.prepared_state, [record.fate.partition for record in records if record.fate is not None])
            if owned.owed:
                first = await table.append(owned.transactional_id, encode(owned.owed, ""))
                blocks = (first, *blocks)
        await table.publish(owned.transactional_id, blocks, kept_as=sent)

    # ---- refusals -------------------------------------------------------------------------------------------

    def note_refused(self, waiting: Waiting, topic: str, error: DualWriteError) -> Exception:
        """Return the error for refused records, before their abort; fewer blocks are tried next."""
        if self.timestamps.help_with(error, waiting.records or self._owned.owed):
            return NextAttemptError()
        if len(waiting.blocks) > 1:
            self._most_blocks = len(waiting.blocks) // 2
            return NextAttemptError()
        if not waiting.blocks:
            return self._note_owed_refusal(topic, why_refused(error), error)
        block = waiting.blocks[0]
        return self._note_refusal(block, self._refused(block, topic, error), error)

    def _note_owed_refusal(self, topic: str, why: str, cause: DualWriteError) -> OwedRecordsRefusedError:
        """Remember why the owed records are not published, and log it once. Return the error."""
        transactional_id = self._owned.transactional_id
        refused = OwedRecordsRefusedError(
            f"Kafka has aborted {self._owned.row} of transactional id {transactional_id!r}, which the database has "
            f"decided, and refuses a record for {topic!r} among the {len(self._owned.owed)} that are published again: "
            f"{why}. Neither side was changed, and this id is blocked until they are published: {remedy_of(cause)}; or "
            f"take them out with `dualwrite recover --take-out {transactional_id}:{OWED} --apply`",
            transactional_id=transactional_id,
            seq=OWED,
            topic=topic,
            why=why,
        )
        refused.__cause__ = cause
        is_new, self.owed_refusal = self.owed_refusal is None, refused
        self._owned.telemetry.refused(is_refused=True)
        if is_new:
            _log.error("%s", refused)
        return refused

    def note_nothing_owed(self) -> None:
        """Forget why owed records were refused, unless they are still owed."""
        if self.owed_refusal is not None and not self._owned.owed:
            self.owed_refusal = None
            self._owned.telemetry.refused(is_refused=self._refusal is not None)

    def _note_refusal(
        self, block: StoredBlock, refused: StoredBlockRefusedError, cause: BaseException | None
    ) -> StoredBlockRefusedError:
        """Remember why a block is not published, and log it once. Return the error."""
        refused.__cause__ = cause
        is_new = self._refusal is None
        self._refusal = _Refusal(block, refused)
        self._owned.telemetry.refused(is_refused=True)
        if is_new:
            _log.error("%s", refused)
        return refused

    def _refused(self, block: StoredBlock, topic: str, error: DualWriteError) -> StoredBlockRefusedError:
        why = why_refused(error)
        return self._refusal_of(
            block,
            f"Kafka refuses a record for {topic!r} of the stored block {block.seq} of transactional id "
            f"{self._owned.transactional_id!r}: {why}",
            f"{remedy_of(error)}, and they are published",
            topic=topic,
            why=why,
        )

    def _unreadable(self, block: StoredBlock, why: str) -> StoredBlockRefusedError:
        return self._refusal_of(
            block,
            f"the stored block {block.seq} of transactional id {self._owned.transactional_id!r} cannot be read: {why}",
            "restore its row from a backup, or publish it with the version of dualwrite that stored it",
            topic="",
            why=f"it cannot be read: {why}",
        )

    def _unplaceable(self, block: StoredBlock, why: str) -> StoredBlockRefusedError:
        return self._refusal_of(
            block,
            f"the stored block {block.seq} of transactional id {self._owned.transactional_id!r} cannot be published "
            f"by this process: {why}",
            "correct the cause, and they are published",
            topic="",
            why=why,
        )

    def _refusal_of(
        self, block: StoredBlock, what: str, remedy: str, *, topic: str, why: str
    ) -> StoredBlockRefusedError:
        transactional_id = self._owned.transactional_id
        return StoredBlockRefusedError(
            f"{what}. Neither side was changed; this block and those behind it stay stored, in their "
            f"order: {remedy}; or take the block out with "
            f"`dualwrite recover --take-out {transactional_id}:{block.seq} --apply`",
            transactional_id=transactional_id,
            seq=block.seq,
            topic=topic,
            why=why,
        )

    def _forget_refusal(self) -> None:
        if self._refusal is not None:
            self._refusal = None
            self._owned.telemetry.refused(is_refused=self.owed_refusal is not None)

    # ---- reports --------------------------------------------------------------------------------------------

    def note_published(self, waiting: Waiting) -> None:
        """Report that stored blocks are published, once the database has committed that."""
        owned = self._owned
        if self._most_blocks is not None:
            self._most_blocks *= 2
        self.note_nothing_owed()
        if not waiting.is_part:
            self.timestamps.forget()
        if not waiting.blocks:
            return
        self.published_blocks += len(waiting.blocks)
        self._forget_refusal()
        if not waiting.is_part:
            self._most_blocks = None
        owned.has_stored = waiting.is_part
        count(Counted.PUBLISHED, len(waiting.records))
        owned.telemetry.waits(waiting.blocks[-1].stored_at_ms if waiting.is_part else None)
        _log.log(
            logging.DEBUG if is_outbox(owned.transactional_id) else logging.INFO,  # there it is the usual way
            "transactional id %s: %d stored blocks with %d records are published%s",
            owned.transactional_id,
            len(waiting.blocks),
            len(waiting.records),
            ", and more are stored" if waiting.is_part else "",
        )
