"""Walk over the encoded records of a batch, without decoding them, and check that Kafka would accept them.

The walk is on the path of every produced batch, so `record_forms.py` checks similar records together. The
rest is walked record by record.
"""

from __future__ import annotations

from typing import Final

from dualwrite.broker_emulator.log.record_forms import (
    FEW,
    INT_BYTES,
    LONG_BYTES,
    EndlessLengthError,
    OffsetOrderError,
    RecordFormatError,
    count_alike,
    read_varint,
    skip_of_one_form,
    skip_varint,
)

__all__ = ["EndlessLengthError", "OffsetOrderError", "RecordFormatError", "check_records", "check_sizes"]

_KEY_AND_VALUE: Final = (0, 1)
_REST: Final = 64
"""Records to walk before the next search for similar records; doubled after each search in vain."""
_LONGEST_REST: Final = 1024


def check_records(body: bytes | memoryview, count: int, *, start: int = 0, in_order: bool = False) -> None:
    """Check that `body` is, from `start`, exactly `count` records, whose offsets count up if they are `in_order`.

    Raises RecordFormatError.
    """
    data = body if isinstance(body, bytes) else bytes(body)
    position = start
    checked = alone_until = 0
    rest = _REST // 2
    try:
        while checked < count:
            begin = position
            position = _check_record(data, begin)
            if in_order:
                _check_offset(data, begin, checked)
            checked += 1
            if checked < alone_until or count - checked < FEW:
                continue
            first_offset = checked if in_order else None
            alike, position = _skip_alike(data, begin, position, count - checked, first_offset)
            rest = _REST if alike else min(rest * 2, _LONGEST_REST)
            checked += alike
            alone_until = checked if alike else checked + rest
    except IndexError:
        raise RecordFormatError(f"the batch ends within record {checked} of {count}") from None
    if position != len(data):
        raise RecordFormatError(f"{len(data) - position} bytes follow the {count} records of the batch")


def check_sizes(body: bytes, count: int, most: int) -> None:
    """Check that none of the records, all well-formed, has more than `most` bytes. Raises RecordFormatError."""
    position = 0
    for number in range(count if len(body) > most else 0):
        size, position = read_varint(body, position)
        if size > most:
            raise RecordFormatError(f"the size {size} of record {number} exceeds max.decompressed.message.bytes={most}")
        position += size


def _skip_alike(data: bytes, begin: int, end: int, at_most: int, first_offset: int | None) -> tuple[int, int]:
    """Return how many of the following records are like the one from `begin` to `end`, and their end."""
    alike = count_alike(data, begin, end, at_most, first_offset)
    if alike >= FEW:
        return alike, end + alike * (end - begin)
    return skip_of_one_form(data, begin, end, at_most, first_offset)


def _check_record(data: bytes, position: int) -> int:
    """Check the record at `position` and return its end. Raises IndexError at the end of the bytes.

    Numbers of one byte, the usual ones, cost no call.
    """
    length = data[position]
    if length < 0x80 and not length & 1:
        length >>= 1
        position += 1
    else:
        if min(data[position : position + INT_BYTES]) >= 0x80 and len(data) - position >= INT_BYTES:
            raise EndlessLengthError("the length of a record has more than five bytes")
        length, position = read_varint(data, position)
    end = position + length
    if length < 0 or end > len(data):
        raise RecordFormatError(f"a record claims {length} bytes, {len(data) - position} are left")
    position += 2  # after the attributes, and the first byte of the timestamp
    if data[position - 1] >= 0x80:
        position = skip_varint(data, position - 1, LONG_BYTES)
    position += 1
    if data[position - 1] >= 0x80:  # the offset
        position = skip_varint(data, position - 1, INT_BYTES)
    for _ in _KEY_AND_VALUE:
        size = data[position]
        position += 1
        if size >= 0x80:
            size, position = read_varint(data, position - 1)
            if size > 0:
                position += size
        elif not size & 1:
            position += size >> 1
    headers = data[position]
    position += 1
    if headers:
        headers, position = read_varint(data, position - 1)
        position = _skip_headers(data, position, headers)
    if position != end:
        raise RecordFormatError(f"a record of {length} bytes ends {position - end} bytes off")
    return end


def _check_offset(data: bytes, position: int, expected: int) -> None:
    _, position = read_varint(data, position)
    offset, _ = read_varint(data, skip_varint(data, position + 1, LONG_BYTES))
    if offset != expected:
        raise OffsetOrderError(f"record {expected} of a batch has the offset {offset}")


def _skip_headers(data: bytes, position: int, count: int) -> int:
    if not 0 <= count <= len(data) - position:
        raise RecordFormatError(f"a record claims {count} headers")
    for _ in range(count):
        size, position = read_varint(data, position)
        if size < 0:
            raise RecordFormatError("a header has no name")
        position = _skip_bytes(data, position + size)
    return position


def _skip_bytes(data: bytes, position: int) -> int:
    size = data[position]
    if size < 0x80:
        return position + 1 if size & 1 else position + 1 + (size >> 1)
    size, position = read_varint(data, position)
    return position + max(size, 0)
