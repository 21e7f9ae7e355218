"""Segments in memory, and the budget that all of them share."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

from dualwrite.broker_emulator.log.last_stable_offset import AbortedIndex
from dualwrite.broker_emulator.log.record_batch import parse_header
from dualwrite.broker_emulator.log.segments import (
    NO_TIMESTAMP,
    LoadedLog,
    LogState,
    Segment,
    StorageError,
    StoredBatch,
)
from dualwrite.broker_emulator.slices import Steps, at_once

logger = logging.getLogger(__name__)

_BATCH_OVERHEAD_BYTES = 170
"""Memory that Python needs for a stored batch besides its bytes: the object, and three numbers of its index."""


class MemoryBudget:
    """The memory limit for the records of all partitions of one emulator."""

    __slots__ = ("_is_reported", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._is_reported = False

    def check(self) -> None:
        """Raise StorageError if the limit is reached; the first time, also log an error."""
        if self.used_bytes < self.limit_bytes:
            self._is_reported = False
            return
        problem = (
            f"the {self.limit_bytes} bytes of memory that records may take are used up; keep them on disk (--data-dir),"
            " raise memory.limit.bytes, or shorten the topics' retention (retention.ms, retention.bytes)"
        )
        if not self._is_reported:
            logger.error("records are refused: %s", problem)
            self._is_reported = True
        raise StorageError(problem)


class MemorySegment:
    """A segment that keeps its batches in a list."""

    location = "memory"

    __slots__ = (
        "_batches",
        "_budget",
        "_ends",
        "_max_timestamps",
        "_next_offsets",
        "aborted",
        "base_offset",
        "max_timestamp",
        "next_offset",
        "size_bytes",
        "stable_offset",
    )

    def __init__(self, base_offset: int, stable_offset: int, budget: MemoryBudget) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = 0
        self.max_timestamp = NO_TIMESTAMP
        self.stable_offset = stable_offset
        self.aborted = AbortedIndex()
        self._budget = budget
        self._batches: list[bytes] = []
        self._next_offsets: list[int] = []  # the offset after each batch
        self._ends: list[int] = []  # bytes up to the end of each batch
        self._max_timestamps: list[int] = []  # largest timestamp up to each batch: never decreases

    def append(self, batches: Sequence[StoredBatch]) -> None:
        for data, next_offset, max_timestamp in batches:
            size = len(data)
            self.size_bytes += size
            self.next_offset = next_offset
            if max_timestamp > self.max_timestamp:
                self.max_timestamp = max_timestamp
            self._ends.append(self.size_bytes)
            self._max_timestamps.append(self.max_timestamp)
            self._batches.append(data)
            self._next_offsets.append(next_offset)
            self._budget.used_bytes += size + _BATCH_OVERHEAD_BYTES

    def truncate(self, offset: int) -> None:
        self.forget()
        keep = bisect_right(self._next_offsets, offset)
        for column in (self._batches, self._next_offsets, self._ends, self._max_timestamps):
            del column[keep:]
        self.size_bytes = self._ends[-1] if keep else 0
        self.next_offset = self._next_offsets[-1] if keep else self.base_offset
        self.max_timestamp = self._max_timestamps[-1] if keep else NO_TIMESTAMP
        self.aborted = self.aborted.below(offset)
        self._budget.used_bytes += self.size_bytes + _BATCH_OVERHEAD_BYTES * keep

    def forget(self) -> None:
        """Return the segment's share of the memory budget."""
        self._budget.used_bytes -= self.size_bytes + _BATCH_OVERHEAD_BYTES * len(self._batches)

    def read(self, offset: int, limit_offset: int, max_bytes: int, at_least_one: bool) -> tuple[bytes, int]:
        start = bisect_right(self._next_offsets, offset)
        stop = bisect_right(self._next_offsets, limit_offset, start)
        position = self._ends[start - 1] if start else 0
        end = bisect_right(self._ends, position + max_bytes, start, stop)
        if end == start:
            if not at_least_one or start == stop:
                return b"", offset
            end = start + 1
        records = self._batches[start] if end == start + 1 else b"".join(self._batches[start:end])
        return records, self._next_offsets[end - 1]

    def iterate(self, offset: int) -> Iterator[bytes]:
        index = bisect_right(self._next_offsets, offset)
        while index < len(self._batches):
            yield self._batches[index]
            index += 1

    def with_timestamp(self, timestamp_ms: int, offset: int) -> Iterator[bytes]:
        first = max(bisect_left(self._max_timestamps, timestamp_ms), bisect_right(self._next_offsets, offset))
        for index in range(first, len(self._batches)):
            if parse_header(self._batches[index]).max_timestamp >= timestamp_ms:
                yield self._batches[index]


class MemoryStorage:
    """Storage of a partition's segments in memory; lost when the process ends."""

    __slots__ = ("_budget", "check_room")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self.check_room = budget.check

    def load(self, state: LogState) -> LoadedLog:
        return LoadedLog([self.new_segment(0, 0)], 0)

    def new_segment(self, base_offset: int, stable_offset: int) -> MemorySegment:
        return MemorySegment(base_offset, stable_offset, self._budget)

    new_cleaned_segment = new_segment

    def replace(self, originals: Sequence[Segment], cleaned: Segment) -> None:
        at_once(self.discard(originals))

    def discard(self, segments: Sequence[Segment]) -> Steps[None]:
        for segment in segments:
            assert isinstance(segment, MemorySegment)
            segment.forget()
            yield

    def truncating(self, offset: int) -> None:
        pass

    def truncated(self, active: Segment) -> None:
        pass

    def start_moved(self, log_start_offset: int) -> None:
        pass

    def appended(self, active: Segment, flushed: Callable[[int], None]) -> None:
        flushed(active.next_offset)

    destroy = discard

    def close(self, active: Segment) -> None:
        pass
