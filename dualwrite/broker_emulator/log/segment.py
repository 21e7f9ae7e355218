"""Interfaces below a partition's log: its segments, the storage they come from, and the state to restore."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from dualwrite.broker_emulator.log.last_stable_offset import AbortedIndex
from dualwrite.broker_emulator.log.record_batch import BatchHeader

NO_TIMESTAMP = -1


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
    """Largest timestamp of its records in milliseconds since the Unix epoch; -1 if there is none."""
    stable_offset: int
    """First offset of the earliest transaction open when the segment began, else `base_offset`."""

    @property
    def aborted(self) -> AbortedIndex:
        """The aborted transactions whose markers are in this segment."""

    def append(self, batches: Sequence[StoredBatch]) -> None:
        """Append all batches or none. Raises StorageError."""

    def truncate(self, offset: int) -> None:
        """Remove every batch from `offset` on, at which a batch must begin. Raises StorageError."""

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

        Aborted transactions are added to the index of `segment`; None if it has them already.
        """

    def stable_offset(self, offset: int) -> int:
        """Return the first offset of the earliest open transaction, else `offset`."""


class LogStorage(Protocol):
    """The storage of one partition's segments."""

    def load(self, state: LogState) -> LoadedLog:
        """Load the log and bring `state` up to its end. Raises StorageError."""

    def check_room(self) -> None:
        """Raise StorageError if clients must not store any more."""

    def new_segment(self, base_offset: int, stable_offset: int) -> Segment:
        """Return a new segment to append to; the one before is complete."""

    def new_cleaned_segment(self, base_offset: int, stable_offset: int) -> Segment:
        """Return a segment for the output of compaction; not part of the log until `replace`."""

    def replace(self, originals: Sequence[Segment], cleaned: Segment) -> None:
        """Replace `originals` by `cleaned` atomically. Raises StorageError."""

    def discard(self, segments: Sequence[Segment]) -> None:
        """Delete segments that are no longer part of the log."""

    def truncated(self, active: Segment) -> None:
        """Note that the log was truncated and now ends with `active`; later segments were discarded."""

    def start_moved(self, log_start_offset: int) -> None:
        """Store the new start of the log; called before segments below it are discarded."""

    def appended(self, active: Segment, flushed: Callable[[int], None]) -> None:
        """Note an append to `active`; `flushed` is called with the offset up to which appends may be acknowledged."""

    def destroy(self, segments: Sequence[Segment]) -> None:
        """Delete the log; `segments` are all of its segments."""

    def close(self, active: Segment) -> None:
        """Persist everything for the next start."""
