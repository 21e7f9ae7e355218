"""Records of equal shape, checked together.

Where the sizes of one record are those of the records behind it, each of its bytes that has to be a certain one is a
column, which a slice with a step compares for all of them at once.
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
"""Records fewer than these are not worth a look for columns."""
_KEY_AND_VALUE: Final = (0, 1)
ONE_BYTE: Final = 64
TWO_BYTES: Final = 8192
"""The first offsets that take more than one and two bytes."""
_LOW_BYTES: Final = bytes(
    offset << 1 if offset < ONE_BYTE else offset << 1 & 0x7F | 0x80 for offset in range(TWO_BYTES)
)
_HIGH_BYTES: Final = bytes(offset >> 6 for offset in range(TWO_BYTES))


def count_alike(data: bytes, begin: int, end: int, at_most: int, first_offset: int | None) -> int:
    """Return how many of the following records have the shape of the one from `begin` to `end`, which was checked.

    They are then as right as it is: only their contents, timestamps and offsets are others. With `first_offset`, their
    offsets are those from there on.
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
    """Return how many offsets count up from `first_offset`; 0 if not all of that size do, which is then found out."""
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
    """Return the bytes that decide about the shape of a record, and where its offset is, of how many bytes.

    Each byte with its place, and the bytes that may stand there in a record of the same shape.
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
