"""The stored batches of one partition, in memory, found by offset, by size and by timestamp."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class BatchStore:
    """An append-only sequence of batches with consecutive offsets."""

    __slots__ = ("_base_offsets", "_batches", "_ends", "_max_timestamps")

    def __init__(self) -> None:
        self._batches: list[bytes] = []
        self._base_offsets: list[int] = []
        self._ends: list[int] = []  # bytes up to the end of each batch
        self._max_timestamps: list[int] = []  # largest timestamp up to each batch, so that it never falls

    def append(self, batch: bytes, base_offset: int, max_timestamp: int) -> None:
        """Store a batch behind the last one."""
        if self._batches:
            self._ends.append(self._ends[-1] + len(batch))
            self._max_timestamps.append(max(self._max_timestamps[-1], max_timestamp))
        else:
            self._ends.append(len(batch))
            self._max_timestamps.append(max_timestamp)
        self._batches.append(batch)
        self._base_offsets.append(base_offset)

    def read(self, offset: int, limit_offset: int, max_bytes: int, at_least_one: bool) -> tuple[bytes, int | None]:
        """Whole batches from the one that holds `offset`, all below `limit_offset` and within `max_bytes`.

        Gives their bytes and the base offset of the batch behind them, None where they are the last ones.
        """
        start = self._index_of(offset)
        stop = bisect_left(self._base_offsets, limit_offset, start)
        position = self._ends[start - 1] if start else 0
        end = bisect_right(self._ends, position + max_bytes, start, stop)
        if end == start and at_least_one and start < stop:
            end = start + 1
        records = self._batches[start] if end == start + 1 else b"".join(self._batches[start:end])
        return records, self._base_offsets[end] if end < len(self._base_offsets) else None

    def iterate(self, offset: int) -> Iterator[bytes]:
        """Every batch from the one that holds `offset`, those included that are appended meanwhile."""
        index = self._index_of(offset)
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

    def _index_of(self, offset: int) -> int:
        return max(bisect_right(self._base_offsets, offset) - 1, 0)
