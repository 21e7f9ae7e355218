"""A walk over the encoded records of a batch, without decoding them: are they what Kafka would accept?

It is on the path of every batch that is produced, so records of equal shape are checked together: where the sizes of
one record are those of the records behind it, each of its bytes that has to be a certain one is a column, which a
slice with a step compares for all of them at once.
"""

from __future__ import annotations

from typing import Final

_INT_BYTES: Final = 5
_LONG_BYTES: Final = 10
_FEW: Final = 8
"""Records fewer than these are not worth a look for columns."""
_KEY_AND_VALUE: Final = (0, 1)
_ENDS: Final = bytes(range(0x80))
_CONTINUES: Final = bytes(range(0x80, 0x100))
_ONE_BYTE: Final = 64
_TWO_BYTES: Final = 8192
"""The first offsets that take more than one and two bytes."""
_LOW_BYTES: Final = bytes(
    offset << 1 if offset < _ONE_BYTE else offset << 1 & 0x7F | 0x80 for offset in range(_TWO_BYTES)
)
_HIGH_BYTES: Final = bytes(offset >> 6 for offset in range(_TWO_BYTES))


class RecordFormatError(ValueError):
    """The bytes are not as many records as they should be."""


class EndlessLengthError(RecordFormatError):
    """The length of a record has more than five bytes."""


class OffsetOrderError(RecordFormatError):
    """The offsets of the records do not count up."""


def check_records(body: bytes | memoryview, count: int, *, in_order: bool = False) -> None:
    """Check that `body` is exactly `count` records, whose offsets count up if they are to be `in_order`.

    Raises RecordFormatError.
    """
    data = body if isinstance(body, bytes) else bytes(body)
    position = checked = 0
    alone_until = 0
    try:
        while checked < count:
            begin = position
            position = _check_record(data, begin)
            if in_order:
                _check_offset(data, begin, checked)
            checked += 1
            if checked < alone_until or count - checked < _FEW:
                continue
            alike = _count_alike(data, begin, position, count - checked, checked if in_order else None)
            if alike < _FEW:  # records of many sizes: look more rarely
                alone_until = checked + 8 * _FEW
            checked += alike
            position += alike * (position - begin)
    except IndexError:
        raise RecordFormatError(f"the batch ends within record {checked} of {count}") from None
    if position != len(data):
        raise RecordFormatError(f"{len(data) - position} bytes follow the {count} records of the batch")


def _check_record(data: bytes, position: int) -> int:
    """Check the record at `position` and return its end. Raises IndexError where the bytes end.

    Numbers of one byte, which most of them are, cost no call.
    """
    length = data[position]
    if length < 0x80 and not length & 1:
        length >>= 1
        position += 1
    else:
        if min(data[position : position + _INT_BYTES]) >= 0x80 and len(data) - position >= _INT_BYTES:
            raise EndlessLengthError("the length of a record has more than five bytes")
        length, position = read_varint(data, position)
    end = position + length
    if length < 0 or end > len(data):
        raise RecordFormatError(f"a record claims {length} bytes, {len(data) - position} are left")
    position += 2  # behind the attributes, and the first byte of the timestamp
    if data[position - 1] >= 0x80:
        position = _skip_varint(data, position - 1, _LONG_BYTES)
    position += 1
    if data[position - 1] >= 0x80:  # the offset
        position = _skip_varint(data, position - 1, _INT_BYTES)
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
    offset, _ = read_varint(data, _skip_varint(data, position + 1, _LONG_BYTES))
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


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number of at most 32 bits at `position`, and the position after it. Raises RecordFormatError."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    if data[position + 1] < 0x80:
        unsigned = byte & 0x7F | data[position + 1] << 7
        return (unsigned >> 1) ^ -(unsigned & 1), position + 2
    end = _skip_varint(data, position, _INT_BYTES)
    unsigned = 0
    for byte in reversed(data[position:end]):
        unsigned = unsigned << 7 | byte & 0x7F
    unsigned &= 0xFFFFFFFF
    return (unsigned >> 1) ^ -(unsigned & 1), end


def _skip_varint(data: bytes, position: int, longest: int) -> int:
    for end in range(position, position + longest):
        if data[end] < 0x80:
            return end + 1
    raise RecordFormatError(f"a number has more than {longest} bytes")


def _count_alike(data: bytes, begin: int, end: int, at_most: int, first_offset: int | None) -> int:
    """Return how many of the following records have the shape of the one from `begin` to `end`, which was checked.

    They are then as right as it is: only their contents, timestamps and offsets are others. With `first_offset`, their
    offsets are those from there on.
    """
    stride = end - begin
    alike = min(at_most, (len(data) - end) // stride)
    if alike < _FEW or data[end - 1]:  # records with headers are walked
        return 0
    columns, offset_at, offset_size = _columns(data, begin, end)
    for at, allowed in columns:
        column = data[end + at - begin : end + alike * stride : stride]
        alike = len(column) - len(column.lstrip(allowed))
        if alike < _FEW:
            return 0
    if first_offset is None:
        return alike
    return _count_in_order(data[end + offset_at - begin : end + alike * stride], stride, first_offset, offset_size)


def _count_in_order(data: bytes, stride: int, first_offset: int, size: int) -> int:
    """Return how many offsets count up from `first_offset`; 0 if not all of that size do, which is then found out."""
    if size > 2:
        return 0
    low, high = data[::stride], data[1::stride]
    least, most = (0, _ONE_BYTE) if size == 1 else (_ONE_BYTE, _TWO_BYTES)
    alike = min(len(low), most - first_offset)
    if first_offset < least or alike < _FEW:
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
        columns.extend((at, _CONTINUES) for at in range(start, stop - 1))
        columns.append((stop - 1, _ENDS))

    _, position = read_varint(data, begin)
    add_equal(begin, position)
    offset_at = _skip_varint(data, position + 1, _LONG_BYTES)
    add_number(position + 1, offset_at)
    position = _skip_varint(data, offset_at, _INT_BYTES)
    add_number(offset_at, position)
    offset_size = position - offset_at
    for _ in _KEY_AND_VALUE:
        size, after = read_varint(data, position)
        add_equal(position, after)
        position = after + max(size, 0)
    columns.append((end - 1, b"\0"))
    return columns, offset_at, offset_size
