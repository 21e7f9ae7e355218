"""Consume, transform, dual-write, step by step; once for threads and for tasks.

A batch of records is one dual write, and the offsets behind it are a part of that: the data, the records that were
sent and the progress are committed by one decision. How the two places of offsets keep out a consumer that has lost its
partitions: `dualwrite.recipes.consumed_offsets` and docs/consume.md.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from sqlalchemy.exc import DBAPIError

from dualwrite.client.records import ConsumerGroupMetadata, TopicPartition
from dualwrite.errors import DualWriteError
from dualwrite.recipes.consumed_offsets import OffsetPlace
from dualwrite.recipes.consumer_side import ConsumedRecord, ConsumerSide
from dualwrite.recipes.dual_writes import DualWrite
from dualwrite.recipes.telemetry import count_consumed

_log = logging.getLogger(__name__)

Handle = Callable[[Any, ConsumedRecord], Awaitable[object]]
SetAside = Callable[[Any, ConsumedRecord, Exception], Awaitable[object]]


class WriterSide(Protocol):
    """Who carries out the dual writes."""

    def begin(self) -> AbstractAsyncContextManager[DualWrite]:
        """A dual write."""

    async def recover(self) -> None:
        """Complete what its transactional id left open, where it has but one and is not sure that nothing is."""


class _RefusedRecordError(Exception):
    """The handler raised, and did so because of this record."""

    def __init__(self, record: ConsumedRecord, error: Exception) -> None:
        super().__init__(record, error)
        self.record = record
        self.error = error


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
    ) -> None:
        self._writer = writer
        self._consumer = consumer
        self._topics = topics
        self._handle = handle
        self._offsets = offsets
        self._poison = poison
        self._max_records = max_records
        self._subscribed = False
        self._lost_its_place = False
        self._go_on_at: dict[TopicPartition, int] = {}
        self._membership: ConsumerGroupMetadata

    async def step(self, timeout_ms: int) -> int:
        """Read once, for `timeout_ms` at the most, and write what came; how many input records that was."""
        await self._get_ready()
        polled, membership = await self._consumer.poll(timeout_ms, self._max_records)
        records = [record for record in polled if not self._offsets.is_behind(record.topic_partition, record.offset)]
        if not records:
            return 0
        self._go_on_at = _first_offsets(records)
        self._membership = membership
        try:
            await self._write(records)
        except BaseException as error:
            self._lost_its_place = True  # the consumer is ahead of what is written
            if not self._offsets.lost_membership(error):
                raise
            _log.info("another consumer has the partitions; what was read here is left to it: %s", error)
            return 0
        return len(records)

    async def _get_ready(self) -> None:
        """What this transactional id left open comes first: it may hold the very offsets that are asked for."""
        if self._subscribed and not self._lost_its_place:
            return
        await self._writer.recover()
        if not self._subscribed:
            await self._consumer.subscribe(self._topics, lambda new: self._offsets.start(self._consumer, new))
            self._subscribed = True
        if self._lost_its_place:
            assigned = self._consumer.assignment()
            positions = {**self._go_on_at, **await self._offsets.where_to_go_on(self._consumer, assigned)}
            self._consumer.go_on_at({each: positions[each] for each in assigned if each in positions})
            self._lost_its_place = False

    async def _write(self, records: Sequence[ConsumedRecord]) -> None:
        try:
            await self._write_together(records, self._handle_all)
        except _RefusedRecordError as refused:
            if len(records) == 1:
                await self._set_aside(refused)
                return
            _log.warning("%s was refused; its batch of %d is tried one by one", _name(refused.record), len(records))
            for record in records:
                await self._write([record])
        else:
            count_consumed("written", len(records))

    async def _write_together(
        self, records: Sequence[ConsumedRecord], handle: Callable[[Any, Iterable[ConsumedRecord]], Awaitable[object]]
    ) -> None:
        """One dual write, with the offsets first: who may not write finds out before any work is done."""
        next_offsets = _next_offsets(records)
        async with self._writer.begin() as tx:
            await self._offsets.move(tx, self._membership, next_offsets)
            await handle(tx, records)
        self._offsets.moved(next_offsets)
        self._go_on_at.update(next_offsets)

    async def _handle_all(self, tx: DualWrite, records: Iterable[ConsumedRecord]) -> None:
        for record in records:
            try:
                await self._handle(tx, record)
            except Exception as error:
                if _is_nobodys_fault(error):
                    raise
                raise _RefusedRecordError(record, error) from error

    async def _set_aside(self, refused: _RefusedRecordError) -> None:
        poison = self._poison
        if poison is None:
            raise refused.error
        await self._write_together([refused.record], lambda tx, _: poison(tx, refused.record, refused.error))
        count_consumed("poison", 1)
        _log.error("%s was set aside", _name(refused.record), exc_info=refused.error)


def _is_nobodys_fault(error: Exception) -> bool:
    return isinstance(error, DualWriteError) or (isinstance(error, DBAPIError) and error.connection_invalidated)


def _first_offsets(records: Iterable[ConsumedRecord]) -> dict[TopicPartition, int]:
    first: dict[TopicPartition, int] = {}
    for record in records:
        first.setdefault(record.topic_partition, record.offset)
    return first


def _next_offsets(records: Iterable[ConsumedRecord]) -> Mapping[TopicPartition, int]:
    return {record.topic_partition: record.offset + 1 for record in records}


def _name(record: ConsumedRecord) -> str:
    return f"record {record.topic}-{record.partition}@{record.offset}"
