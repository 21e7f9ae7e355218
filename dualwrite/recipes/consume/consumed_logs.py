"""Whether what a consumer read follows on what was written before: the same log, and nothing left out.

A consumer is told where to go on, but it decides by itself what to do where the log has no such offset
(`auto.offset.reset`): after a topic was deleted and created anew, after an unclean election, after retention. It goes
on somewhere else then, and says so to nobody. So three things are checked of what it read:

* the id of the topic (KIP-516), which a topic that is created anew does not inherit,
* that the log reaches to where it is to be read on, and no record comes from before that,
* that what is left out in between was left out by the log: by transactions, compaction or retention.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from dualwrite.client.records.record import TopicPartition
from dualwrite.errors import ConsumedLogReplacedError, ConsumedRecordsMissingError
from dualwrite.recipes.consume.consumer_side import ConsumedRecord, ConsumerSide

_log = logging.getLogger(__name__)

_ON_PURPOSE: Final = (
    "where that was on purpose, reset the offsets on purpose too: stop the consumers of the group, then "
    "`forget_consumed_offsets(engine, group, topic)` for offsets in the database, or "
    "`kafka-consumer-groups --reset-offsets` for those of the group, which makes them begin anew"
)


class TopicLookUp(Protocol):
    """Tells which topics there are now."""

    async def ids_for(self, consumer: ConsumerSide, topics: Collection[str]) -> Mapping[str, str]:
        """The ids of topics by name, as the cluster of `consumer` has them; without those that cannot be told."""


class Gap(NamedTuple):
    """Offsets of a partition that were left out: from `expected` up to, and without, `found`."""

    expected: int
    found: int


class ConsumedLogs:
    """Checks what one consumer reads."""

    def __init__(self, consumer: ConsumerSide, look_up: TopicLookUp) -> None:
        self._consumer = consumer
        self._look_up = look_up
        self._ids: dict[str, str] = {}
        self._next: dict[TopicPartition, int] = {}
        self._doubted: set[TopicPartition] = set()
        self._read_again: dict[TopicPartition, Gap] = {}
        self._log_starts: dict[TopicPartition, int] = {}

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """Of the topics that are read, as far as they are known."""
        return self._ids

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """These are new: nothing is known of them yet."""
        for partition in partitions:
            for known in (self._next, self._read_again, self._log_starts):
                known.pop(partition, None)
            self._doubted.discard(partition)

    def knows(self, partition: TopicPartition) -> bool:
        """Whether it is known where its next record is."""
        return partition in self._next

    async def place(
        self,
        partitions: Collection[TopicPartition],
        positions: Mapping[TopicPartition, int],
        stored_ids: Mapping[TopicPartition, str],
    ) -> dict[TopicPartition, int]:
        """Where to read on, for positions that are kept; of `stored_ids` are the topics of which they were kept.

        Raises ConsumedLogReplacedError.
        """
        ids = await self._ask(partitions)
        for partition in partitions:
            found = ids.get(partition.topic)
            stored = stored_ids.get(partition, self._ids.get(partition.topic))
            if found is not None and stored is not None and found != stored:
                raise _other_topic(partition, positions.get(partition, self._next.get(partition, 0)), stored, found)
        self._ids.update(ids)
        await self._check_ends(positions)
        return self.placed(positions)

    async def _check_ends(self, positions: Mapping[TopicPartition, int]) -> None:
        given = {partition: position for partition, position in positions.items() if position > 0}
        if not given:
            return
        bounds = await self._consumer.bounds(given)
        for partition, position in given.items():
            if partition in bounds and bounds[partition].end < position:
                raise _lost_its_end(partition, position, bounds[partition].end)

    def placed(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The consumer goes on there; later where retention has taken these records, which has been told."""
        on = {each: max(position, self._log_starts.get(each, 0)) for each, position in positions.items()}
        self._next.update(on)
        self._doubted |= on.keys()
        return on

    def written(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Up to there."""
        self._next.update(next_offsets)

    async def _ask(self, partitions: Iterable[TopicPartition]) -> Mapping[str, str]:
        topics = {partition.topic for partition in partitions}
        return await self._look_up.ids_for(self._consumer, topics) if topics else {}

    async def check(self, records: Sequence[ConsumedRecord]) -> list[ConsumedRecord]:
        """Those that follow on what was written before; the others will be read again.

        Raises ConsumedLogReplacedError and ConsumedRecordsMissingError.
        """
        await self._check_topics(records)
        gaps = find_gaps(records, self._next)
        if not gaps:
            return list(records)
        bounds = await self._consumer.bounds(gaps)
        again: dict[TopicPartition, int] = {}
        for partition, gap in gaps.items():
            start = bounds[partition].start if partition in bounds else 0
            position = self._judge(partition, gap, start)
            if position is not None:
                again[partition] = position
        self._consumer.go_on_at(again)
        self._next.update({partition: max(position, self._next[partition]) for partition, position in again.items()})
        return [
            record
            for record in records
            if record.topic_partition not in again or record.offset < gaps[record.topic_partition].expected
        ]

    async def _check_topics(self, records: Sequence[ConsumedRecord]) -> None:
        """Asked after they were read: a topic that still has its id had it then."""
        first = first_offsets(records)
        ids = await self._ask(first)
        for partition, offset in first.items():
            found, known = ids.get(partition.topic), self._ids.get(partition.topic)
            if found is not None and known is not None and found != known:
                raise _other_topic(partition, self._next.get(partition, offset), known, found)
            expected = self._next.get(partition)
            if expected is not None and offset < expected:
                raise _before(partition, expected, offset)
        self._ids.update({topic: each for topic, each in ids.items() if topic not in self._ids})

    def _judge(self, partition: TopicPartition, gap: Gap, start: int) -> int | None:
        """Where to read again; None where the log itself leaves these offsets out."""
        if start > gap.expected:
            self._log_starts[partition] = start
            _log.error(
                "%s-%d: records from offset %d up to %d are gone without having been consumed; the log begins at %d "
                "now, so retention or DeleteRecords took them: read faster, or keep them longer",
                *(partition.topic, partition.partition, gap.expected, min(start, gap.found) - 1, start),
            )
            return start if gap.found > start else None
        if partition in self._doubted:  # a consumer that was placed there may not have begun there
            self._doubted.discard(partition)
            self._read_again[partition] = gap
            return gap.expected
        before = self._read_again.pop(partition, None)
        if before is not None and before.expected == gap.expected and before.found < gap.found:
            raise _missing(partition, gap, before)
        return None


def find_gaps(records: Iterable[ConsumedRecord], expected: Mapping[TopicPartition, int]) -> dict[TopicPartition, Gap]:
    """The first of each partition."""
    gaps: dict[TopicPartition, Gap] = {}
    following = dict(expected)
    for record in records:
        partition = record.topic_partition
        awaited = following.get(partition)
        if awaited is not None and record.offset > awaited:
            gaps.setdefault(partition, Gap(awaited, record.offset))
        following[partition] = record.offset + 1
    return gaps


def first_offsets(records: Iterable[ConsumedRecord]) -> dict[TopicPartition, int]:
    """Of each partition."""
    first: dict[TopicPartition, int] = {}
    for record in records:
        first.setdefault(record.topic_partition, record.offset)
    return first


def _other_topic(partition: TopicPartition, position: int, stored: str, found: str) -> ConsumedLogReplacedError:
    return ConsumedLogReplacedError(
        f"topic {partition.topic!r} was deleted and created anew: its id was {stored} and is {found}, so offset "
        f"{position} of partition {partition.partition} says nothing about it; nothing was written: {_ON_PURPOSE}",
        topic=partition.topic,
        partition=partition.partition,
        expected_offset=position,
        found_offset=-1,
    )


def _lost_its_end(partition: TopicPartition, position: int, end: int) -> ConsumedLogReplacedError:
    return ConsumedLogReplacedError(
        f"the log of {partition.topic}-{partition.partition} ends at offset {end}, but was consumed up to {position}: "
        "it lost its end (an unclean election, lost disks), or the topic was created anew; nothing was written: "
        f"{_ON_PURPOSE}",
        topic=partition.topic,
        partition=partition.partition,
        expected_offset=position,
        found_offset=end,
    )


def _before(partition: TopicPartition, expected: int, found: int) -> ConsumedLogReplacedError:
    return ConsumedLogReplacedError(
        f"{partition.topic}-{partition.partition} was read on from offset {expected} and gave a record at {found}: the "
        "log lost its end, or the topic was created anew, and the consumer was reset by auto.offset.reset; nothing was "
        f"written: {_ON_PURPOSE}",
        topic=partition.topic,
        partition=partition.partition,
        expected_offset=expected,
        found_offset=found,
    )


def _missing(partition: TopicPartition, gap: Gap, before: Gap) -> ConsumedRecordsMissingError:
    return ConsumedRecordsMissingError(
        f"{partition.topic}-{partition.partition} was read from offset {gap.expected} twice and gave a record at "
        f"{before.found} first and then {gap.found}, though the log still reaches back that far; nothing was written: "
        "call step() again, and look at the consumer's errors if that repeats",
        topic=partition.topic,
        partition=partition.partition,
        expected_offset=gap.expected,
        found_offset=gap.found,
    )
