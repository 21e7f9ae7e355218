"""Offsets of topic partitions: their JSON in checkpoints, the limit of a batch, and the ranges of its tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

LATEST: Final = -1
EARLIEST: Final = -2
"""The numbers that stand for the two ends of a partition, as in Spark's own Kafka source."""


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


Offsets = Mapping[Partition, int]
"""The offset of the next record, by partition."""

Json = Mapping[str, Mapping[str, int]]
"""`{"topic": {"0": 12}}`, the format of Spark's own Kafka source."""


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return the JSON, always in the same order: Spark compares offsets as strings."""
    written: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        written.setdefault(partition.topic, {})[str(partition.number)] = offsets[partition]
    return written


def from_json(written: Json) -> dict[Partition, int]:
    """Return the offsets that `to_json` has written. Raises ValueError for anything else."""
    return dict(_read(written))


def _read(written: object) -> Iterator[tuple[Partition, int]]:
    if not isinstance(written, Mapping):
        raise ValueError(f"{written!r} is not a mapping of topics")
    for topic, partitions in written.items():
        if not isinstance(partitions, Mapping):
            raise ValueError(f"the topic {topic} has no mapping of partitions")
        for number, offset in partitions.items():
            if not (str(number).isascii() and str(number).isdecimal()):
                raise ValueError(f"{number!r} of the topic {topic} is not the number of a partition")
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
                raise ValueError(f"{offset!r} of {topic}-{number} is not an offset")
            yield Partition(topic, int(number)), offset


@dataclass(frozen=True)
class OffsetRange:
    """The range that one task reads: from `start` up to, but not including, `end`."""

    partition: Partition
    start: int
    end: int

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
    return [OffsetRange(whole.partition, low, high) for low, high in pairwise(borders)]
