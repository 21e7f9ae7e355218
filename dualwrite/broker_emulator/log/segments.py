"""The segments of one log, from the oldest record kept to the end, and which of them retention deletes.

Interfaces come first: a segment, the storage that segments come from, and the state to restore.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeAlias

from dualwrite.broker_emulator.log.last_stable_offset import AbortedIndex, AbortedIndexEntry
from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.record_batch import BatchHeader, parse_header
from dualwrite.broker_emulator.slices import Steps, at_once

NO_TIMESTAMP = -1
_base_offset, _next_offset = attrgetter("base_offset"), attrgetter("next_offset")
_NO_LIMIT = (1 << 63) - 1


class StorageError(Exception):
    """Records cannot be stored or read; the message is a sentence for the broker's operator."""


StoredBatch: TypeAlias = tuple[bytes, int, int]
"""The bytes of a batch, the offset after its last record, and its largest timestamp.

A plain tuple, because every write makes some, and a named tuple takes three times as long to make.
"""


class Segment(Protocol):
    """A contiguous part of a log: batches in the order of their offsets. Only the newest one is appended to."""

    base_offset: int
    """First offset of the segment."""
    next_offset: int
    """Offset after the segment."""
    size_bytes: int
    max_timestamp: int
    """Largest timestamp of its records in milliseconds since the Unix epoch; -1 without records."""
    stable_offset: int
    """First offset of the earliest transaction open when the segment began, else `base_offset`."""

    @property
    def location(self) -> str:
        """The location of the segment, for messages."""

    @property
    def aborted(self) -> AbortedIndex:
        """The aborted transactions whose markers are in this segment."""

    def append(self, batches: Sequence[StoredBatch]) -> None:
        """Append all batches or none. Raises StorageError."""

    def truncate(self, offset: int) -> None:
        """Remove every batch from `offset` on, where a batch must begin. Raises StorageError."""

    def read(self, offset: int, limit_offset: int, max_bytes: int, at_least_one: bool) -> tuple[bytes, int]:
        """Read whole batches from the one with `offset`, all below `limit_offset` and within `max_bytes`.

        Returns their bytes and the offset after them (`offset` if there are none). Raises StorageError.
        """

    def iterate(self, offset: int) -> Iterator[bytes]:
        """Yield every batch from the one with `offset`, including those appended meanwhile."""

    def with_timestamp(self, timestamp_ms: int, offset: int) -> Iterator[bytes]:
        """Yield every batch, from the one with `offset` on, that has a record of `timestamp_ms` or later."""


class LoadedLog(NamedTuple):
    """A partition as its storage loaded it."""

    segments: list[Segment]
    """Oldest first, contiguous, at least one."""
    log_start_offset: int


class LogState(Protocol):
    """The state of a log besides its batches, which a storage must restore."""

    def encode(self) -> bytes:
        """Encode the current state."""

    def restore(self, encoded: bytes) -> None:
        """Replace the state by the output of `encode`. Raises StorageError."""

    def replay(self, header: BatchHeader, batch: bytes | memoryview, segment: Segment | None) -> None:
        """Update the state by the next batch of the log.

        Aborted transactions are added to the index of `segment`; None means that they are in it already.
        """

    def stable_offset(self, offset: int) -> int:
        """Return the first offset of the earliest open transaction, else `offset`."""


class LogStorage(Protocol):
    """The storage of one partition's segments."""

    def load(self, state: LogState) -> LoadedLog:
        """Load the log and bring `state` up to its end. Raises StorageError."""

    def check_room(self) -> None:
        """Raise StorageError if clients must not store more records."""

    def new_segment(self, base_offset: int, stable_offset: int) -> Segment:
        """Return a new segment to append to; the previous one is complete."""

    def new_cleaned_segment(self, base_offset: int, stable_offset: int) -> Segment:
        """Return a segment for the output of compaction; not part of the log until `replace`."""

    def replace(self, originals: Sequence[Segment], cleaned: Segment) -> None:
        """Replace `originals` by `cleaned` atomically. Raises StorageError."""

    def discard(self, segments: Sequence[Segment]) -> Steps[None]:
        """Delete segments that are no longer part of the log. The log may be used between the steps."""

    def truncating(self, offset: int) -> None:
        """Note that every batch from `offset` on is about to be removed."""

    def truncated(self, active: Segment) -> None:
        """Note that the log was truncated and now ends with `active`; later segments were discarded."""

    def start_moved(self, log_start_offset: int) -> None:
        """Store the new start of the log; called before segments below it are discarded."""

    def appended(self, active: Segment, flushed: Callable[[int], None]) -> None:
        """Note an append to `active`; `flushed` is called with the offset up to which appends may be acknowledged."""

    def destroy(self, segments: Sequence[Segment]) -> Steps[None]:
        """Delete the log; `segments` are all of its segments. Its name is free after the first step."""

    def close(self, active: Segment) -> None:
        """Persist everything for the next start."""


class Segments:
    """The stored part of one log. Only the newest segment grows; older ones are deleted or compacted as a whole."""

    __slots__ = (
        "_began_ms",
        "_segments",
        "_state",
        "_storage",
        "active",
        "log_start_offset",
        "segment_bytes",
        "segment_ms",
    )

    def __init__(self, storage: LogStorage, state: LogState, segment_bytes: int, segment_ms: int = _NO_LIMIT) -> None:
        loaded = storage.load(state)
        self.log_start_offset = loaded.log_start_offset
        self._segments = loaded.segments
        self._storage = storage
        self._state = state
        self.segment_bytes = segment_bytes
        self.segment_ms = segment_ms
        self._began_ms: int | None = None  # timestamp of the active segment's first batch, once it was read
        self.active = self._segments[-1]

    @property
    def log_end_offset(self) -> int:
        """The offset after the last batch."""
        return self.active.next_offset

    @property
    def complete(self) -> Sequence[Segment]:
        """Every segment but the newest, oldest first."""
        return self._segments[:-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(segment.size_bytes for segment in self._segments)

    def append(self, batches: Sequence[StoredBatch], size_bytes: int) -> None:
        """Append all batches, `size_bytes` together, to one segment, or none. Raises StorageError."""
        active = self.active
        size = active.size_bytes
        if size:
            began_ms = self._began_ms
            if began_ms is None:
                began_ms = self._began_ms = self._first_timestamp()
            # roll a segment whose first record is too much older than the new records; -1 is no timestamp
            if size + size_bytes > self.segment_bytes or 0 <= began_ms < batches[-1][2] - self.segment_ms:
                active = self.roll()
        active.append(batches)

    def _first_timestamp(self) -> int:
        return parse_header(next(self.active.iterate(self.active.base_offset))).max_timestamp

    def roll(self) -> Segment:
        """Start a new segment, so that everything stored so far may be deleted or compacted."""
        end = self.active.next_offset
        self._began_ms = None
        self.active = self._storage.new_segment(end, self._state.stable_offset(end))
        self._segments.append(self.active)
        return self.active

    def _holding(self, offset: int) -> int:
        """Return the index of the segment that contains `offset`."""
        if offset >= self.active.base_offset:
            return len(self._segments) - 1
        return max(bisect_right(self._segments, offset, key=_base_offset) - 1, 0)

    def location(self, offset: int) -> str:
        """Return the location of the segment that contains `offset`, for messages."""
        return self._segments[self._holding(offset)].location

    def read(self, offset: int, limit_offset: int, max_bytes: int, at_least_one: bool) -> tuple[bytes, int]:
        """Read whole batches as `Segment.read` does, from as many segments as needed."""
        if offset >= self.active.base_offset:
            return self.active.read(offset, limit_offset, max_bytes, at_least_one)
        found: list[bytes] = []
        for index in range(self._holding(offset), len(self._segments)):
            segment = self._segments[index]
            records, next_offset = segment.read(offset, limit_offset, max_bytes, at_least_one and not found)
            if records:
                found.append(records)
                max_bytes -= len(records)
                offset = next_offset
            elif segment.read(offset, limit_offset, 1, at_least_one=True)[0]:
                break  # there are more batches, but they do not fit
            if offset < segment.next_offset and found:
                break
        return (found[0] if len(found) == 1 else b"".join(found)), offset

    def iterate(self, offset: int) -> Iterator[bytes]:
        """Yield every batch from the one with `offset`, including those appended meanwhile."""
        segment: Segment | None = self._segments[self._holding(offset)]
        while segment is not None:
            yield from segment.iterate(offset)
            offset = segment.next_offset
            segment = self._after(segment)

    def _after(self, segment: Segment) -> Segment | None:
        index = bisect_right(self._segments, segment.base_offset, key=_base_offset)
        return self._segments[index] if index < len(self._segments) else None

    def aborted(self, offset: int, upper_bound: int) -> list[AbortedIndexEntry]:
        """Return the aborted transactions with records in [offset, upper_bound), in the order of their markers."""
        found: list[AbortedIndexEntry] = []
        for index in range(self._holding(offset), len(self._segments)):
            segment = self._segments[index]
            if segment.stable_offset >= upper_bound:
                break
            more, is_complete = segment.aborted.search(offset, upper_bound)
            found += more
            if is_complete:
                break
        return found

    def with_timestamp(self, timestamp_ms: int, offset: int) -> Iterator[bytes]:
        """Yield batches from `offset` on with a record of `timestamp_ms` or later, from the first segment with any.

        As in Kafka, that segment is chosen by all of its records, including those below the log start offset.
        """
        for segment in self._segments:
            if segment.max_timestamp >= timestamp_ms:
                return segment.with_timestamp(timestamp_ms, offset)
        return iter(())

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of all records, -1 without records."""
        return max(segment.max_timestamp for segment in self._segments)

    def truncate(self, offset: int) -> None:
        """Remove every batch from `offset` on, where a batch must begin. Raises StorageError."""
        self._storage.truncating(offset)
        keep = self._holding(offset) + 1
        removed = self._segments[keep:]
        del self._segments[keep:]
        self.active = self._segments[-1]
        self._began_ms = None
        self.active.truncate(offset)
        at_once(self._storage.discard(removed))
        self._storage.truncated(self.active)

    def move_start(self, offset: int) -> Sequence[Segment]:
        """Forget the records below `offset`; return the segments with only such records. Raises StorageError."""
        self._storage.start_moved(offset)
        self.log_start_offset = offset
        keep = min(bisect_right(self._segments, offset, key=_next_offset), len(self._segments) - 1)
        removed = self._segments[:keep]
        del self._segments[:keep]
        return removed

    def replace(self, originals: Sequence[Segment], cleaned: Segment) -> None:
        """Replace neighbouring complete segments by `cleaned`. Raises StorageError."""
        start = self._segments.index(originals[0])
        self._storage.replace(originals, cleaned)
        self._segments[start : start + len(originals)] = [cleaned]

    def forget(self) -> Sequence[Segment]:
        """Drop all segments and return them."""
        forgotten, self._segments = self._segments, []
        return forgotten

    def holds(self, segments: Sequence[Segment]) -> bool:
        """Return whether these segments are still part of the log."""
        return all(segment in self._segments for segment in segments)


def retained_from(segments: Sequence[Segment], config: LogConfig, now_ms: int, limit_offset: int) -> int:
    """Return the offset from which retention keeps a log's records; `segments` are all its segments, the newest last.

    Segments are deleted whole and in order, while a segment's newest record is older than `retention.ms`, or while the
    later segments alone have `retention.bytes`. Segments that reach beyond `limit_offset` stay. The newest segment can
    be deleted by age only.
    """
    size = sum(segment.size_bytes for segment in segments)
    start = segments[0].base_offset
    for segment in segments:
        is_newest = segment is segments[-1]
        too_much = not is_newest and 0 <= config.retention_bytes <= size - segment.size_bytes
        if (
            segment.next_offset > limit_offset
            or not segment.size_bytes
            or not (_is_old(segment, config, now_ms) or too_much)
        ):
            break
        size -= segment.size_bytes
        start = segment.next_offset
    return start


def _is_old(segment: Segment, config: LogConfig, now_ms: int) -> bool:
    """Return whether all records are older than `retention.ms`; a segment without timestamps never is."""
    if config.retention_ms < 0 or segment.max_timestamp == NO_TIMESTAMP:
        return False
    return segment.max_timestamp < now_ms - config.retention_ms
