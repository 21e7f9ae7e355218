"""Reads fields of fixed size out of the broker's own records of groups, whichever encoding the others have."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


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
        start = self.offset
        self.offset += size
        return self.data[start : self.offset]
