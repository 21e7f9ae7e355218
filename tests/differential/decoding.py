"""Responses as they are on the wire: kio's readers refuse moments of -1 and unknown error codes, which brokers send."""

from __future__ import annotations

import struct
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any, Final, get_args, get_origin
from uuid import UUID

from dualwrite.broker_emulator.messages.schemas import response_schema
from tests.emulator.api.raw_client import KEYS
from tests.emulator.hostile.requests import without_none

_FIXED: Final = {
    "bool": ">?",
    "int8": ">b",
    "int16": ">h",
    "int32": ">i",
    "int64": ">q",
    "uint16": ">H",
    "uint32": ">I",
    "float64": ">d",
    "error_code": ">h",
    "timedelta_i32": ">i",
    "timedelta_i64": ">q",
    "datetime_i64": ">q",
}


def decode_response(api: str, version: int, frame: bytes) -> Any:
    """Return the response in a frame without its size. Raises ValueError if not every byte belongs to it."""
    kind: Any = response_schema(KEYS[api], version)
    reader = _Reader(frame, 5 if kind.__header_schema__.__flexible__ else 4)
    response = reader.entity(kind)
    if reader.position != len(frame):
        raise ValueError(f"{len(frame) - reader.position} bytes follow the response")
    return response


class _Reader:
    """A position in a frame."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self.position = position

    def entity(self, kind: Any) -> SimpleNamespace:
        values = {}
        tagged = {}
        for member in fields(kind):
            if "tag" in member.metadata:
                tagged[int(member.metadata["tag"])] = member
                values[member.name] = member.default
            else:
                values[member.name] = self._value(member, kind.__flexible__)
        for _ in range(self._uvarint() if kind.__flexible__ else 0):
            tag, size = self._uvarint(), self._uvarint()
            end = self.position + size
            if tag in tagged:
                values[tagged[tag].name] = self._value(tagged[tag], flexible=True)
            self.position = end
        return SimpleNamespace(**values)

    def _value(self, member: Any, flexible: bool) -> Any:
        kind, is_nullable = without_none(member.type)
        if get_origin(kind) is tuple:
            inner, _ = without_none(get_args(kind)[0])
            count = self._length(flexible, ">i")
            return None if count < 0 else tuple(self._one(inner, member, flexible) for _ in range(count))
        if is_dataclass(kind) and is_nullable and "tag" not in member.metadata and self._fixed(">b") < 0:
            return None
        return self._one(kind, member, flexible)

    def _one(self, kind: Any, member: Any, flexible: bool) -> Any:
        return self.entity(kind) if is_dataclass(kind) else self._primitive(member.metadata["kafka_type"], flexible)

    def _primitive(self, kafka_type: str, flexible: bool) -> Any:
        if kafka_type in _FIXED:
            return self._fixed(_FIXED[kafka_type])
        if kafka_type == "uuid":
            return UUID(bytes=self._take(16))
        size = self._length(flexible, ">h" if kafka_type == "string" else ">i")
        if size < 0:
            return None
        return self._take(size).decode() if kafka_type == "string" else self._take(size)

    def _length(self, flexible: bool, layout: str) -> int:
        return self._uvarint() - 1 if flexible else int(self._fixed(layout))

    def _fixed(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _take(self, size: int) -> bytes:
        self.position += size
        return self._data[self.position - size : self.position]

    def _uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
