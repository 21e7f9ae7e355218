"""Records that differ only in the sizes of their values, checked together.

The end of a record is known only from its own length. So a loop goes from length to length, only keeping the first
bytes of each record. These are then compared in columns: the numbers must have the bytes of an already checked record,
and the value must fill the rest of its record.

This module refuses nothing: other records are walked one by one, and the walk reports the fault.

The numbers in records, and the errors of malformed ones, come first. If the following records have the same sizes
as one record, each byte with a prescribed value is a column: a slice with a step compares it in all records at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import compress, repeat
from typing import Final, NamedTuple

INT_BYTES: Final = 5
"""The most bytes of a number of 32 bits."""
LONG_BYTES: Final = 10
ENDS: Final = bytes(range(0x80))
"""The possible last bytes of a number."""
CONTINUES: Final = bytes(range(0x80, 0x100))
"""The possible bytes of a number before its last one."""


class RecordFormatError(ValueError):
    """The bytes are not the expected number of valid records."""


class EndlessLengthError(RecordFormatError):
    """The length of a record has more than five bytes."""


class OffsetOrderError(RecordFormatError):
    """The offsets of the records do not count up."""


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number of at most 32 bits at `position`, and the position after it. Raises RecordFormatError."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    if data[position + 1] < 0x80:
        unsigned = byte & 0x7F | data[position + 1] << 7
        return (unsigned >> 1) ^ -(unsigned & 1), position + 2
    end = skip_varint(data, position, INT_BYTES)
    unsigned = 0
    for byte in reversed(data[position:end]):
        unsigned = unsigned << 7 | byte & 0x7F
    unsigned &= 0xFFFFFFFF
    return (unsigned >> 1) ^ -(unsigned & 1), end


def skip_varint(data: bytes, position: int, longest: int) -> int:
    """Return the position after a number of at most `longest` bytes. Raises RecordFormatError."""
    for end in range(position, position + longest):
        if data[end] < 0x80:
            return end + 1
    raise RecordFormatError(f"a number has more than {longest} bytes")


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


_LEAST: Final = 16
"""With fewer records, columns are not worth the effort."""
_MOST: Final = 2048
_GROWTH: Final = 16
_LONGEST: Final = 48
"""The furthest position in a record at which the length of its value may be."""
_EVENS: Final = bytes(range(0, 0x100, 2))
"""The first bytes of non-negative numbers."""
_WITHOUT_TOP_BIT: Final = bytes(byte & 0x7F for byte in range(0x100))
_IS_END: Final = bytes(byte < 0x80 for byte in range(0x100))
_IS_CONTINUED: Final = bytes(byte >= 0x80 for byte in range(0x100))
_OFFSETS: Final = {1: ONE_BYTE, 2: TWO_BYTES}
"""The first offset that takes more than this many bytes."""


def _strides() -> list[int]:
    """Return the size of a record by its first two bytes; 0 if its length is negative or takes more bytes."""
    by_both: list[int] = []
    by_one = [0 if low & 1 else (low >> 1) + 1 for low in range(0x80)]
    for high in range(0x100):
        by_both += by_one
        by_two = [0] * 0x80
        if high < 0x80:
            by_two[::2] = range(high * 64 + 2, high * 64 + 66)
        by_both += by_two
    return by_both


_STRIDES: Final = _strides()

Head = tuple[int, int, bytes]
"""The last byte of the previous record, the first two bytes of this one, and the bytes after them."""


class _Form(NamedTuple):
    """The positions of the numbers of a record, counted from the end of its length."""

    offset_at: int
    key_at: int
    key_size: bytes
    """The encoded size of the key."""
    value_at: int
    """The position of the value's length."""

    @property
    def width(self) -> int:
        """The number of bytes from the third byte of a record to the end of the length of its value."""
        return self.value_at + 2


class _Group(NamedTuple):
    """Records of a form whose lengths have the same number of bytes, as have the lengths of their values."""

    lengths: bytes
    """The first two bytes of each record."""
    rest: bytes
    """The following bytes of each record."""
    width: int
    length_bytes: int
    value_bytes: int

    def column(self, at: int) -> bytes:
        """Return the byte of each record at `at` bytes after the end of its length."""
        return self.rest[at + self.length_bytes - 2 :: self.width]


def skip_of_one_form(data: bytes, begin: int, end: int, at_most: int, first_offset: int | None) -> tuple[int, int]:
    """Return how many of the following records have the form of the one from `begin` to `end`, and their end.

    The one at `begin` was checked. With `first_offset`, the offsets of the following records must count up from it.
    """
    form = _form_of(data, begin, end) if at_most >= _LEAST else None
    if form is None:
        return 0, end
    at_most = min(at_most, _room(data, begin, form))
    skipped, size = 0, _LEAST
    while (tried := min(size, at_most - skipped)) >= _LEAST:
        offset = None if first_offset is None else first_offset + skipped
        count, after = _skip(data, end, tried, form, offset)
        if not count:
            break
        skipped, end = skipped + count, after
        size = min(size * _GROWTH, _MOST)
    return skipped, end


def _form_of(data: bytes, begin: int, end: int) -> _Form | None:
    """Return the form of a checked record; None if it has headers or no value, or if its key is long."""
    _, start = read_varint(data, begin)
    offset_at = skip_varint(data, start + 1, LONG_BYTES)
    key_at = skip_varint(data, offset_at, INT_BYTES)
    key_size, key_begin = read_varint(data, key_at)
    value_at = key_begin + max(key_size, 0)
    if value_at - start > _LONGEST:
        return None
    size, value_begin = read_varint(data, value_at)
    if size < 0 or value_begin + size + 1 != end:
        return None
    return _Form(offset_at - start, key_at - start, data[key_at:key_begin], value_at - start)


def _room(data: bytes, begin: int, form: _Form) -> int:
    """Return the number of following records whose offsets have the same number of bytes, if offsets count up."""
    _, start = read_varint(data, begin)
    offset, _ = read_varint(data, start + form.offset_at)
    most = _OFFSETS.get(form.key_at - form.offset_at, _MOST)
    return most - 1 - offset if 0 <= offset < most else _MOST


def _skip(data: bytes, position: int, at_most: int, form: _Form, first_offset: int | None) -> tuple[int, int]:
    """Return how many of `at_most` records at `position` were checked, and their end: almost all of them or none."""
    heads, end = _heads(data, position, at_most, form.width)
    if not heads or end > len(data) or data[end - 1]:
        return 0, position
    ends, first_two, rest = zip(*heads, strict=True)
    if any(ends) or not all(_is_right(group, form) for group in _groups(first_two, rest, form)):
        return 0, position
    if first_offset is not None and not _is_in_order(first_two, rest, form, first_offset):
        return 0, position
    return len(heads), end


def _heads(data: bytes, position: int, at_most: int, width: int) -> tuple[list[Head], int]:
    """Return the first bytes of each record, and the end of the last one, from their lengths alone.

    The last records are omitted if too few bytes follow.
    """
    unpack = struct.Struct(f"<BH{width}s").unpack_from
    heads: list[Head] = []
    add = heads.append
    before = position - 1
    try:
        for _ in repeat(None, at_most):
            head = unpack(data, before)
            add(head)
            before += _STRIDES[head[1]]
    except struct.error:
        pass
    return heads, before + 1


def _groups(first_two: Sequence[int], rest: Sequence[bytes], form: _Form) -> Iterator[_Group]:
    """Divide records by the number of bytes of their lengths, and of the lengths of their values."""
    for lengths, heads, length_bytes in _by_size(first_two, rest, _encoded(first_two)[::2]):
        joined = b"".join(heads)
        value_sizes = joined[form.value_at + length_bytes - 2 :: form.width]
        for of_these, their_heads, value_bytes in _by_size(lengths, heads, value_sizes):
            their_rest = joined if their_heads is heads else b"".join(their_heads)
            yield _Group(_encoded(of_these), their_rest, form.width, length_bytes, value_bytes)


def _by_size(
    first_two: Sequence[int], rest: Sequence[bytes], column: bytes
) -> Iterator[tuple[Sequence[int], Sequence[bytes], int]]:
    """Divide records by whether the number that begins in `column` has one byte, or two or more."""
    if column.isascii():
        yield first_two, rest, 1
    elif not column.translate(None, CONTINUES):
        yield first_two, rest, 2
    else:
        for size, chosen in ((1, column.translate(_IS_END)), (2, column.translate(_IS_CONTINUED))):
            yield tuple(compress(first_two, chosen)), tuple(compress(rest, chosen)), size


def _encoded(first_two: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(first_two)}H", *first_two)


def _is_right(group: _Group, form: _Form) -> bool:
    """Return whether records have this form, and lengths that agree."""
    ends = (form.offset_at - 1, form.key_at - 1)
    if not all(group.column(at).isascii() for at in ends):
        return False
    if any(group.column(at).translate(None, CONTINUES) for at in range(1, form.key_at) if at not in ends):
        return False
    key_size = form.key_size
    if any(group.column(form.key_at + at).strip(key_size[at : at + 1]) for at in range(len(key_size))):
        return False
    return _do_lengths_agree(group, form)


def _do_lengths_agree(group: _Group, form: _Form) -> bool:
    """Return whether each value ends one byte before its record; that byte is the number of headers, 0."""
    low, high = group.lengths[::2], group.lengths[1::2]
    value_low, value_high = group.column(form.value_at), group.column(form.value_at + 1)
    if low.translate(None, _EVENS) or value_low.translate(None, _EVENS):
        return False
    are_short = (group.length_bytes == 1 or high.isascii()) and (group.value_bytes == 1 or value_high.isascii())
    around_value = form.value_at + group.value_bytes + 1
    difference = int.from_bytes((around_value << 1).to_bytes(2, "little") * len(low), "little")
    lengths = _numbers(low, high, group.length_bytes)
    return are_short and lengths == _numbers(value_low, value_high, group.value_bytes) + difference


def _numbers(low: bytes, high: bytes, size: int) -> int:
    """Return numbers of one or two bytes side by side in one number, each in 16 bits, with the sign as lowest bit."""
    lanes = bytearray(2 * len(low))
    lanes[::2] = low.translate(_WITHOUT_TOP_BIT)
    numbers = int.from_bytes(lanes, "little")
    if size == 2:
        lanes[::2] = high
        numbers += int.from_bytes(lanes, "little") << 7
    return numbers


def _is_in_order(first_two: Sequence[int], rest: Sequence[bytes], form: _Form, first_offset: int) -> bool:
    at, size = form.offset_at, form.key_at - form.offset_at
    at_two = slice(at, at + size)
    at_one = slice(at - 1, at - 1 + size)
    offsets = b"".join([head[at_two if two & 0x80 else at_one] for two, head in zip(first_two, rest, strict=True)])
    return count_in_order(offsets, size, first_offset, size) == len(rest)
