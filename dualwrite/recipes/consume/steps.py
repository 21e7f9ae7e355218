"""Consume, transform, dual-write, step by step; once for threads and for tasks.

A batch of records is one dual write, and the offsets behind it are a part of that: the data, the records that were
sent and the progress are committed by one decision. How the two places of offsets keep out a consumer that has lost its
partitions: `dualwrite.recipes.consume.consumed_offsets` and docs/consume.md.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

from sqlalchemy.exc import SQLAlchemyError

from dualwrite.client.records.record import ConsumerGroupMetadata, TopicPartition
from dualwrite.errors import DualWriteError, TransactionTooLargeError
from dualwrite.recipes.consume.blame import blames_records, may_pass
from dualwrite.recipes.consume.consumed_logs import ConsumedLogs, TopicLookUp, first_offsets
from dualwrite.recipes.consume.consumed_offsets import OffsetPlace
from dualwrite.recipes.consume.consumer_side import ConsumedRecord, ConsumerSide
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.telemetry import count_consumed

_log = logging.getLogger(__name__)

_MAX_FAILURES: Final = 5
_FIRST_PAUSE_S: Final = 0.1
"""Of the pauses while the database is in trouble, each of which is twice as long: 3.1 seconds altogether."""

Handle = Callable[[Any, ConsumedRecord], Awaitable[object]]
SetAside = Callable[[Any, ConsumedRecord, Exception], Awaitable[object]]


class WriterSide(Protocol):
    """Who carries out the dual writes."""

    def begin(self) -> AbstractAsyncContextManager[DualWrite]:
        """A dual write."""

    async def recover(self) -> None:
        """Complete what its transactional id left open, where it has but one and is not sure that nothing is."""


class _RefusedError(Exception):
    """A dual write failed because of its records; `index` says of which one, where that is known."""

    def __init__(self, error: Exception, index: int | None) -> None:
        super().__init__(error, index)
        self.error = error
        self.index = index


class ConsumeSteps:
    """Carries what one consumer reads through `handle` into dual writes."""

    def __init__(
        self,
        writer: WriterSide,
        consumer: ConsumerSide,
        topics: Collection[str],
        handle: Handle,
        *,
        offsets: OffsetPlace,
        poison: SetAside | None,
        max_records: int,
        look_up: TopicLookUp,
        sleep: Callable[[float], Awaitable[object]],
    ) -> None:
        self._writer = writer
        self._consumer = consumer
        self._topics = topics
        self._handle = handle
        self._offsets = offsets
        self._poison = poison
        self._max_records = max_records
        self._sleep = sleep
        self._logs = ConsumedLogs(consumer, look_up)
        self._at_once = max_records
        self._subscribed = False
        self._lost_its_place = False
        self._failures = 0
        self._go_on_at: dict[TopicPartition, int] = {}
        self._membership: ConsumerGroupMetadata

    async def step(self, timeout_ms: int) -> int:
        """Read once, for `timeout_ms` at the most, and write what came; how many input records that was."""
        try:
            await self._get_ready()
        except Exception as error:
            if self._failures == 0 or not await self._waits_for_better(error):
                raise
            return 0
        polled, membership = await self._consumer.poll(timeout_ms, self._max_records)
        if not polled:
            return 0
        self._go_on_at = first_offsets(polled)
        self._membership = membership
        try:
            records = await self._check(polled)
            await self._write(records)
        except BaseException as error:
            self._lost_its_place = True  # the consumer is ahead of what is written
            if self._offsets.lost_membership(error):
                _log.info("another consumer has the partitions; what was read here is left to it: %s", error)
                return 0
            if await self._waits_for_better(error):
                return 0
            raise
        self._failures = 0
        return len(records)

    async def _waits_for_better(self, error: BaseException) -> bool:
        """Whether the step is to be repeated, after a pause: the database is in trouble, and was not for long."""
        if not may_pass(error) or self._failures == _MAX_FAILURES:
            self._failures = 0
            return False
        pause_s = _FIRST_PAUSE_S * 2**self._failures
        self._failures += 1
        _log.warning("trouble of the database; the step is repeated in %.1f s: %s", pause_s, error)
        await self._sleep(pause_s)
        return True

    async def _get_ready(self) -> None:
        """What this transactional id left open comes first: it may hold the very offsets that are asked for."""
        if self._subscribed and not self._lost_its_place:
            return
        await self._writer.recover()
        if not self._subscribed:
            await self._consumer.subscribe(self._topics, self._start)
            self._subscribed = True
        if self._lost_its_place:
            assigned = self._consumer.assignment()
            kept = await self._offsets.where_to_go_on(self._consumer, assigned)
            kept = await self._logs.place(assigned, kept, self._offsets.stored_ids)
            positions = {**self._go_on_at, **kept}
            self._consumer.go_on_at({each: positions[each] for each in assigned if each in positions})
            self._lost_its_place = False

    async def _start(self, new: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where to go on with newly assigned partitions, as `Start`."""
        self._logs.assigned(new)
        positions = await self._offsets.start(self._consumer, new)
        return await self._logs.place(new, positions, self._offsets.stored_ids)

    async def _check(self, polled: Sequence[ConsumedRecord]) -> list[ConsumedRecord]:
        """Those of them that may be written. Raises ConsumedLogError."""
        unknown = {each.topic_partition for each in polled if not self._logs.knows(each.topic_partition)}
        if unknown:
            self._logs.placed(await self._offsets.kept(self._consumer, unknown))
        return await self._logs.check(polled)

    async def _write(self, records: Sequence[ConsumedRecord]) -> None:
        """In as few dual writes as the records allow: one that refuses its records is divided."""
        waiting = _divided(records, self._at_once)
        while waiting:
            some = waiting.pop()
            try:
                await self._write_together(some, self._handle_all)
            except _RefusedError as refused:
                if len(some) == 1:
                    await self._set_aside(some[0], refused.error)
                    continue
                waiting.extend(reversed(self._smaller(some, refused)))
                await self._writer.recover()
            else:
                count_consumed("written", len(some))
                if len(some) == self._at_once:
                    self._at_once = min(self._max_records, self._at_once + 1 + self._at_once // 8)

    def _smaller(self, records: Sequence[ConsumedRecord], refused: _RefusedError) -> list[Sequence[ConsumedRecord]]:
        """Around the one that is known to be refused, else in halves."""
        half = len(records) // 2
        if isinstance(refused.error, TransactionTooLargeError):
            self._at_once = half
            _log.info("%d records make more than one dual write takes; going on with %d", len(records), half)
            return [records[:half], records[half:]]
        _log.warning("a batch of %d was refused and is divided: %s", len(records), refused.error)
        if refused.index is None:
            return [records[:half], records[half:]]
        parts = records[: refused.index], records[refused.index : refused.index + 1], records[refused.index + 1 :]
        return [part for part in parts if part]

    async def _write_together(
        self, records: Sequence[ConsumedRecord], handle: Callable[[Any, Iterable[ConsumedRecord]], Awaitable[object]]
    ) -> None:
        """One dual write, with the offsets first: who may not write finds out before any work is done."""
        next_offsets = _next_offsets(records)
        is_about_records = False
        try:
            async with self._writer.begin() as tx:
                await self._offsets.move(tx, self._membership, next_offsets, self._logs.topic_ids)
                is_about_records = True
                await handle(tx, records)
        except _RefusedError:
            raise
        except Exception as error:
            is_about_records &= isinstance(error, SQLAlchemyError | DualWriteError) and blames_records(error)
            if not is_about_records or await self._is_written(next_offsets):
                raise
            raise _RefusedError(error, None) from error
        self._offsets.moved(next_offsets)
        self._logs.written(next_offsets)
        self._go_on_at.update(next_offsets)

    async def _is_written(self, next_offsets: Mapping[TopicPartition, int]) -> bool:
        """Whether the dual write took place all the same: what failed came after its decision."""
        await self._writer.recover()
        kept = await self._offsets.where_to_go_on(self._consumer, next_offsets.keys())
        return any(kept.get(partition, -1) >= offset for partition, offset in next_offsets.items())

    async def _handle_all(self, tx: DualWrite, records: Iterable[ConsumedRecord]) -> None:
        for index, record in enumerate(records):
            try:
                await self._handle(tx, record)
            except Exception as error:
                if not blames_records(error):
                    raise
                raise _RefusedError(error, index) from error

    async def _set_aside(self, record: ConsumedRecord, error: Exception) -> None:
        poison = self._poison
        if poison is None:
            raise error
        try:
            await self._write_together([record], lambda tx, _: poison(tx, record, error))
        except _RefusedError as refused:
            raise refused.error from error
        count_consumed("poison", 1)
        _log.error("%s was set aside", _name(record), exc_info=error)


def _divided(records: Sequence[ConsumedRecord], at_once: int) -> list[Sequence[ConsumedRecord]]:
    """In parts of so many at the most; the first of them last."""
    return [records[start : start + at_once] for start in range(0, len(records), at_once)][::-1]


def _next_offsets(records: Iterable[ConsumedRecord]) -> Mapping[TopicPartition, int]:
    return {record.topic_partition: record.offset + 1 for record in records}


def _name(record: ConsumedRecord) -> str:
    return f"record {record.topic}-{record.partition}@{record.offset}"
