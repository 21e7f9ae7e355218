"""Records of equal shape, checked together.

If the following records have the same sizes as one record, each byte with a prescribed value is a column. A slice with
a step compares the column in all records at once.
"""

from __future__ import annotations

from typing import Final

from dualwrite.broker_emulator.log.record_numbers import (
    CONTINUES,
    ENDS,
    INT_BYTES,
    LONG_BYTES,
    read_varint,
    skip_varint,
)

FEW: Final = 8
"""With fewer records, columns are not worth the effort."""
_KEY_AND_VALUE: Final = (0, 1)
ONE_BYTE: Final = 64
TWO_BYTES: Final = 8192
"""The first offsets that take more than one byte, and more than two."""
_LOW_BYTES: Final = bytes(
    offset << 1 if offset < ONE_BYTE else offset << 1 & 0x7F | 0x80 for offset in range(TWO_BYTES)
)
_HIGH_BYTES: Final = bytes(offset >> 6 for offset in range(TWO_BYTES))


def count_alike(data: bytes, begin: int, end: int, at_most: int, first_offset: int | None) -> int:
    """Return how many of the following records have the shape of the checked record from `begin` to `end`.

    These are then valid, too: only their contents, timestamps and offsets differ. With `first_offset`, their offsets
    must count up from it.
    """
    stride = end - begin
    alike = min(at_most, (len(data) - end) // stride)
    if alike < FEW or data[end - 1]:  # records with headers are walked
        return 0
    columns, offset_at, offset_size = _columns(data, begin, end)
    for at, allowed in columns:
        column = data[end + at - begin : end + alike * stride : stride]
        alike = len(column) - len(column.lstrip(allowed))
        if alike < FEW:
            return 0
    if first_offset is None:
        return alike
    return count_in_order(data[end + offset_at - begin : end + alike * stride], stride, first_offset, offset_size)


def count_in_order(data: bytes, stride: int, first_offset: int, size: int) -> int:
    """Return how many offsets count up from `first_offset`; 0 if some of that size do not: a walk finds them."""
    if size > 2:
        return 0
    low, high = data[::stride], data[1::stride]
    least, most = (0, ONE_BYTE) if size == 1 else (ONE_BYTE, TWO_BYTES)
    alike = min(len(low), most - first_offset)
    if first_offset < least or alike < FEW:
        return 0
    expected = slice(first_offset, first_offset + alike)
    if low[:alike] != _LOW_BYTES[expected] or (size == 2 and high[:alike] != _HIGH_BYTES[expected]):
        return 0
    return alike


def _columns(data: bytes, begin: int, end: int) -> tuple[list[tuple[int, bytes]], int, int]:
    """Return the bytes that determine the shape of a record, and the position and the size of its offset.

    Each byte comes with its place, and with the bytes allowed there in a record of the same shape.
    """
    columns: list[tuple[int, bytes]] = []

    def add_equal(start: int, stop: int) -> None:
        columns.extend((at, data[at : at + 1]) for at in range(start, stop))

    def add_number(start: int, stop: int) -> None:
        columns.extend((at, CONTINUES) for at in range(start, stop - 1))
        columns.append((stop - 1, ENDS))

    _, position = read_varint(data, begin)
    add_equal(begin, position)
    offset_at = skip_varint(data, position + 1, LONG_BYTES)
    add_number(position + 1, offset_at)
    position = skip_varint(data, offset_at, INT_BYTES)
    add_number(offset_at, position)
    offset_size = position - offset_at
    for _ in _KEY_AND_VALUE:
        size, after = read_varint(data, position)
        add_equal(position, after)
        position = after + max(size, 0)
    columns.append((end - 1, b"\0"))
    return columns, offset_at, offset_size
