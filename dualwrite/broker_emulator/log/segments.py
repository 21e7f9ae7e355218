"""The segments of one log, from the oldest record kept to the end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

from dualwrite.broker_emulator.log.aborted_index import AbortedIndexEntry
from dualwrite.broker_emulator.log.record_batch import parse_header
from dualwrite.broker_emulator.log.segment import LogState, LogStorage, Segment, StoredBatch

_base_offset = attrgetter("base_offset")
_NO_LIMIT = (1 << 63) - 1


class Segments:
    """What is stored of one log. Only the newest segment grows; older ones are deleted or compacted as a whole."""

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
        self._began_ms: int | None = None  # timestamp of the newest segment's first batch, once it was looked at
        self.active = self._segments[-1]

    @property
    def log_end_offset(self) -> int:
        """The offset behind the last batch."""
        return self.active.next_offset

    @property
    def complete(self) -> Sequence[Segment]:
        """Every segment but the newest, oldest first."""
        return self._segments[:-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(segment.size_bytes for segment in self._segments)

    def append(self, batches: Sequence[StoredBatch]) -> None:
        """Append all batches to one segment, or none. Raises StorageError."""
        active = self.active
        if active.size_bytes:
            size = active.size_bytes
            for data, _, _ in batches:
                size += len(data)
            began_ms = self._began_ms
            if began_ms is None:
                began_ms = self._began_ms = self._first_timestamp()
            # a segment is too old for records of a time that is too long after its first one, if that gave a time
            if size > self.segment_bytes or 0 <= began_ms < batches[-1][2] - self.segment_ms:
                active = self.roll()
        active.append(batches)

    def _first_timestamp(self) -> int:
        return parse_header(next(self.active.iterate(self.active.base_offset))).max_timestamp

    def roll(self) -> Segment:
        """Begin a new segment, so that everything stored so far may be deleted or compacted."""
        end = self.active.next_offset
        self._began_ms = None
        self.active = self._storage.new_segment(end, self._state.stable_offset(end))
        self._segments.append(self.active)
        return self.active

    def _holding(self, offset: int) -> int:
        """Index of the segment to which `offset` belongs."""
        if offset >= self.active.base_offset:
            return len(self._segments) - 1
        return max(bisect_right(self._segments, offset, key=_base_offset) - 1, 0)

    def read(self, offset: int, limit_offset: int, max_bytes: int, at_least_one: bool) -> tuple[bytes, int]:
        """Whole batches as `Segment.read` gives them, from as many segments as it takes."""
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
                break  # there is more, but it does not fit
            if offset < segment.next_offset and found:
                break
        return (found[0] if len(found) == 1 else b"".join(found)), offset

    def iterate(self, offset: int) -> Iterator[bytes]:
        """Every batch from the one that holds `offset`, those included that are appended meanwhile."""
        segment: Segment | None = self._segments[self._holding(offset)]
        while segment is not None:
            yield from segment.iterate(offset)
            offset = segment.next_offset
            segment = self._after(segment)

    def _after(self, segment: Segment) -> Segment | None:
        index = bisect_right(self._segments, segment.base_offset, key=_base_offset)
        return self._segments[index] if index < len(self._segments) else None

    def aborted(self, offset: int, upper_bound: int) -> list[AbortedIndexEntry]:
        """The aborted transactions with records in [offset, upper_bound), in the order of their markers."""
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
        """Batches from `offset` on that have a record of `timestamp_ms` or later: of the first segment that has any.

        As in Kafka, that segment is chosen by all of its records, those below the log start offset too.
        """
        for segment in self._segments:
            if segment.max_timestamp >= timestamp_ms:
                return segment.with_timestamp(timestamp_ms, offset)
        return iter(())

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of all records, -1 when there is none."""
        return max(segment.max_timestamp for segment in self._segments)

    def truncate(self, offset: int) -> None:
        """Cut off every batch from `offset` on, which is where a batch begins. Raises StorageError."""
        keep = self._holding(offset) + 1
        removed = self._segments[keep:]
        del self._segments[keep:]
        self.active = self._segments[-1]
        self._began_ms = None
        self.active.truncate(offset)
        self._storage.discard(removed)
        self._storage.truncated(self.active)

    def move_start(self, offset: int) -> None:
        """Forget the records below `offset`, and every segment that has no others. Raises StorageError."""
        self._storage.start_moved(offset)
        self.log_start_offset = offset
        keep = next((i for i, segment in enumerate(self._segments) if segment.next_offset > offset), -1)
        removed = self._segments[: len(self._segments) - 1 if keep < 0 else keep]
        del self._segments[: len(removed)]
        self._storage.discard(removed)

    def replace(self, originals: Sequence[Segment], cleaned: Segment) -> None:
        """Put `cleaned` in the place of neighbouring complete segments. Raises StorageError."""
        start = self._segments.index(originals[0])
        self._storage.replace(originals, cleaned)
        self._segments[start : start + len(originals)] = [cleaned]

    def forget(self) -> Sequence[Segment]:
        """Have nothing any more; gives what there was."""
        forgotten, self._segments = self._segments, []
        return forgotten

    def holds(self, segments: Sequence[Segment]) -> bool:
        """Whether these segments are still part of the log."""
        return all(segment in self._segments for segment in segments)
