"""The ports `Cluster`, with which the driver queries Kafka, and `Records`, with which tasks read from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, Protocol, TypeVar

from spark_sink.reading.offsets import OffsetRange, Offsets, Partition
from spark_sink.reading.rows import Chunk


class OffsetOutOfRangeError(Exception):
    """The broker no longer has the offset. A client raises it; the source decides how to proceed."""


_Response = TypeVar("_Response")
_PAUSE_S: Final = 0.2


def retried(call: Callable[[], _Response], is_transient: Callable[[Exception], bool], timeout_s: float) -> _Response:
    """Call until it succeeds, while its errors are transient, as when a broker restarts. Raises the last error."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except Exception as error:
            if not is_transient(error) or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


class Cluster(Protocol):
    """A cluster as the driver queries it. Raises SourceReadError if it does not respond."""

    def partitions(self, topics: Collection[str] | None) -> Mapping[str, Collection[int]]:
        """Return the partitions of these topics (None: of all but internal ones), without topics that do not exist."""

    def beginnings(self, partitions: Collection[Partition]) -> Offsets:
        """Return the first offset that still exists."""

    def ends(self, partitions: Collection[Partition]) -> Offsets:
        """Return the end for reading: the last stable offset with read_committed, else the high watermark."""

    def high_watermarks(self, partitions: Collection[Partition]) -> Offsets:
        """Return the end for reading with read_uncommitted."""

    def at_time(self, partitions: Collection[Partition], timestamp_ms: int) -> Mapping[Partition, int | None]:
        """Return the first offset with this or a later timestamp; None if there is none."""

    def close(self) -> None:
        """Close the connections. Never raises."""


class Records(Protocol):
    """A consumer for tasks, which read one partition after the other."""

    def read(self, wanted: OffsetRange, *, headers: bool, patience_ms: int) -> Iterator[Chunk]:
        """Yield all records of the range; skip markers, aborted records, and offsets that compaction has removed.

        Raises OffsetOutOfRangeError, and SourceReadError if nothing was received for `patience_ms`.
        """

    def close(self) -> None:
        """Close the connections. Never raises."""
