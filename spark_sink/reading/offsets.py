"""Offsets of topic partitions: their JSON in checkpoints, the limit of a batch, and the ranges of its tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

LATEST: Final = -1
EARLIEST: Final = -2
"""LATEST and EARLIEST: the numbers for the two ends of a partition, as in Spark's own Kafka source."""


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


Offsets = Mapping[Partition, int]
"""The offset of the next record, by partition."""

TOPIC_ID: Final = "topicId"

START: Final = "@start"
"""The key, beside topics (whose names have no `@`), of the query's start, in the end of its first batch."""

INITIAL: Final[Mapping[str, None]] = {START: None}
"""The start of the first batch for Spark, which requests it several times: the end of that batch has the real one."""

Json = Mapping[str, Mapping[str, int | str]]
"""`{"topic": {"0": 12, "topicId": "..."}}`: the format of Spark's own Kafka source, with the id of the topic."""


class Position(NamedTuple):
    """Offsets by partition, and the ids of the topics to which they belong, as far as they are known (KIP-516).

    An offset of a topic means nothing in another topic of the same name.
    """

    offsets: Offsets
    topic_ids: Mapping[str, str] = {}


def to_json(position: Position) -> dict[str, dict[str, int | str]]:
    """Return the JSON, always in the same order: Spark compares offsets as strings."""
    written: dict[str, dict[str, int | str]] = {}
    for partition in sorted(position.offsets):
        written.setdefault(partition.topic, {})[str(partition.number)] = position.offsets[partition]
    for topic in written.keys() & position.topic_ids.keys():
        written[topic][TOPIC_ID] = position.topic_ids[topic]
    return written


def from_json(written: Json) -> Position:
    """Return the position that `to_json` has written, also by versions without ids. Raises ValueError otherwise."""
    topics = dict(_topics(written))
    offsets = {each: offset for topic, partitions in topics.items() for each, offset in _offsets(topic, partitions)}
    ids = {topic: _id(topic, partitions[TOPIC_ID]) for topic, partitions in topics.items() if TOPIC_ID in partitions}
    return Position(offsets, ids)


def first_end(start: Position, end: Position) -> dict[str, Any]:
    """Return the JSON of the end of a query's first batch, which keeps the start of the query.

    Spark records it before the batch runs, so a batch that is started again has the same start, even if the topics have
    changed by then.
    """
    return {**to_json(end), START: to_json(start)}


def from_checkpoint(written: Json) -> Position:
    """Return the position of an offset that Spark has recorded."""
    return from_json({topic: each for topic, each in written.items() if topic != START})


def start_before(end: Json) -> Position | None:
    """Return the start of the query, if this is the end of its first batch."""
    start: Any = end.get(START)
    return None if start is None else from_json(start)


def _id(topic: str, written: object) -> str:
    if not isinstance(written, str):
        raise ValueError(f"{written!r} is not an id of the topic {topic}")
    return written


def _topics(written: object) -> Iterator[tuple[str, Mapping[str, object]]]:
    if not isinstance(written, Mapping):
        raise ValueError(f"{written!r} is not a mapping of topics")
    for topic, partitions in written.items():
        if not isinstance(partitions, Mapping):
            raise ValueError(f"the topic {topic} has no mapping of partitions")
        yield topic, partitions


def _offsets(topic: str, partitions: Mapping[str, object]) -> Iterator[tuple[Partition, int]]:
    for number, offset in partitions.items():
        if number != TOPIC_ID:
            if not (str(number).isascii() and str(number).isdecimal()):
                raise ValueError(f"topic {topic}: {number!r} is not a partition number")
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
                raise ValueError(f"{offset!r} of {topic}-{number} is not an offset")
            yield Partition(topic, int(number)), offset


@dataclass(frozen=True)
class OffsetRange:
    """The range that one task reads: from `start` up to, but not including, `end`."""

    partition: Partition
    start: int
    end: int
    topic_id: str | None = None
    """The id of the topic for which the range was planned; None if unknown."""

    @property
    def size(self) -> int:
        """The number of offsets. Transaction markers, aborted and compacted records have offsets but make no rows."""
        return self.end - self.start


def limited(start: Offsets, end: Offsets, most: int) -> dict[Partition, int]:
    """Return an end that is at most `most` offsets away, shared in proportion to the backlog of each partition.

    Each partition with a backlog gets at least one offset, so that none starves. The total exceeds `most` only if more
    partitions than that have a backlog.
    """
    backlog = {each: end[each] - start[each] for each in end if end[each] > start[each]}
    total = sum(backlog.values())
    if total <= most:
        return dict(end)
    to_share, shared_by = max(most - len(backlog), 0), max(total - len(backlog), 1)
    return {
        each: start[each] + 1 + (backlog[each] - 1) * to_share // shared_by if each in backlog else end[each]
        for each in end
    }


def ranges_between(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """Return the ranges in between, by partition, without empty ones."""
    return [OffsetRange(each, start[each], end[each]) for each in sorted(end) if end[each] > start[each]]


def split(ranges: list[OffsetRange], *, at_least: int | None = None, largest: int | None = None) -> list[OffsetRange]:
    """Split ranges so that none has more than `largest` offsets and there are about `at_least` (`minPartitions`).

    Larger ranges are split into more pieces; the pieces of one range differ by at most one offset.
    """
    pieces = ranges
    if largest is not None:
        pieces = [piece for each in pieces for piece in _cut(each, -(-each.size // largest))]
    total = sum(each.size for each in pieces)
    if at_least is not None and len(pieces) < at_least and total > 0:
        pieces = [piece for each in pieces for piece in _cut(each, -(-each.size * at_least // total))]
    return pieces


def _cut(whole: OffsetRange, into: int) -> list[OffsetRange]:
    pieces = min(into, whole.size)
    borders = [whole.start + whole.size * number // pieces for number in range(pieces + 1)]
    return [replace(whole, start=low, end=high) for low, high in pairwise(borders)]
