"""Scan the end of a segment's file after a crash: distinguish a torn write from damage. Pure.

A batch that was being written when the process died is cut short, or contains zeros or old data in place of bytes that
had not reached the disk; no batch follows it. So an invalid batch at the very end was never acknowledged and is
truncated. An invalid batch followed by an intact one is no torn write but damage: truncating would lose acknowledged
records, and only the owner of the data can decide on a remedy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from crc32c import crc32c

from dualwrite.broker_emulator.log.record_batch import HEADER_BYTES, BatchHeader, CorruptRecordError, parse_header

_MAGIC_AT = 16
_MAGIC = b"\x02"
_CHECKED_FROM = 21
_LENGTH_ENDS_AT = 12
_FIRST_FIELDS = struct.Struct(">qi")  # base offset, length
_CHECKS_PER_BYTE = 4
_LEAST_BUDGET = 1 << 20


class Damage(NamedTuple):
    """The first position without an intact batch."""

    position: int
    problem: str
    intact_after: int | None
    """Position of an intact batch after it; None if everything up to the end is a torn write."""

    def moved_by(self, distance: int) -> Damage:
        """Return the same damage with `distance` added to its positions."""
        intact_after = None if self.intact_after is None else self.intact_after + distance
        return Damage(self.position + distance, self.problem, intact_after)


def scan(
    data: memoryview,
    next_offset: int,
    accept: Callable[[BatchHeader, memoryview], None],
    *,
    may_have_gaps: bool,
    must_search: Callable[[], bool] = lambda: True,
) -> Damage | None:
    """Call `accept` for every intact batch of `data`; return the damage at the first that is not intact or not next.

    `next_offset` is that of the first batch. `may_have_gaps`: compaction may have removed batches. `must_search` is
    called at a batch that is not intact, and returns whether later intact batches would matter.
    """
    position = 0
    while position < len(data):
        try:
            header, batch = _intact_batch(data, position)
        except CorruptRecordError as error:
            after = _find_intact(data, position + 1, next_offset) if must_search() else None
            return Damage(position, str(error), after)
        if header.base_offset < next_offset or (header.base_offset > next_offset and not may_have_gaps):
            return Damage(position, f"offset {header.base_offset} where {next_offset} is next", position)
        accept(header, batch)
        position += header.size_bytes
        next_offset = header.last_offset + 1
    return None


def _intact_batch(data: memoryview, position: int) -> tuple[BatchHeader, memoryview]:
    header = parse_header(data, position)
    size = header.size_bytes
    if size < HEADER_BYTES:
        raise CorruptRecordError(f"a batch of {size} bytes cannot hold its own header")
    batch = data[position : position + size]
    if len(batch) < size:
        raise CorruptRecordError(f"a batch of {size} bytes is cut off after {len(batch)}")
    if crc32c(batch[_CHECKED_FROM:]) != header.crc:
        raise CorruptRecordError("the CRC of a batch does not match its contents")
    if header.last_offset_delta < 0:
        raise CorruptRecordError(f"a batch ends {-header.last_offset_delta} offsets before it begins")
    return header, batch


def _find_intact(data: memoryview, position: int, offset: int) -> int | None:
    """Return the position of the first batch, intact and above `offset`, that begins at `position` or at a later byte.

    A record of the torn batch may contain bytes that look like batches. Batches as clients send them have offset 0, so
    they cannot follow. Bytes crafted to look like very many batches use up the budget; then the first unchecked one is
    taken as intact, because only data known to be torn may be truncated.
    """
    contents = bytes(data[position:])
    budget = _CHECKS_PER_BYTE * len(contents) + _LEAST_BUDGET
    magic_at = contents.find(_MAGIC, _MAGIC_AT)
    while magic_at >= 0:
        start = position + magic_at - _MAGIC_AT
        size = _plausible_size(data, start, offset)
        if size:
            budget -= size
            if budget < 0 or _is_intact(data, start):
                return start
        magic_at = contents.find(_MAGIC, magic_at + 1)
    return None


def _plausible_size(data: memoryview, position: int, offset: int) -> int:
    """Return the size of a possible batch above `offset`; 0 if its first fields rule it out."""
    base_offset, length = _FIRST_FIELDS.unpack_from(data, position)
    size: int = length + _LENGTH_ENDS_AT
    return size if base_offset > offset and HEADER_BYTES <= size <= len(data) - position else 0


def _is_intact(data: memoryview, position: int) -> bool:
    try:
        _intact_batch(data, position)
    except CorruptRecordError:
        return False
    return True
