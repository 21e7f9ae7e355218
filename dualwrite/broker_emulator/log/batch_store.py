"""The stored batches of one partition, in memory, found by offset, by size and by timestamp."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class BatchStore:
    """An append-only sequence of batches with consecutive offsets."""

    __slots__ = ("_batches", "_ends", "_max_timestamps", "_next_offsets")

    def __init__(self) -> None:
        self._batches: list[bytes] = []
        self._next_offsets: list[int] = []  # the offset behind each batch
        self._ends: list[int] = []  # bytes up to the end of each batch
        self._max_timestamps: list[int] = []  # largest timestamp up to each batch, so that it never falls

    def append(self, batch: bytes, next_offset: int, max_timestamp: int) -> None:
        """Store a batch behind the last one; `next_offset` is the one behind its last record."""
        if self._batches:
            self._ends.append(self._ends[-1] + len(batch))
            self._max_timestamps.append(max(self._max_timestamps[-1], max_timestamp))
        else:
            self._ends.append(len(batch))
            self._max_timestamps.append(max_timestamp)
        self._batches.append(batch)
        self._next_offsets.append(next_offset)

    def read(self, offset: int, limit_offset: int, max_bytes: int, at_least_one: bool) -> tuple[bytes, int]:
        """Whole batches from the one that holds `offset`, all below `limit_offset` and within `max_bytes`.

        Gives their bytes and the offset behind them (`offset` where there are none).
        """
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
        """Every batch from the one that holds `offset`, those included that are appended meanwhile."""
        index = bisect_right(self._next_offsets, offset)
        while index < len(self._batches):
            yield self._batches[index]
            index += 1

    def first_with_timestamp(self, timestamp_ms: int) -> bytes | None:
        """The first batch that has a record of `timestamp_ms` or later."""
        index = bisect_left(self._max_timestamps, timestamp_ms)
        return self._batches[index] if index < len(self._batches) else None

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of all records, -1 when there is none."""
        return self._max_timestamps[-1] if self._max_timestamps else -1
