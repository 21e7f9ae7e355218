"""`Planner`: the start of a query, the end of a batch, the ranges of its tasks, and lost records.

Imports neither Spark nor a Kafka library; it queries a `Cluster`.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from spark_sink.errors import SinkOptionError, SourceDataLossError, SourceReadError
from spark_sink.reading.clients import Cluster
from spark_sink.reading.offsets import (
    EARLIEST,
    LATEST,
    OffsetRange,
    Offsets,
    Partition,
    Position,
    limited,
    ranges_between,
    split,
)
from spark_sink.reading.options import Bound, OnNoTimestamp, SourceOptions
from spark_sink.reading.topic_ids import TopicIdLookup, another_topic, id_unknown

_log = logging.getLogger("spark_sink")

_FIRST_FEW: Final = 5

UNKNOWN_FOR_S: Final = 3.0
"""How long a known topic or partition must be missing before it counts as gone."""

PAUSE_S: Final = 0.1


class Planner:
    """The planner of one query, in the driver."""

    def __init__(
        self, options: SourceOptions, cluster: Cluster, topics: TopicIdLookup, awaited: set[Partition] | None = None
    ) -> None:
        """Add the partitions that count as gone to `awaited`, and do not wait for them again while they are missing.

        The caller keeps it, for the next planner of the query.
        """
        self._options = options
        self.cluster: Final = cluster
        self.topics: Final = topics
        self._awaited: Final = set[Partition]() if awaited is None else awaited

    def starting(self, otherwise: int) -> Position:
        """Return the start of a new query: `startingOffsets`, `startingTimestamp` or `otherwise` (EARLIEST, LATEST)."""
        partitions = self._partitions(())
        ids = self.topics.ids(_topics_of(partitions), {})  # before the offsets, as in `latest`
        found = self._resolved(self._options.starting or Bound(everywhere=otherwise), partitions, "starting")
        return Position(self._within("startingOffsets", self._options.starting, found), ids)

    def ending(self, start: Position) -> Position:
        """Return the end of a batch query: `endingOffsets`, `endingTimestamp` or the current end."""
        bound, begin = self._options.ending or Bound(everywhere=LATEST), start.offsets
        found = self._within("endingOffsets", bound, self._resolved(bound, begin.keys(), "ending"))
        if bound.everywhere == LATEST:
            found = {each: max(end, begin[each]) for each, end in found.items()}
        else:
            self._check_order(begin, found)
        return Position(found, start.topic_ids)

    def _check_order(self, start: Offsets, end: Offsets) -> None:
        for each in sorted(end):
            if end[each] < start[each]:
                raise SinkOptionError(
                    f"{each} would be read from offset {start[each]} to offset {end[each]}, which is lower"
                )
        undecided = {each: last for each, last in self.cluster.ends(end).items() if end[each] > last}
        for each, last in undecided.items():
            raise SourceReadError(
                f"{each} can be read up to offset {last}, but not to {end[each]}: a transaction is open there. Wait "
                "until it is completed, or read with kafka.isolation.level=read_uncommitted"
            )

    def latest(self, start: Position) -> Position:
        """Return the current end of each partition, with new partitions and without those that no longer exist.

        A topic that is gone keeps its offsets, and is reported as a loss: without them it would be read again from its
        beginning if it came back. One whose id is unknown is left out, because a new topic of its name could not be
        told from it; so is one that the options no longer name.

        A partition that is missing or ends before `start` keeps its offset if its topic has the same id: its broker is
        behind. Without an id it was recreated, which is a loss. With read_committed, the last stable offset may be
        lower than a configured start; then there are no records to read yet.

        With `failOnDataLoss`, a loss that shows by now is raised here: Spark repeats a batch whose end it has recorded.

        The ids are read before the ends. So the id of a topic that is recreated in between is outdated, which
        `ranges` notices; the other way round, ends of the old topic would have the id of the new one.
        """
        reported = set(self._awaited)
        partitions = self._partitions(start.offsets)
        topics = _topics_of(partitions)
        kept = {each for each in self._missing(partitions, start.offsets) if each.topic in start.topic_ids}
        gone = {each for each in kept if each.topic not in topics}
        if gone and (self._options.fail_on_data_loss or not gone <= reported):
            self._lost(f"{_named(gone)} of the checkpoint {_are(gone)} not in Kafka, or may not be described")
        ids = self.topics.ids(topics, start.topic_ids)
        begin = _of_same_topics(start, ids)
        ends = self.cluster.ends(partitions)
        behind = {each for each, end in ends.items() if end < begin.get(each, 0)}
        ahead = self.cluster.high_watermarks([each for each in behind if each.topic not in start.topic_ids])
        kept |= {each for each in behind if each not in ahead or ahead[each] >= begin[each]}
        end = Position(
            {**ends, **{each: begin[each] for each in kept & begin.keys()}},
            {
                **{topic: start.topic_ids[topic] for topic in (topics | _topics_of(kept)) & start.topic_ids.keys()},
                **ids,
            },
        )
        if self._options.fail_on_data_loss:
            self._report_replaced(start, end, without=())
            self._report_gone(begin, end.offsets)
        return end

    def limited(self, start: Position, end: Position, most: int) -> Position:
        """Return `end`, or an end that is at most `most` offsets away."""
        begin = _of_same_topics(start, end.topic_ids)
        begin = {**self._beginnings_of_new(begin, end.offsets), **begin}
        return Position(limited(begin, end.offsets, most), end.topic_ids)

    def ranges(self, start: Position, end: Position) -> list[OffsetRange]:
        """Return the ranges of a batch for its tasks. Raises SourceDataLossError for lost ones (`failOnDataLoss`)."""
        moved = _topics_of(each for each, offset in end.offsets.items() if start.offsets.get(each) != offset)
        moved |= {topic for topic, topic_id in end.topic_ids.items() if start.topic_ids.get(topic) != topic_id}
        ids = self._ids(moved, end.topic_ids)
        replaced = {topic for topic in moved & end.topic_ids.keys() if ids.get(topic) != end.topic_ids[topic]}
        for topic in sorted(replaced):
            self._lost(another_topic(topic, end.topic_ids[topic], ids.get(topic)))
        self._report_replaced(start, end, without=replaced)
        ranges = self._ranges(
            _without(replaced, _of_same_topics(start, end.topic_ids)), _without(replaced, end.offsets)
        )
        return [replace(each, topic_id=ids.get(each.partition.topic)) for each in ranges]

    def _ids(self, topics: Collection[str], expected: Mapping[str, str]) -> Mapping[str, str]:
        """Return the ids of topics; wait a while for those that are missing.

        Raises SourceReadError if Kafka has such a topic, or does not let this client describe it.
        """
        gone_at_s = time.monotonic() + UNKNOWN_FOR_S
        while True:
            ids = self.topics.ids(topics, expected)
            missing = {topic for topic in topics if topic in expected and topic not in ids}
            if not missing or time.monotonic() >= gone_at_s:
                break
            time.sleep(PAUSE_S)
        existing = self.cluster.partitions(missing) if missing else ()
        if existing:
            raise id_unknown(existing)
        return ids

    def _report_replaced(self, start: Position, end: Position, without: Collection[str]) -> None:
        for topic in sorted((start.topic_ids.keys() & end.topic_ids.keys()) - set(without)):
            if start.topic_ids[topic] != end.topic_ids[topic]:
                self._lost(another_topic(topic, start.topic_ids[topic], end.topic_ids[topic]))

    def _report_gone(self, start: Offsets, end: Offsets) -> None:
        gone = start.keys() - end.keys()
        if gone:
            self._lost(f"{_named(gone)} of the checkpoint {_are(gone)} no longer in Kafka")
        for each in sorted(start.keys() & end.keys()):
            if end[each] < start[each]:
                self._lost(
                    f"{each} ends at offset {end[each]}, but was read up to {start[each]} before: it was recreated"
                )

    def _ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        self._report_gone(start, end)
        new = self._beginnings_of_new(start, end)
        for each, beginning in new.items():
            if beginning > 0:
                self._lost(f"the partition {each} is new, but its first {beginning} offsets were already deleted")
        ranges = ranges_between({**new, **start}, end)
        kept = [self._still_there(each, first) for each, first in self._with_beginnings(ranges)]
        return split(
            [each for each in kept if each.size > 0],
            at_least=self._options.min_partitions,
            largest=self._options.max_records_per_partition,
        )

    def _with_beginnings(self, ranges: Collection[OffsetRange]) -> Iterable[tuple[OffsetRange, int]]:
        beginnings = self.cluster.beginnings([each.partition for each in ranges])
        return [(each, beginnings[each.partition]) for each in ranges]

    def _still_there(self, wanted: OffsetRange, beginning: int) -> OffsetRange:
        if wanted.start >= beginning:
            return wanted
        self._lost(lost_offsets(wanted, beginning))
        return replace(wanted, start=min(beginning, wanted.end))

    def _beginnings_of_new(self, start: Offsets, end: Offsets) -> Offsets:
        return self.cluster.beginnings(sorted(end.keys() - start.keys()))

    def _lost(self, what: str) -> None:
        report_loss(what, fail=self._options.fail_on_data_loss)

    def _missing(self, partitions: Collection[Partition], known: Iterable[Partition]) -> set[Partition]:
        """Return the known partitions that the query still reads, and that Kafka does not report."""
        return {each for each in set(known).difference(partitions) if self._reads(each)}

    def _reads(self, each: Partition) -> bool:
        topics = self._options.topics
        if topics.assign is not None:
            return each in topics.assign
        if topics.pattern is not None:
            return re.fullmatch(topics.pattern, each.topic) is not None
        return each.topic in (topics.subscribe or ())

    def _partitions(self, known: Collection[Partition]) -> list[Partition]:
        """Return all partitions that the query reads now; look for missing ones for a while.

        A broker that has just started, or is cut off from the controller, does not know all of them.
        """
        gone_at_s = time.monotonic() + UNKNOWN_FOR_S
        while True:
            found = self._existing(known)
            missing = self._missing(found, known)
            if missing <= self._awaited or time.monotonic() >= gone_at_s:
                self._awaited.difference_update(found)
                self._awaited.update(missing)
                return found
            time.sleep(PAUSE_S)

    def _existing(self, known: Collection[Partition]) -> list[Partition]:
        topics = self._options.topics
        if topics.assign is not None:
            existing = self.cluster.partitions({each.topic for each in topics.assign})
            missing = [each for each in topics.assign if each.number not in existing.get(each.topic, ())]
            self._must_exist("assign", [each for each in missing if each not in set(known)])
            return [each for each in topics.assign if each not in missing]
        if topics.pattern is not None:
            matches: Callable[[str], object] = re.compile(topics.pattern).fullmatch
            existing = {name: each for name, each in self.cluster.partitions(None).items() if matches(name)}
        else:
            assert topics.subscribe is not None
            existing = self.cluster.partitions(topics.subscribe)
            known_topics = {each.topic for each in known}
            self._must_exist("subscribe", [t for t in topics.subscribe if t not in existing and t not in known_topics])
        return sorted(Partition(topic, number) for topic, numbers in existing.items() for number in numbers)

    def _must_exist(self, option: str, missing: Collection[str | Partition]) -> None:
        if missing:
            raise SourceReadError(
                f"{option}: {_named(missing)} {_are(missing)} not in Kafka, or this user has no right to describe it; "
                "create it first, or use subscribePattern, which waits for matching topics"
            )

    def _resolved(self, bound: Bound, partitions: Collection[Partition], side: str) -> dict[Partition, int]:
        if bound.timestamp_ms is not None:
            return self._at_time(bound.timestamp_ms, partitions, side)
        wanted = dict.fromkeys(partitions, bound.everywhere) if bound.offsets is None else dict(bound.offsets)
        if set(wanted) != set(partitions):
            raise SinkOptionError(
                f"{side}Offsets must have every partition that is read, and no other; "
                f"{_named(set(wanted) ^ set(partitions))} {_are(set(wanted) ^ set(partitions))} only in one of the "
                "two. -2 stands for the earliest offset, and -1 for the latest"
            )
        beginnings = self.cluster.beginnings([each for each, offset in wanted.items() if offset == EARLIEST])
        ends = self.cluster.ends([each for each, offset in wanted.items() if offset == LATEST])
        return {each: beginnings.get(each, ends.get(each, offset or 0)) for each, offset in wanted.items()}

    def _at_time(self, timestamp_ms: int, partitions: Collection[Partition], side: str) -> dict[Partition, int]:
        found = self.cluster.at_time(partitions, timestamp_ms)
        none = sorted(each for each, offset in found.items() if offset is None)
        if none and side == "starting" and self._options.on_no_timestamp is OnNoTimestamp.ERROR:
            raise SourceReadError(
                f"startingTimestamp: {_named(none)} {'has' if len(none) == 1 else 'have'} no record as late as "
                f"{timestamp_ms}; startingOffsetsByTimestampStrategy=latest starts at the next record"
            )
        ends = self.cluster.ends(none)
        return {each: ends[each] if offset is None else offset for each, offset in found.items()}

    def _within(self, option: str, bound: Bound | None, found: dict[Partition, int]) -> dict[Partition, int]:
        """Limit configured offsets to existing ones, and report a loss if one changes: it may be outdated."""
        if bound is None or bound.offsets is None:
            return found
        beginnings, ends = self.cluster.beginnings(found), self.cluster.high_watermarks(found)
        inside = {}
        for each, offset in sorted(found.items()):
            inside[each] = min(max(offset, beginnings[each]), ends[each])
            if inside[each] != offset:
                self._lost(f"{option}: {each} has offsets {beginnings[each]} to {ends[each]}, but not {offset}")
        return inside


def lost_offsets(wanted: OffsetRange, beginning: int) -> str:
    """Return a sentence about a range whose first offsets no longer exist."""
    return (
        f"{wanted.partition} begins at offset {beginning} now, but offsets {wanted.start} to "
        f"{min(beginning, wanted.end) - 1} were not read yet: they were deleted"
    )


def lost_end(wanted: OffsetRange, end: int) -> str:
    """Return a sentence about a range that begins at the log's end, or after it."""
    return (
        f"{wanted.partition} ends at offset {end} now, but offsets {wanted.start} to {wanted.end - 1} were not read "
        "yet: it was recreated or truncated"
    )


def report_loss(what: str, *, fail: bool) -> None:
    """Raise SourceDataLossError, or log a warning if `fail` is False."""
    if fail:
        raise SourceDataLossError(
            f"{what}. The query has stopped; to continue without these records, start it with failOnDataLoss=false"
        )
    _log.warning("%s; the query continues without these records, because failOnDataLoss is false", what)


def _topics_of(partitions: Iterable[Partition]) -> set[str]:
    return {each.topic for each in partitions}


def _of_same_topics(start: Position, ids: Mapping[str, str]) -> dict[Partition, int]:
    """Return the offsets that are still valid: without those of topics that have another id now."""
    replaced = {topic for topic in start.topic_ids.keys() & ids.keys() if start.topic_ids[topic] != ids[topic]}
    return _without(replaced, start.offsets)


def _without(topics: Collection[str], offsets: Offsets) -> dict[Partition, int]:
    return {each: offset for each, offset in offsets.items() if each.topic not in topics}


def _named(things: Iterable[object]) -> str:
    names = sorted(map(str, things))
    return ", ".join(names[:_FIRST_FEW]) + (f" and {len(names) - _FIRST_FEW} more" if len(names) > _FIRST_FEW else "")


def _are(things: Collection[object]) -> str:
    return "is" if len(things) == 1 else "are"
