"""What a partition's log is made of: segments, and the storage that they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from dualwrite.broker_emulator.log.aborted_index import AbortedIndex
from dualwrite.broker_emulator.log.record_batch import BatchHeader

NO_TIMESTAMP = -1


class StorageError(Exception):
    """Something cannot be stored or read back; the message is a sentence for whoever runs the broker."""


StoredBatch: TypeAlias = tuple[bytes, int, int]
"""A batch as it is kept, the offset behind its last record, and its largest timestamp.

A plain tuple, because every request that writes makes some, and one with names takes three times as long to make.
"""


class Segment(Protocol):
    """A stretch of a log: batches in the order of their offsets. Only the newest one is appended to."""

    base_offset: int
    """First offset of the stretch."""
    next_offset: int
    """Offset behind the stretch."""
    size_bytes: int
    max_timestamp: int
    """Largest timestamp of its records in milliseconds since the Unix epoch; -1 when there is none."""
    stable_offset: int
    """First offset of the earliest transaction open when the segment began, else `base_offset`."""

    @property
    def aborted(self) -> AbortedIndex:
        """The aborted transactions whose markers are here."""

    def append(self, batches: Sequence[StoredBatch]) -> None:
        """Append all batches or none. Raises StorageError."""

    def truncate(self, offset: int) -> None:
        """Cut off everything from `offset` on, which is where a batch begins. Raises StorageError."""

    def read(self, offset: int, limit_offset: int, max_bytes: int, at_least_one: bool) -> tuple[bytes, int]:
        """Whole batches from the one that holds `offset`, all below `limit_offset` and within `max_bytes`.

        Gives their bytes and the offset behind them (`offset` where there are none). Raises StorageError.
        """

    def iterate(self, offset: int) -> Iterator[bytes]:
        """Every batch from the one that holds `offset`, those included that are appended meanwhile."""

    def with_timestamp(self, timestamp_ms: int, offset: int) -> Iterator[bytes]:
        """Every batch, from the one that holds `offset` on, that has a record of `timestamp_ms` or later."""


class LoadedLog(NamedTuple):
    """What a storage kept of a partition."""

    segments: list[Segment]
    """Oldest first, without gaps between them, and never none."""
    log_start_offset: int


class LogState(Protocol):
    """What a log knows besides its batches, and a storage has to bring back."""

    def encode(self) -> bytes:
        """The state as it is now."""

    def restore(self, encoded: bytes) -> None:
        """Take over what `encode` gave. Raises StorageError."""

    def replay(self, header: BatchHeader, batch: bytes | memoryview, segment: Segment | None) -> None:
        """Take over what a batch says, which is the next after everything taken over before.

        `segment` gets what is to be known of aborted transactions; None where it knows already.
        """

    def stable_offset(self, offset: int) -> int:
        """First offset of the earliest open transaction, else `offset`."""


class LogStorage(Protocol):
    """Where one partition keeps its segments."""

    def load(self, state: LogState) -> LoadedLog:
        """What was kept, with `state` brought up to its end. Raises StorageError."""

    def check_room(self) -> None:
        """Raises StorageError where clients may store no more."""

    def new_segment(self, base_offset: int, stable_offset: int) -> Segment:
        """The next segment to append to; the one before is complete."""

    def new_cleaned_segment(self, base_offset: int, stable_offset: int) -> Segment:
        """A segment for what compaction keeps; not part of the log until `replace`."""

    def replace(self, originals: Sequence[Segment], cleaned: Segment) -> None:
        """Put `cleaned` in the place of `originals`, at once or not at all. Raises StorageError."""

    def discard(self, segments: Sequence[Segment]) -> None:
        """Forget segments that are not part of the log any more."""

    def truncated(self, active: Segment) -> None:
        """The log ends with `active` as it is now; what came after was cut off and discarded."""

    def start_moved(self, log_start_offset: int) -> None:
        """Keep the new start of the log; called before segments below it are discarded."""

    def appended(self, active: Segment, flushed: Callable[[int], None]) -> None:
        """Something was appended to `active`. `flushed` is called with the offset that may be acknowledged."""

    def destroy(self, segments: Sequence[Segment]) -> None:
        """Forget the log, of which these are all segments."""

    def close(self, active: Segment) -> None:
        """Keep everything for the next start."""
