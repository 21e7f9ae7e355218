"""Fields of the coordinators' records: fixed-size ones, and those of flexible messages (KIP-482)."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")

SINGLE_BYTES = [bytes([value]) for value in range(256)]


def int8(value: int) -> bytes:
    return _INT8.pack(value)


def int16(value: int) -> bytes:
    return _INT16.pack(value)


def int32(value: int) -> bytes:
    return _INT32.pack(value)


def int64(value: int) -> bytes:
    return _INT64.pack(value)


def key_string(value: str) -> bytes:
    """Encode a string of a key: keys are not flexible."""
    data = value.encode()
    return _INT16.pack(len(data)) + data


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint (KIP-482)."""
    return SINGLE_BYTES[value] if value < 0x80 else SINGLE_BYTES[value & 0x7F | 0x80] + uvarint(value >> 7)


def string(value: str | None) -> bytes:
    return blob(None if value is None else value.encode())


def blob(value: bytes | None) -> bytes:
    return b"\0" if value is None else uvarint(len(value) + 1) + value


def array(items: Iterable[bytes]) -> bytes:
    parts = list(items)
    return uvarint(len(parts) + 1) + b"".join(parts)


def tags(tagged: Mapping[int, bytes] | None = None) -> bytes:
    """Encode the tagged fields at the end of a struct."""
    tagged = tagged or {}
    parts = [uvarint(tag) + uvarint(len(data)) + data for tag, data in sorted(tagged.items())]
    return uvarint(len(parts)) + b"".join(parts)


@dataclass(slots=True)
class FieldReader:
    """Reads one field after the other."""

    data: bytes
    offset: int = 0

    def int8(self) -> int:
        return self._unpack(_INT8)

    def int16(self) -> int:
        return self._unpack(_INT16)

    def int32(self) -> int:
        return self._unpack(_INT32)

    def int64(self) -> int:
        return self._unpack(_INT64)

    def _unpack(self, form: struct.Struct) -> int:
        value: int = form.unpack_from(self.data, self.offset)[0]
        self.offset += form.size
        return value

    def _take(self, size: int) -> bytes:
        start, end = self.offset, self.offset + size
        if size < 0 or end > len(self.data):
            raise ValueError(f"a record of {len(self.data)} bytes ends within a field of {size}")
        self.offset = end
        return self.data[start:end]


class FlexibleReader(FieldReader):
    """Reads strings, bytes and arrays in the encoding of flexible messages."""

    __slots__ = ()

    def key_string(self) -> str:
        return self._take(self.int16()).decode()

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._take(16))

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.offset]
            self.offset += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def nullable_string(self) -> str | None:
        size = self.uvarint()
        return None if size == 0 else self._take(size - 1).decode()

    def string(self) -> str:
        return self.nullable_string() or ""

    def blob(self) -> bytes:
        return self._take(max(self.uvarint() - 1, 0))

    def count(self) -> int:
        """Read the length of an array; a null array is empty."""
        return max(self.uvarint() - 1, 0)

    def int32s(self) -> list[int]:
        return [self.int32() for _ in range(self.count())]

    def tags(self) -> dict[int, FlexibleReader]:
        """Read the tagged fields into one reader each, which skips unknown ones."""
        tagged: dict[int, FlexibleReader] = {}
        for _ in range(self.uvarint()):
            tag, size = self.uvarint(), self.uvarint()
            tagged[tag] = FlexibleReader(self._take(size))
        return tagged
