"""A segment in a file, in Kafka's layout: `<base offset in 20 digits>.log` contains only record batches.

A sparse index in memory has an entry for every 4 KiB or so. Batches between two entries are found by walking from
header to header, so the cost of a read does not depend on the size of the segment.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from dualwrite.broker_emulator.log.files import OpenFiles
from dualwrite.broker_emulator.log.last_stable_offset import AbortedIndex
from dualwrite.broker_emulator.log.record_batch import CorruptRecordError, split_batches
from dualwrite.broker_emulator.log.segments import NO_TIMESTAMP, StorageError, StoredBatch

INDEX_INTERVAL_BYTES = 4096
_READ_AHEAD_BYTES = 1 << 18

_BOUNDS = struct.Struct(">qi11xi")  # base offset, length, last offset delta: the header fields that a walk needs
_HEADER_BYTES = 61
_LENGTH_ENDS_AT = 12

_INDEX_HEAD = struct.Struct(">4sqqqqqi")  # magic, the numbers of IndexFile, number of entries
_INDEX_MAGIC = b"dwi1"
_CRC = struct.Struct(">I")


def segment_path(folder: Path, base_offset: int) -> Path:
    """Return the path of a segment's file."""
    return folder / f"{base_offset:020d}.log"


class IndexFile(NamedTuple):
    """The contents of `<base offset>.index`, for the first `size_bytes` of its segment."""

    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp: int
    stable_offset: int
    offsets: array[int]
    positions: array[int]
    max_timestamps: array[int]
    aborted: AbortedIndex

    def encode(self) -> bytes:
        """Encode the contents of the file, with a checksum."""
        head = _INDEX_HEAD.pack(
            _INDEX_MAGIC,
            self.base_offset,
            self.next_offset,
            self.size_bytes,
            self.max_timestamp,
            self.stable_offset,
            len(self.offsets),
        )
        body = b"".join(
            struct.pack(f">{len(column)}q", *column) for column in (self.offsets, self.positions, self.max_timestamps)
        )
        data = head + body + self.aborted.encode()
        return data + _CRC.pack(crc32c(data))

    @classmethod
    def decode(cls, data: bytes) -> IndexFile:
        """Decode the output of `encode`. Raises ValueError."""
        if len(data) < _INDEX_HEAD.size + _CRC.size or crc32c(data[: -_CRC.size]) != _CRC.unpack(data[-_CRC.size :])[0]:
            raise ValueError("the checksum does not match")
        magic, *fields, count = _INDEX_HEAD.unpack_from(data)
        if magic != _INDEX_MAGIC:
            raise ValueError(f"magic {magic!r}")
        columns = [
            array("q", struct.unpack_from(f">{count}q", data, _INDEX_HEAD.size + 8 * count * column))
            for column in range(3)
        ]
        aborted = AbortedIndex.decode(data[_INDEX_HEAD.size + 24 * count : -_CRC.size])
        return cls._make((*fields, *columns, aborted))


class DiskSegment:
    """A segment in a file; `DiskLog` writes its index."""

    __slots__ = (
        "_broken",
        "_files",
        "_indexed_to",
        "_max_timestamps",
        "_offsets",
        "_positions",
        "_unproven",
        "aborted",
        "base_offset",
        "max_timestamp",
        "next_offset",
        "path",
        "size_bytes",
        "stable_offset",
    )

    def __init__(self, path: Path, base_offset: int, stable_offset: int, files: OpenFiles) -> None:
        self.path = path
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = 0
        self.max_timestamp = NO_TIMESTAMP
        self.stable_offset = stable_offset
        self.aborted = AbortedIndex()
        self._files = files
        self._broken: str | None = None
        # of each entry: a lower bound of the offsets from its position on, and the largest timestamp before it
        self._offsets = array("q", [base_offset])
        self._positions = array("q", [0])
        self._max_timestamps = array("q", [NO_TIMESTAMP])
        self._indexed_to = 0
        self._unproven = bytearray()  # of each entry of an adopted index: 1 until its batches are read

    @property
    def location(self) -> str:
        return str(self.path)

    def index(self) -> IndexFile:
        """Return the current index of the segment."""
        return IndexFile(
            self.base_offset,
            self.next_offset,
            self.size_bytes,
            self.max_timestamp,
            self.stable_offset,
            self._offsets[:],
            self._positions[:],
            self._max_timestamps[:],
            self.aborted,
        )

    def adopt(self, index: IndexFile) -> None:
        """Restore the segment from its stored index."""
        self.next_offset = index.next_offset
        self.size_bytes = index.size_bytes
        self.max_timestamp = index.max_timestamp
        self.stable_offset = index.stable_offset
        self.aborted = index.aborted
        self._offsets, self._positions, self._max_timestamps = index.offsets, index.positions, index.max_timestamps
        self._indexed_to = self._positions[-1]
        self._unproven = bytearray(b"\1" * len(index.positions))

    def append(self, batches: Sequence[StoredBatch]) -> None:
        if self._broken is not None:
            raise StorageError(self._broken)
        data = batches[0][0] if len(batches) == 1 else b"".join(data for data, _, _ in batches)
        try:
            self._write(data)
        except OSError as error:
            self._undo_failed_write()
            raise StorageError(f"{self.path} cannot be written: {error.strerror}") from error
        for batch, next_offset, max_timestamp in batches:
            self.learn(len(batch), next_offset, max_timestamp)

    def _write(self, data: bytes) -> None:
        file = self._files.get_or_create(self.path)
        written = os.pwrite(file, data, self.size_bytes)
        while written < len(data):
            written += os.pwrite(file, memoryview(data)[written:], self.size_bytes + written)

    def _undo_failed_write(self) -> None:
        """Remove the part of a batch that a failed write may have left."""
        try:
            if self.path.exists():
                os.truncate(self.path, self.size_bytes)
        except OSError as error:
            self._broken = f"{self.path} cannot be written, and a failed write to it could not be undone: {error}"

    def learn(self, size: int, next_offset: int, max_timestamp: int) -> None:
        """Add a batch of `size` bytes to the index; it follows the last known batch in the file."""
        if self.size_bytes - self._indexed_to >= INDEX_INTERVAL_BYTES:
            self._offsets.append(self.next_offset)
            self._positions.append(self.size_bytes)
            self._max_timestamps.append(self.max_timestamp)
            self._indexed_to = self.size_bytes
        self.size_bytes += size
        self.next_offset = next_offset
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp

    def truncate(self, offset: int) -> None:
        """Remove every batch from `offset` on, where a batch must begin. Raises StorageError."""
        position, _, _ = self._find(offset)
        keep = bisect_left(self._positions, position) or 1
        index = self.index()
        self.size_bytes, self.next_offset = self._positions[keep - 1], self._offsets[keep - 1]
        self.max_timestamp = self._max_timestamps[keep - 1]
        self._indexed_to = self.size_bytes
        del self._offsets[keep:], self._positions[keep:], self._max_timestamps[keep:], self._unproven[keep:]
        for data in self._batches_from(self.size_bytes, index.size_bytes):
            [(header, _)] = split_batches(data)
            if header.base_offset >= offset:
                break
            self.learn(len(data), header.last_offset + 1, header.max_timestamp)
        self.aborted = self.aborted.below(offset)
        try:
            os.truncate(self.path, self.size_bytes)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be truncated: {error.strerror}") from error

    # reading

    def _pread(self, size: int, position: int) -> bytes:
        try:
            return os.pread(self._files.get(self.path), size, position)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be read: {error.strerror}") from error

    def _walk(self, position: int) -> Iterator[tuple[int, int, int]]:
        """Yield position, size and next offset of every batch from the one at `position` on."""
        buffer, start = b"", position
        while position < self.size_bytes:
            at = position - start
            if at + _HEADER_BYTES > len(buffer):
                buffer, start, at = self._pread(INDEX_INTERVAL_BYTES + _HEADER_BYTES, position), position, 0
            if len(buffer) < _HEADER_BYTES:
                raise StorageError(f"{self.path} ends at {position + len(buffer)} instead of {self.size_bytes}")
            base_offset, length, last_offset_delta = _BOUNDS.unpack_from(buffer, at)
            size = length + _LENGTH_ENDS_AT
            if size < _HEADER_BYTES or position + size > self.size_bytes:
                raise StorageError(f"{self.path} is damaged at position {position}: a batch of {size} bytes")
            yield position, size, base_offset + last_offset_delta + 1
            position += size

    def _prove(self, entry: int, end: int) -> None:
        """Check batches of an earlier process when they are first read, since a start reads only the index.

        Offsets are not covered by a batch's CRC, but they must lead from each entry of the index to the next.
        """
        while entry < len(self._unproven) and self._positions[entry] < end:
            if self._unproven[entry]:
                self._prove_entry(entry)
                self._unproven[entry] = 0
            entry += 1

    def _prove_entry(self, entry: int) -> None:
        start, offset = self._positions[entry], self._offsets[entry]
        is_last = entry + 1 == len(self._positions)
        end = self.size_bytes if is_last else self._positions[entry + 1]
        end_offset = self.next_offset if is_last else self._offsets[entry + 1]
        try:
            for header, _ in split_batches(self._pread(end - start, start)):
                if header.base_offset < offset or header.last_offset < header.base_offset:
                    raise CorruptRecordError(f"a batch begins at offset {header.base_offset}, after {offset - 1}")
                offset = header.last_offset + 1
        except CorruptRecordError as error:
            raise StorageError(f"{self.path} is damaged after position {start}: {error}") from error
        if offset != end_offset:
            raise StorageError(f"{self.path} is damaged after position {start}: offset {offset}, not {end_offset}")

    def _find(self, offset: int) -> tuple[int, int, int]:
        """Return position, size and next offset of the first batch that ends above `offset`; the end if none does."""
        if offset < self.next_offset:
            entry = max(bisect_right(self._offsets, offset) - 1, 0)
            if self._unproven:
                self._prove(entry, self._positions[entry] + 1)
            for found in self._walk(self._positions[entry]):
                if found[2] > offset:
                    return found
        return self.size_bytes, 0, self.next_offset

    def read(self, offset: int, limit_offset: int, max_bytes: int, at_least_one: bool) -> tuple[bytes, int]:
        start, first_size, next_offset = self._find(offset)
        if not first_size or next_offset > limit_offset or (first_size > max_bytes and not at_least_one):
            return b"", offset
        end, next_offset = self._end(start + first_size, next_offset, limit_offset, start + max_bytes)
        if self._unproven:
            self._prove(bisect_right(self._positions, start) - 1, end)
        data = self._pread(end - start, start)
        if len(data) != end - start:
            raise StorageError(f"{self.path} ends at {start + len(data)} instead of {self.size_bytes}")
        return data, next_offset

    def _end(self, start: int, offset: int, limit_offset: int, limit: int) -> tuple[int, int]:
        """Return the end of the last whole batch below both limits, searching from `start`, and the offset after it."""
        if limit <= start:
            return start, offset
        if limit >= self.size_bytes and limit_offset >= self.next_offset:
            return self.size_bytes, self.next_offset
        entry = min(bisect_right(self._positions, limit), bisect_right(self._offsets, limit_offset)) - 1
        end, end_offset = start, offset
        if entry >= 0 and self._positions[entry] > start:
            end, end_offset = self._positions[entry], self._offsets[entry]
        for position, size, next_offset in self._walk(end):
            if position + size > limit or next_offset > limit_offset:
                break
            end, end_offset = position + size, next_offset
        return end, end_offset

    def iterate(self, offset: int) -> Iterator[bytes]:
        position, _, _ = self._find(offset)
        while position < self.size_bytes:
            for data in self._batches_from(position, self.size_bytes):
                position += len(data)
                yield data

    def _batches_from(self, position: int, end: int) -> Iterator[bytes]:
        """Yield the batches between two positions, with their CRC checked; read in large pieces."""
        while position < end:
            piece = self._pread(min(end - position, _READ_AHEAD_BYTES), position)
            whole = _whole_batches(piece)
            if not whole:
                _, size, _ = next(self._walk(position))
                whole = piece = self._pread(size, position)
            try:
                batches = split_batches(whole)
            except CorruptRecordError as error:
                raise StorageError(f"{self.path} is damaged after position {position}: {error}") from error
            for _, batch in batches:
                yield bytes(batch)
            position += len(whole)

    def with_timestamp(self, timestamp_ms: int, offset: int) -> Iterator[bytes]:
        if self.max_timestamp < timestamp_ms:
            return
        entry = max(bisect_left(self._max_timestamps, timestamp_ms) - 1, 0)
        position, _, _ = self._find(offset)
        for data in self._batches_from(max(position, self._positions[entry]), self.size_bytes):
            [(header, _)] = split_batches(data)
            if header.max_timestamp >= timestamp_ms:
                yield data


def _whole_batches(piece: bytes) -> bytes:
    """Return `piece` without an incomplete batch at its end; all of it if it does not parse as batches."""
    end = 0
    while end + _HEADER_BYTES <= len(piece):
        _, length, _ = _BOUNDS.unpack_from(piece, end)
        size = length + _LENGTH_ENDS_AT
        if size < _HEADER_BYTES:
            return piece
        if end + size > len(piece):
            break
        end += size
    return piece[:end]
