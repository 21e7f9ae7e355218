"""The numbers in records of a batch, and the errors of malformed records."""

from __future__ import annotations

from typing import Final

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
