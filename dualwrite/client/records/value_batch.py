"""The records of a batch: encoded one by one by the library's builder, or large values all at once when it is sent.

Until its batch is sent, a large value is a reference to the caller's bytes: nothing is copied for it, and memory is
needed for the batches in flight only, so that it is used again and again instead of being fetched from the system.
Encoding looks up the few varints around each value and joins everything once, and the processor computes the checksum.
From about 400 bytes on, that takes a half of the time of aiokafka's compiled builder, whose checksum is slow; for small
values the compiled builder is faster.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

from dualwrite.client.records.batch_buffers import joined
from dualwrite.client.records.batches import (
    BUILDER_IS_COMPILED,
    HEADER_BYTES,
    BatchRecords,
    Header,
    LibraryBuilder,
    batch_header,
    checksummed,
)
from dualwrite.client.varints import varint

_NO_HEADERS: Final = b"\0"
_NO_ATTRIBUTES: Final = b"\0"
_NO_KEY: Final = b"\x01"
_LEAST_RECORD_BYTES: Final = 7
_PARTS: Final = 5
_LENGTHS_KEPT: Final = 16_384
_LARGE_VALUE_BYTES: Final = 400 if BUILDER_IS_COMPILED else 0
_FEW: Final = 8
"""Up to this number of values the library's builder takes less time."""
_MOST_RUNS: Final = 32
"""With more timestamps than this in a batch, the library's builder takes less time."""
_OFFSET_STEPS: Final = (2**6, 2**13, 2**20, 2**27, 2**31)
"""The offset deltas from which on a varint takes one more byte."""


class _Kept(dict[int, Any]):
    """A function's results by length of a value. Read for each record, so it is a dictionary and no cache."""

    def __init__(self, made: Callable[[int], Any]) -> None:
        super().__init__()
        self._made = made

    def __missing__(self, length: int) -> Any:
        if len(self) >= _LENGTHS_KEPT:
            self.clear()
        made = self[length] = self._made(length)
        return made


class _Lengths(NamedTuple):
    """Lookups by length of the value, for records whose time and offset deltas take together as many bytes."""

    sizes: _Kept
    """Bytes of the record."""
    starts: _Kept
    """The end of the previous record, and this record's length and attributes."""


_value_lengths: Final = _Kept(lambda length: _NO_KEY + varint(length))
"""By length of the value: the bytes between the offset delta and the value."""

_offset_deltas: list[bytes] = []


@cache
def _lengths(delta_bytes: int) -> _Lengths:
    def body(length: int) -> int:
        around = len(_NO_ATTRIBUTES) + delta_bytes + len(_NO_KEY) + len(varint(length)) + len(_NO_HEADERS)
        return around + length

    return _Lengths(
        _Kept(lambda length: len(varint(body(length))) + body(length)),
        _Kept(lambda length: _NO_HEADERS + varint(body(length)) + _NO_ATTRIBUTES),
    )


def _known_offset_deltas(first: int, end: int) -> list[bytes]:
    global _offset_deltas
    known = _offset_deltas
    if len(known) < end:
        known = _offset_deltas = [*known, *map(varint, range(len(known), end))]
    return known[first:end]


class _Run(NamedTuple):
    """Consecutive records whose time deltas are equal and whose offset deltas take as many bytes."""

    first: int
    timestamp_ms: int
    time_delta: bytes
    delta_bytes: int

    def encoded(self, values: Sequence[bytes]) -> list[bytes]:
        """Return the pieces of these records; the first is preceded by the end of another record."""
        lengths = list(map(len, values))
        parts = [self.time_delta] * (_PARTS * len(values))
        parts[0::_PARTS] = list(map(_lengths(self.delta_bytes).starts.__getitem__, lengths))
        parts[2::_PARTS] = _known_offset_deltas(self.first, self.first + len(values))
        parts[3::_PARTS] = list(map(_value_lengths.__getitem__, lengths))
        parts[4::_PARTS] = values
        return parts


class ValueBatch:
    """`BatchRecords` that hold values until they are built.

    At the first record that has more than a value, all records move to the library's builder.
    """

    __slots__ = (
        "_batch_size",
        "_builder",
        "_identity",
        "_run_end",
        "_runs",
        "_size",
        "_sizes",
        "_timestamp_ms",
        "_transactional",
        "_values",
    )

    def __init__(self, *, transactional: bool, batch_size: int) -> None:
        self._transactional = transactional
        self._batch_size = batch_size
        self._builder: LibraryBuilder | None = None
        self._identity = (-1, -1, -1)
        self._size = HEADER_BYTES
        self._values: list[bytes] = []
        self._runs: list[_Run] = []
        self._timestamp_ms: int | None = None
        """Timestamp of the last run; None if there is none: the records are in the builder, or there are none yet."""
        self._run_end = 0
        self._sizes: _Kept = _value_lengths  # replaced with the first run

    def append(
        self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: list[Header], /
    ) -> object | None:
        """Append a record; return None if the batch has no room for it."""
        if timestamp != self._timestamp_ms or offset == self._run_end or key is not None or value is None or headers:
            return self._append_other(offset, timestamp, key, value, headers)
        size = self._size + self._sizes[len(value)]
        if size >= self._batch_size and offset:  # the builder stops one byte early too, and has to take all of them
            return None
        self._size = size
        self._values.append(value)
        return self

    def _append_other(
        self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: list[Header]
    ) -> object | None:
        if self._builder is None:
            is_value = key is None and value is not None and not headers
            if is_value and self._begin_run(offset, timestamp):
                return self.append(offset, timestamp, key, value, headers)
            self._builder = self._moved_to_builder()
        return self._builder.append(offset, timestamp, key, value, headers)

    def append_values(self, offset: int, timestamp: int, values: Sequence[bytes], start: int, /) -> int:
        """Append values from the index `start` on while there is room; return how many were appended."""
        at = start
        while at < len(values):
            if self.append(offset + at - start, timestamp, None, values[at], []) is None:
                break
            at += 1
            if self._builder is None:
                at += self._extend_run(values, at)
        return at - start

    def _extend_run(self, values: Sequence[bytes], start: int) -> int:
        """Append about as many values as there is room for, of this run; return their number."""
        least = len(values[start - 1]) + _LEAST_RECORD_BYTES
        most = min((self._batch_size - self._size) // least + 1, self._run_end - len(self._values))
        some = values[start : start + most]
        sizes = list(accumulate(map(self._sizes.__getitem__, map(len, some)), initial=self._size))
        fit = max(0, bisect_left(sizes, self._batch_size) - 1)  # a first record may be larger than a batch
        if fit:
            self._values += some[:fit]
            self._size = sizes[fit]
        return fit

    def _begin_run(self, offset: int, timestamp: int) -> bool:
        """Begin to hold values with this timestamp; return False if the builder would take less time."""
        if len(self._runs) == _MOST_RUNS:
            return False
        first_ms = self._runs[0].timestamp_ms if self._runs else timestamp
        step = next(place for place, step in enumerate(_OFFSET_STEPS) if offset < step)
        time_delta = varint(timestamp - first_ms)
        run = _Run(offset, timestamp, time_delta, len(time_delta) + step + 1)
        self._runs.append(run)
        self._timestamp_ms = timestamp
        self._run_end = _OFFSET_STEPS[step]
        self._sizes = _lengths(run.delta_bytes).sizes
        return True

    def _moved_to_builder(self) -> LibraryBuilder:
        builder = LibraryBuilder(transactional=self._transactional, batch_size=self._batch_size)
        for run, values in self._runs_and_values():
            for offset, value in enumerate(values, run.first):
                builder.append(offset, run.timestamp_ms, None, value, [])
        self._values = []
        self._timestamp_ms = None
        return builder

    def _runs_and_values(self) -> list[tuple[_Run, list[bytes]]]:
        ends = [*(run.first for run in self._runs), len(self._values)][1:]
        parts = ((run, self._values[run.first : end]) for run, end in zip(self._runs, ends, strict=True))
        return [(run, values) for run, values in parts if values]

    def size(self) -> int:
        """Return the number of bytes before compression."""
        return self._size if self._builder is None else self._builder.size()

    def set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int, /) -> None:
        """Set the producer id, epoch and sequence that `build` writes to the header."""
        self._identity = producer_id, producer_epoch, base_sequence

    def build(self) -> bytearray | memoryview:
        """Return the batch with its checksum."""
        builder = self._builder
        if builder is None and len(self._values) < _FEW:
            builder = self._moved_to_builder()
        if builder is not None:
            builder.set_producer_state(*self._identity)
            return builder.build()
        runs = self._runs_and_values()
        parts = [part for run, values in runs for part in run.encoded(values)]
        header = batch_header(
            self._size,
            transactional=self._transactional,
            record_count=len(self._values),
            first_timestamp_ms=runs[0][0].timestamp_ms,
            max_timestamp_ms=max(run.timestamp_ms for run, _ in runs),
            identity=self._identity,
        )
        parts[0] = header + parts[0][len(_NO_HEADERS) :]
        parts.append(_NO_HEADERS)
        self._values = []  # futures may keep this batch for long
        return checksummed(joined(parts))


def records_factory(
    *, transactional: bool, batch_size: int
) -> Callable[[bytes | None, bytes | None, list[Header]], BatchRecords]:
    """Return a function that returns empty `BatchRecords` for a batch that begins with this key, value and headers."""

    def new(key: bytes | None, value: bytes | None, headers: list[Header]) -> BatchRecords:
        if key is None and value is not None and not headers and len(value) >= _LARGE_VALUE_BYTES:
            return ValueBatch(transactional=transactional, batch_size=batch_size)
        return LibraryBuilder(transactional=transactional, batch_size=batch_size)

    return new
