"""The steps of consume-transform-write, written once for threads and for asyncio.

A batch of records is one dual write that includes the offsets behind the batch: the data, the records sent and the
progress are committed by one decision. `dualwrite.recipes.consume.consumed_offsets` and docs/consume.md say how the two
places for offsets exclude a consumer that has lost its partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError

from dualwrite.client.records.record import ConsumerGroupMetadata, TopicPartition
from dualwrite.errors import (
    AbortableError,
    ConfigError,
    DualWriteError,
    InvalidRecordError,
    RowLockTimeoutError,
    TransactionTooLargeError,
)
from dualwrite.guarded import pass_on_signal
from dualwrite.outcome import Outcome, note_outcome
from dualwrite.recipes.consume.consumed_logs import ConsumedLogs, WriterTopicIds, first_offsets, offsets_behind
from dualwrite.recipes.consume.consumed_offsets import OffsetPlace, OffsetsInTransaction
from dualwrite.recipes.consume.consumers import ConsumedRecord, ConsumerAdapter, Positions
from dualwrite.recipes.consume.database_trouble import is_database_trouble
from dualwrite.recipes.consume.tracing import processing
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.metrics import Counted, count
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.core.waiting import entered, settled

_log = logging.getLogger(__name__)

_MAX_FAILURES: Final = 5
_FIRST_PAUSE_S: Final = 0.1
"""The first pause after a database failure; each further one is twice as long: 3.1 seconds altogether."""

Handle = Callable[[Any, ConsumedRecord], object]
HandlePoison = Callable[[Any, ConsumedRecord, Exception], object]
"""Blocking, or coroutine functions."""


class _RefusedError(Exception):
    """A dual write failed because of its records; `index` is the index of the bad record, None if unknown."""

    def __init__(self, error: Exception, index: int | None) -> None:
        super().__init__(error, index)
        self.error = error
        self.index = index


class ConsumeSteps:
    """Passes the records of one consumer to `handle`, in dual writes.

    Without `topics` the consumer is subscribed already.
    """

    def __init__(
        self,
        writer: Any,
        consumer: ConsumerAdapter,
        *,
        topics: Collection[str],
        handle: Handle,
        offsets: OffsetPlace,
        poison: HandlePoison | None,
        max_records: int,
    ) -> None:
        self._writer = writer
        self._consumer = consumer
        self._topics = topics
        self._handle = handle
        self._offsets = offsets.of_one_consumer()
        self._poison = poison
        self._max_records = max_records
        self._sleep = writer.backend.waiting.sleep
        self._topic_ids = WriterTopicIds(writer)
        self._logs = ConsumedLogs(consumer, self._topic_ids)
        self._batch_size = max_records
        consumer.start = self._start
        self._subscribed = False
        self._is_ahead = False
        self._failures = 0
        self._membership: ConsumerGroupMetadata

    async def step(self, timeout_ms: int) -> int:
        """Poll once, for at most `timeout_ms`, write the records, and return their number."""
        try:
            records = await self.fetch(timeout_ms)
            await self.write(records)
        except Exception as error:
            pass_on_signal(error)
            if self._offsets.lost_membership(error):
                _log.info("another consumer now owns the partitions and reads these records again: %s", error)
                return 0
            if await self._pause_for_database(error):
                return 0
            raise
        if records:
            self._failures = 0
        return len(records)

    async def fetch(self, timeout_ms: int) -> list[ConsumedRecord]:
        """Poll once, and return the records that may be written; others come again.

        Raises ConsumedLogError, and ConfigError for offsets that would go to another cluster than the consumer's.
        """
        await self._get_ready()
        self._is_ahead = True  # an interrupted poll has perhaps left records out
        polled, self._membership = await self._consumer.poll(timeout_ms, self._max_records)
        known = self._logs.next_offsets
        unknown = {each: offset for each, offset in first_offsets(polled).items() if each not in known}
        self._logs.placed(unknown)
        self._consumer.is_torn = False
        if unknown:
            self._logs.placed(await self._offsets.kept(self._consumer, unknown))
        records = await self._logs.check(polled)
        if self._topic_ids.is_of_another_cluster and isinstance(self._offsets, OffsetsInTransaction):
            raise ConfigError(
                "the consumer reads from another Kafka cluster than the writer's, whose transactions cannot commit its "
                "offsets; nothing was written and no handler was called: use OffsetsInDatabase"
            )
        self._is_ahead = bool(records)
        return records

    async def _pause_for_database(self, error: Exception) -> bool:
        """Pause and return True if the step may succeed when repeated: after a database failure, for a short time."""
        if not is_transient(error) or self._failures == _MAX_FAILURES:
            self._failures = 0
            return False
        pause_s = _FIRST_PAUSE_S * 2**self._failures
        self._failures += 1
        _log.warning("database failure; repeating the step in %.1f s: %s", pause_s, error)
        await self._sleep(pause_s)
        return True

    async def _get_ready(self) -> None:
        """Subscribe, and put the consumer back to where the last dual write ended.

        Recovers the transactional id first: its open transaction may contain the very offsets that are read here.
        """
        if self._subscribed and not self._is_ahead:
            return
        await self._recover()
        if not self._subscribed:
            if self._topics:
                await self._consumer.subscribe(self._topics)
            self._subscribed = True
        if self._is_ahead:
            assigned = await self._consumer.assignment()
            stored = await self._offsets.resume_positions(self._consumer, assigned)
            known = {each: offset for each, offset in self._logs.next_offsets.items() if each in assigned}
            positions = {**known, **stored}
            await self._logs.place(assigned, positions, self._offsets.stored_ids)
            await self._consumer.seek(positions)
            self._is_ahead = False

    async def _recover(self) -> None:
        """Complete an open transaction of the writer's transactional id, if it has one id and may have one open."""
        writer = self._writer
        if not writer.is_pool and writer.state is not SlotState.READY:
            await settled(writer.recover())

    async def _start(self, new: Collection[TopicPartition]) -> Positions:
        """Return where to resume newly assigned partitions (a `StartPositions`)."""
        self._logs.assigned(new)
        positions = await self._offsets.start(self._consumer, new)
        await self._logs.place(new, positions, self._offsets.stored_ids)
        return positions

    async def write(self, records: Sequence[ConsumedRecord]) -> None:
        """Write the records in as few dual writes as possible; a batch that fails because of its records is divided."""
        size = self._batch_size
        batches = [records[start : start + size] for start in range(0, len(records), size)][::-1]
        while batches:
            batch = batches.pop()
            try:
                await self._write_batch(batch, self._handle_all)
            except _RefusedError as refused:
                if len(batch) == 1:
                    await self._set_aside(batch[0], refused.error)
                    continue
                batches.extend(reversed(self._divided(batch, refused)))
                await self._recover()
            else:
                count(Counted.CONSUMED, len(batch), outcome="written")
                self._batch_size = min(self._max_records, self._batch_size + 1 + self._batch_size // 8)
        self._is_ahead = False

    def _divided(self, records: Sequence[ConsumedRecord], refused: _RefusedError) -> list[Sequence[ConsumedRecord]]:
        """Divide a refused batch around the refused record, or in halves; smaller ones follow if it was too large."""
        index = refused.index
        if isinstance(refused.error, TransactionTooLargeError):
            index = None
            self._batch_size = len(records) // 2
            _log.info("%d records are too many for one dual write; continuing with %d", len(records), self._batch_size)
        else:
            _log.warning("a batch of %d records was refused; splitting it: %s", len(records), refused.error)
        half = len(records) // 2
        start, end = (half, half) if index is None else (index, index + 1)
        return [part for part in (records[:start], records[start:end], records[end:]) if part]

    async def _write_batch(
        self, records: Sequence[ConsumedRecord], handle: Callable[[Any, Iterable[ConsumedRecord]], object]
    ) -> None:
        """Write a batch in one dual write, its offsets first: a fenced consumer fails before any other statement."""
        next_offsets = offsets_behind(records)
        is_about_records = False
        try:
            async with entered(self._writer.transaction()) as tx:
                await self._offsets.move(tx, self._membership, next_offsets, self._logs.topic_ids)
                is_about_records = True
                await settled(handle(tx, records))
        except _RefusedError:
            raise
        except Exception as error:
            pass_on_signal(error)  # not caused by a record
            is_about_records &= isinstance(error, SQLAlchemyError | DualWriteError) and blames_records(error)
            if not is_about_records or await self._is_written(records):
                raise
            raise _RefusedError(error, None) from error
        self._offsets.moved(next_offsets)
        self._logs.written(next_offsets)

    async def _is_written(self, records: Sequence[ConsumedRecord]) -> bool:
        """Return whether some of the records are written: by this dual write despite its error, or by another consumer.

        From then on the positions read here are those expected of the rows.
        """
        await self._recover()
        first = first_offsets(records)
        stored = await self._offsets.resume_positions(self._consumer, first.keys())
        return any(stored.get(partition, -1) > offset for partition, offset in first.items())

    async def _handle_all(self, tx: DualWrite, records: Iterable[ConsumedRecord]) -> None:
        for index, record in enumerate(records):
            try:
                with processing(record, self._membership.group_id):
                    await settled(self._handle(tx, record))
            except Exception as error:
                pass_on_signal(error)  # not caused by a record
                if not blames_records(error):
                    raise
                note_outcome(error, Outcome.ROLLED_BACK)  # _RefusedError leaves the block in its place
                raise _RefusedError(error, index) from error

    async def _set_aside(self, record: ConsumedRecord, error: Exception) -> None:
        poison = self._poison
        if poison is None:
            raise error
        try:
            with processing(record, self._membership.group_id):
                await self._write_batch([record], lambda tx, _: poison(tx, record, error))
        except _RefusedError as refused:
            raise refused.error from error
        count(Counted.CONSUMED, outcome="poison")
        _log.error("record %s was set aside", record, exc_info=error)


# ---- errors ---------------------------------------------------------------------------------------------------------

# The error codes with which a broker refuses the records themselves.
_ABOUT_RECORDS: Final = frozenset(
    {
        10,  # MESSAGE_TOO_LARGE
        18,  # RECORD_LIST_TOO_LARGE
        87,  # INVALID_RECORD
    }
)


def blames_records(error: Exception) -> bool:
    """Return whether the same records would fail again when everything else works."""
    if is_database_trouble(error):
        return False
    if isinstance(error, DualWriteError):
        refused = isinstance(error, AbortableError) and error.error_code in _ABOUT_RECORDS
        return refused or isinstance(error, InvalidRecordError | TransactionTooLargeError)
    return True


def is_transient(error: BaseException) -> bool:
    """Return whether `error` is a database failure from before the decision that may be over soon."""
    if isinstance(error, DualWriteError):
        return isinstance(error, RowLockTimeoutError)
    return is_database_trouble(error)
