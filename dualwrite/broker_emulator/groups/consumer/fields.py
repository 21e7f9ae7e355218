"""Fields of flexible messages (KIP-482) as the values of a consumer group's records hold them."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping

from dualwrite.broker_emulator.groups.field_reader import FieldReader

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


def int8(value: int) -> bytes:
    return _INT8.pack(value)


def int16(value: int) -> bytes:
    return _INT16.pack(value)


def int32(value: int) -> bytes:
    return _INT32.pack(value)


def int64(value: int) -> bytes:
    return _INT64.pack(value)


def key_string(value: str) -> bytes:
    """A string as keys hold it: keys are not flexible."""
    data = value.encode()
    return _INT16.pack(len(data)) + data


def uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def string(value: str | None) -> bytes:
    return blob(None if value is None else value.encode())


def blob(value: bytes | None) -> bytes:
    return b"\0" if value is None else uvarint(len(value) + 1) + value


def array(items: Iterable[bytes]) -> bytes:
    parts = list(items)
    return uvarint(len(parts) + 1) + b"".join(parts)


def tags(tagged: Mapping[int, bytes] | None = None) -> bytes:
    """The tagged fields at the end of an entity."""
    tagged = tagged or {}
    parts = [uvarint(tag) + uvarint(len(data)) + data for tag, data in sorted(tagged.items())]
    return uvarint(len(parts)) + b"".join(parts)


class Reader(FieldReader):
    """Strings, bytes and arrays as flexible messages have them."""

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
        """The length of an array; a null one is empty."""
        return max(self.uvarint() - 1, 0)

    def int32s(self) -> list[int]:
        return [self.int32() for _ in range(self.count())]

    def tags(self) -> dict[int, Reader]:
        """The tagged fields, each to be read by itself; those that nobody asks for are skipped that way."""
        tagged: dict[int, Reader] = {}
        for _ in range(self.uvarint()):
            tag, size = self.uvarint(), self.uvarint()
            tagged[tag] = Reader(self._take(size))
        return tagged
