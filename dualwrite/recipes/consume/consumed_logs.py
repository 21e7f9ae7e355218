"""Check that records continue where the last dual write ended: in the same log, with no record left out.

A consumer positioned at an offset that the log does not have decides by itself where to continue (`auto.offset.reset`),
without reporting it: after a topic was deleted and created again, after an unclean election, after retention. So three
things are checked of the records it returns:

* that the topic id (KIP-516) is the same, which a topic that is created again does not inherit,
* that the log reaches to the position where reading resumes, and no record comes from before it,
* that offsets missing in between are missing in the log: because of transactions, compaction or retention.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dualwrite.admin import AsyncTransactionAdmin
from dualwrite.client.io_thread import IoThread, shared_io_thread, this_process
from dualwrite.client.records.record import TopicPartition
from dualwrite.config import shared_with_admin
from dualwrite.errors import ConsumedLogReplacedError, ConsumedRecordsMissingError
from dualwrite.recipes.consume.consumers import ConsumedRecord, ConsumerAdapter, Positions
from dualwrite.recipes.core.waiting import TASKS

_log = logging.getLogger(__name__)

_ON_PURPOSE: Final = (
    "if that was intended, reset the offsets too: stop the consumers of the group, then use "
    "`forget_consumed_offsets(engine, group, topic)` for offsets in the database, or "
    "`kafka-consumer-groups --reset-offsets` for offsets in Kafka, so that the group starts afresh"
)


class Gap(NamedTuple):
    """The skipped offsets of a partition: from `expected` up to, but not including, `found`."""

    expected: int
    found: int


class ConsumedLogs:
    """The positions of one consumer in the logs it reads, and the check of the records it returns."""

    def __init__(self, consumer: ConsumerAdapter, look_up: WriterTopicIds) -> None:
        self._consumer = consumer
        self._look_up = look_up
        self._ids: dict[str, str] = {}
        self._next: dict[TopicPartition, int] = {}
        self._doubted: set[TopicPartition] = set()
        self._read_again: dict[TopicPartition, Gap] = {}

    @property
    def topic_ids(self) -> Mapping[str, str]:
        return self._ids

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._next.pop(partition, None)
            self._read_again.pop(partition, None)
            self._doubted.discard(partition)

    @property
    def next_offsets(self) -> Positions:
        return self._next

    async def place(
        self,
        partitions: Collection[TopicPartition],
        positions: Positions,
        stored_ids: Mapping[TopicPartition, str | None],
    ) -> None:
        """Check the stored positions, at which the consumer resumes, against the logs.

        `stored_ids` are the ids of the topics when the positions were stored. Raises ConsumedLogReplacedError.
        """
        ids = await self._look_up_ids(partitions)
        for partition in partitions:
            stored = stored_ids.get(partition) or self._ids.get(partition.topic)
            _check_id(partition, positions.get(partition, 0), stored, ids.get(partition.topic))
        self._ids.update(ids)
        bounds = await self._consumer.bounds(positions) if positions else {}
        for partition, (_, end) in bounds.items():
            if end < positions[partition]:
                raise _lost_its_end(partition, positions[partition], end)
        self.placed(positions)

    def placed(self, positions: Positions) -> None:
        self._next.update(positions)
        self._doubted |= positions.keys()

    def written(self, next_offsets: Positions) -> None:
        self._next.update(next_offsets)

    async def _look_up_ids(self, partitions: Iterable[TopicPartition]) -> Mapping[str, str]:
        topics = {partition.topic for partition in partitions}
        return await self._look_up.ids_for(self._consumer, topics) if topics else {}

    async def check(self, records: Sequence[ConsumedRecord]) -> list[ConsumedRecord]:
        """Return the records that continue the written ones; others come again. Raises ConsumedLogErrors."""
        await self._check_topics(records)
        gaps = find_gaps(records, self._next)
        if not gaps:
            return list(records)
        bounds = await self._consumer.bounds(gaps)
        again: dict[TopicPartition, int] = {}
        for partition, gap in gaps.items():
            position = self._judge(partition, gap, bounds[partition].start)
            if position is not None:
                again[partition] = position
        await self._consumer.seek(again)
        # records before a gap are not written yet: if that fails, they are read again
        self._next.update({each: again[each] for each in again if gaps[each].expected == self._next[each]})
        return [
            record
            for record in records
            if record.topic_partition not in again or record.offset < gaps[record.topic_partition].expected
        ]

    async def _check_topics(self, records: Sequence[ConsumedRecord]) -> None:
        """Check topic ids and positions. Looked up after the reading: an unchanged id was the topic's id then too."""
        first = first_offsets(records)
        ids = await self._look_up_ids(first)
        for partition, offset in first.items():
            expected = self._next.get(partition, offset)
            _check_id(partition, expected, self._ids.get(partition.topic), ids.get(partition.topic))
            if offset < expected:
                raise _before(partition, expected, offset)
        self._ids.update(ids)

    def _judge(self, partition: TopicPartition, gap: Gap, start: int) -> int | None:
        """Return the offset to read again from, or None if the gap is in the log itself."""
        if start > gap.expected:
            _log.error(
                "%s-%d: records from offset %d up to %d were deleted before they were consumed; the log now begins at "
                "%d (retention or DeleteRecords): consume faster, or raise the topic's retention",
                *(partition.topic, partition.partition, gap.expected, min(start, gap.found) - 1, start),
            )
            return start if gap.found > start else None
        if partition in self._doubted:  # the consumer may not have started at its position
            self._doubted.discard(partition)
            self._read_again[partition] = gap
            return gap.expected
        before = self._read_again.pop(partition, None)
        if before is not None and before.expected == gap.expected and before.found < gap.found:
            raise _missing(partition, gap, before)
        return None


def find_gaps(records: Iterable[ConsumedRecord], expected: Positions) -> dict[TopicPartition, Gap]:
    gaps: dict[TopicPartition, Gap] = {}
    following = dict(expected)
    for record in records:
        partition = record.topic_partition
        next_offset = following.get(partition)
        if next_offset is not None and record.offset > next_offset:
            gaps.setdefault(partition, Gap(next_offset, record.offset))
        following[partition] = record.offset + 1
    return gaps


def first_offsets(records: Iterable[ConsumedRecord]) -> dict[TopicPartition, int]:
    first: dict[TopicPartition, int] = {}
    for record in records:
        first.setdefault(record.topic_partition, record.offset)
    return first


def offsets_behind(records: Iterable[ConsumedRecord]) -> dict[TopicPartition, int]:
    return {record.topic_partition: record.offset + 1 for record in records}


def _replaced(partition: TopicPartition, expected: int, found: int, why: str) -> ConsumedLogReplacedError:
    return ConsumedLogReplacedError(
        f"{why}; nothing was written: {_ON_PURPOSE}",
        topic=partition.topic,
        partition=partition.partition,
        expected_offset=expected,
        found_offset=found,
    )


def _check_id(partition: TopicPartition, position: int, stored: str | None, found: str | None) -> None:
    if stored is None or found is None or stored == found:
        return
    why = (
        f"topic {partition.topic!r} was deleted and created again: its id was {stored} and is now {found}, so offset "
        f"{position} of partition {partition.partition} belongs to another log"
    )
    raise _replaced(partition, position, -1, why)


def _lost_its_end(partition: TopicPartition, position: int, end: int) -> ConsumedLogReplacedError:
    why = (
        f"the log of {partition.topic}-{partition.partition} ends at offset {end}, but was consumed up to {position}: "
        "it was truncated (unclean leader election, lost disks), or the topic was created again"
    )
    return _replaced(partition, position, end, why)


def _before(partition: TopicPartition, expected: int, found: int) -> ConsumedLogReplacedError:
    why = (
        f"{partition.topic}-{partition.partition} was read from offset {expected} on and returned a record at "
        f"{found}: the log was truncated, or the topic was created again, and auto.offset.reset moved the consumer"
    )
    return _replaced(partition, expected, found, why)


def _missing(partition: TopicPartition, gap: Gap, before: Gap) -> ConsumedRecordsMissingError:
    return ConsumedRecordsMissingError(
        f"{partition.topic}-{partition.partition} was read from offset {gap.expected} twice and returned first a "
        f"record at {before.found}, then one at {gap.found}, although the log still begins before {gap.expected}; "
        "nothing was written: call step() again, and check the consumer's errors if this is repeated",
        topic=partition.topic,
        partition=partition.partition,
        expected_offset=gap.expected,
        found_offset=gap.found,
    )


# ---- topic ids ------------------------------------------------------------------------------------------------------

_TIMEOUT_MS: Final = 30_000


class WriterTopicIds:
    """Looks up the ids that topics have now, over connections with the writer's settings, in the I/O thread.

    Returns no ids for a consumer of another cluster, where topics of the same names have other ids.
    """

    def __init__(self, writer: Any) -> None:
        self._settings = shared_with_admin(writer.producer_settings)
        self._is_awaited = writer.backend.waiting is TASKS
        self._io: IoThread | None = None
        self._admin: AsyncTransactionAdmin
        self._is_same_cluster: bool | None = None

    @property
    def is_of_another_cluster(self) -> bool:
        """Whether the consumer is known to be one of another cluster than the writer."""
        return self._is_same_cluster is False

    async def ids_for(self, consumer: ConsumerAdapter, topics: Collection[str]) -> Mapping[str, str]:
        """Return the ids by name. Raises KafkaTimeoutError and the other errors of `AsyncTransactionAdmin`."""
        if self._is_same_cluster is False:
            return {}
        if self._io is None:
            self._admin = AsyncTransactionAdmin(**self._settings)
            self._io = shared_io_thread()
            weakref.finalize(self, _close_soon, self._admin, self._io, this_process.generation).atexit = False
        asked = self._io.start(self._admin.describe_topic_ids(topics, timeout_ms=_TIMEOUT_MS))
        found = await asyncio.wrap_future(asked) if self._is_awaited else asked.result()
        if self._is_same_cluster is None:
            clusters = found.cluster_id, await consumer.cluster_id()
            self._is_same_cluster = clusters[0] == clusters[1] if None not in clusters else None  # not known yet
        return found.ids if self._is_same_cluster else {}


def _close_soon(admin: AsyncTransactionAdmin, io: IoThread, generation: int) -> None:
    """Close the client without waiting: a pipeline may be garbage-collected in any thread, the I/O thread included."""
    if generation == this_process.generation and not sys.is_finalizing():
        io.start(admin.close())
