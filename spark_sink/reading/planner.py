"""Which offsets a query reads: where it starts, how far a batch goes, how tasks share it, and what was lost.

No Spark in here, and no Kafka but what `Cluster` answers.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable
from typing import Final

from spark_sink.errors import SinkOptionError, SourceDataLossError, SourceReadError
from spark_sink.reading.clients import Cluster
from spark_sink.reading.offsets import (
    EARLIEST,
    LATEST,
    OffsetRange,
    Offsets,
    Partition,
    limited,
    ranges_between,
    split,
)
from spark_sink.reading.options import Bound, OnNoTimestamp, SourceOptions

_log = logging.getLogger("spark_sink")

_FIRST_FEW: Final = 5


class Planner:
    """Of one query, in the driver."""

    def __init__(self, options: SourceOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster

    def starting(self, otherwise: int) -> dict[Partition, int]:
        """Where a new query starts: `startingOffsets` or `startingTimestamp`, else `otherwise` (EARLIEST or LATEST)."""
        found = self._resolved(self._options.starting or Bound(everywhere=otherwise), self._partitions(()), "starting")
        return self._within("startingOffsets", self._options.starting, found)

    def ending(self, start: Offsets) -> dict[Partition, int]:
        """Where a batch query ends: `endingOffsets` or `endingTimestamp`, else with what is committed now."""
        bound = self._options.ending or Bound(everywhere=LATEST)
        found = self._within("endingOffsets", bound, self._resolved(bound, start.keys(), "ending"))
        if bound.everywhere == LATEST:
            return {each: max(end, start[each]) for each, end in found.items()}
        self._check_order(start, found)
        return found

    def _check_order(self, start: Offsets, end: Offsets) -> None:
        for each in sorted(end):
            if end[each] < start[each]:
                raise SinkOptionError(
                    f"{each} would be read from offset {start[each]} to {end[each]}, which is before it"
                )
        undecided = {each: last for each, last in self._cluster.ends(end).items() if end[each] > last}
        for each, last in undecided.items():
            raise SourceReadError(
                f"{each} can be read up to offset {last}, and not to {end[each]}: a transaction is open there. Wait "
                "for it, or read with kafka.isolation.level=read_uncommitted"
            )

    def latest(self, start: Offsets) -> dict[Partition, int]:
        """What can be read now; with partitions that are new, and without those that are gone.

        It is behind `start` where a partition was made anew, which is a loss. With read_committed the last stable
        offset may be behind a start that somebody chose; then there is nothing to read yet.
        """
        ends = self._cluster.ends(self._partitions(start))
        behind = [each for each, end in ends.items() if end < start.get(each, 0)]
        ahead = self._cluster.high_watermarks(behind)
        return {**ends, **{each: start[each] for each in behind if ahead[each] >= start[each]}}

    def limited(self, start: Offsets, end: Offsets, most: int) -> dict[Partition, int]:
        """`end`, or what is not more than `most` offsets away."""
        return limited({**self._beginnings_of_new(start, end), **start}, end, most)

    def ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """What tasks read of a batch. Raises SourceDataLossError where some of it is gone (`failOnDataLoss`)."""
        gone = start.keys() - end.keys()
        if gone:
            self._lost(f"{_named(gone)} of the checkpoint {_are(gone)} not in Kafka any more")
        new = self._beginnings_of_new(start, end)
        for each, beginning in new.items():
            if beginning > 0:
                self._lost(f"the partition {each} is new, and its first {beginning} offsets are gone already")
        begin = {**new, **start}
        for each in sorted(begin.keys() & end.keys()):
            if end[each] < begin[each]:
                self._lost(
                    f"{each} ends at offset {end[each]}, and was read up to {begin[each]} before: it was made anew"
                )
        ranges = ranges_between(begin, end)
        kept = [self._still_there(each, first) for each, first in self._with_beginnings(ranges)]
        return split(
            [each for each in kept if each.size > 0],
            at_least=self._options.min_partitions,
            largest=self._options.max_records_per_partition,
        )

    def _with_beginnings(self, ranges: Collection[OffsetRange]) -> Iterable[tuple[OffsetRange, int]]:
        beginnings = self._cluster.beginnings([each.partition for each in ranges])
        return [(each, beginnings[each.partition]) for each in ranges]

    def _still_there(self, wanted: OffsetRange, beginning: int) -> OffsetRange:
        if wanted.start >= beginning:
            return wanted
        self._lost(lost_offsets(wanted, beginning))
        return OffsetRange(wanted.partition, min(beginning, wanted.end), wanted.end)

    def _beginnings_of_new(self, start: Offsets, end: Offsets) -> Offsets:
        return self._cluster.beginnings(sorted(end.keys() - start.keys()))

    def _lost(self, what: str) -> None:
        report_loss(what, fail=self._options.fail_on_data_loss)

    def _partitions(self, known: Iterable[Partition]) -> list[Partition]:
        """All that the query reads now."""
        topics = self._options.topics
        if topics.assign is not None:
            existing = self._cluster.partitions({each.topic for each in topics.assign})
            missing = [each for each in topics.assign if each.number not in existing.get(each.topic, ())]
            self._must_exist("assign", [each for each in missing if each not in set(known)])
            return [each for each in topics.assign if each not in missing]
        if topics.pattern is not None:
            matches: Callable[[str], object] = re.compile(topics.pattern).fullmatch
            existing = {name: each for name, each in self._cluster.partitions(None).items() if matches(name)}
        else:
            assert topics.subscribe is not None
            existing = self._cluster.partitions(topics.subscribe)
            known_topics = {each.topic for each in known}
            self._must_exist("subscribe", [t for t in topics.subscribe if t not in existing and t not in known_topics])
        return sorted(Partition(topic, number) for topic, numbers in existing.items() for number in numbers)

    def _must_exist(self, option: str, missing: Collection[str | Partition]) -> None:
        if missing:
            raise SourceReadError(
                f"{option}: {_named(missing)} {_are(missing)} not in Kafka, or may not be seen by this user; create it "
                "first, or take subscribePattern, which waits for topics that match"
            )

    def _resolved(self, bound: Bound, partitions: Collection[Partition], side: str) -> dict[Partition, int]:
        if bound.timestamp_ms is not None:
            return self._at_time(bound.timestamp_ms, partitions, side)
        wanted = dict.fromkeys(partitions, bound.everywhere) if bound.offsets is None else dict(bound.offsets)
        if set(wanted) != set(partitions):
            raise SinkOptionError(
                f"{side}Offsets: every partition that is read must be in it, and no other; "
                f"{_named(set(wanted) ^ set(partitions))} {_are(set(wanted) ^ set(partitions))} on one side only. "
                "-2 stands for the earliest offset, and -1 for the latest"
            )
        beginnings = self._cluster.beginnings([each for each, offset in wanted.items() if offset == EARLIEST])
        ends = self._cluster.ends([each for each, offset in wanted.items() if offset == LATEST])
        return {each: beginnings.get(each, ends.get(each, offset or 0)) for each, offset in wanted.items()}

    def _at_time(self, timestamp_ms: int, partitions: Collection[Partition], side: str) -> dict[Partition, int]:
        found = self._cluster.at_time(partitions, timestamp_ms)
        none = sorted(each for each, offset in found.items() if offset is None)
        if none and side == "starting" and self._options.on_no_timestamp is OnNoTimestamp.ERROR:
            raise SourceReadError(
                f"startingTimestamp: {_named(none)} {'has' if len(none) == 1 else 'have'} no record as late as "
                f"{timestamp_ms}; startingOffsetsByTimestampStrategy=latest would start at what comes next"
            )
        ends = self._cluster.ends(none)
        return {each: ends[each] if offset is None else offset for each, offset in found.items()}

    def _within(self, option: str, bound: Bound | None, found: dict[Partition, int]) -> dict[Partition, int]:
        """Offsets that somebody wrote down may be of another time: they are compared with what there is."""
        if bound is None or bound.offsets is None:
            return found
        beginnings, ends = self._cluster.beginnings(found), self._cluster.high_watermarks(found)
        inside = {}
        for each, offset in sorted(found.items()):
            inside[each] = min(max(offset, beginnings[each]), ends[each])
            if inside[each] != offset:
                self._lost(f"{option}: {each} has offsets {beginnings[each]} to {ends[each]}, and not {offset}")
        return inside


def lost_offsets(wanted: OffsetRange, beginning: int) -> str:
    """The sentence about a range that begins too early."""
    return (
        f"{wanted.partition} begins at offset {beginning} now, and offsets {wanted.start} to "
        f"{min(beginning, wanted.end) - 1} were still to be read: they were deleted"
    )


def report_loss(what: str, *, fail: bool) -> None:
    """Raise SourceDataLossError, or warn of it."""
    if fail:
        raise SourceDataLossError(
            f"{what}. The query has not gone on without it; where that is wanted, start it with failOnDataLoss=false"
        )
    _log.warning("%s; the query goes on without it, as failOnDataLoss is false", what)


def _named(things: Iterable[object]) -> str:
    names = sorted(map(str, things))
    return ", ".join(names[:_FIRST_FEW]) + (f" and {len(names) - _FIRST_FEW} more" if len(names) > _FIRST_FEW else "")


def _are(things: Collection[object]) -> str:
    return "is" if len(things) == 1 else "are"
