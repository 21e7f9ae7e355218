"""Frames of requests of every API and version, and lengths that damage them."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin
from uuid import UUID

from kio.serial import entity_writer

from dualwrite.broker_emulator.api.registry import APIS

SERVED = [(api.key, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)]
FIRST_PRODUCER_ID = 1_700_000_000_000_000
"""The first one that an emulator on a VirtualClock hands out."""


def without_none(kind: Any) -> tuple[Any, bool]:
    """The type of a field, and whether it may be null."""
    if get_origin(kind) not in (UnionType, Union):
        return kind, False
    return next(part for part in get_args(kind) if part is not NoneType), True


def frame(key: int, version: int, correlation_id: int, message: Any) -> bytes:
    """The whole request frame."""
    buffer = io.BytesIO()
    buffer.write(struct.pack(">hhih", key, version, correlation_id, 4) + b"fuzz")
    kind: Any = type(message)
    if kind.__header_schema__.__flexible__:
        buffer.write(b"\0")
    entity_writer(kind)(buffer, message)
    return sized(buffer.getvalue())


def sized(content: bytes) -> bytes:
    """A frame of this content."""
    return struct.pack(">i", len(content)) + content


LENGTHS = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\x80\x00\x00\x00",
    b"\x00\x00\x00\x00",
    b"\xff\xff",
    b"\x00",
)
"""Lengths that are too large, or negative."""

Path = tuple[str, ...]
"""The names of the fields that lead to an array."""

_VALUES: Mapping[str, Any] = {
    "bool": False,
    "bytes": b"",
    "records": b"",
    "float64": 0.0,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
}


def _primitive(kafka_type: Any, number: int) -> Any:
    match kafka_type:
        case "string":
            return f"n{number}"
        case "uuid":
            return UUID(int=number + 1)
        case "int8" | "uint8":
            return number % 100 + 1  # 0 is no type of an ACL
    return _VALUES.get(kafka_type, number)


def element_of(member: Any) -> Any:
    """The type of an array's elements; None if the field is no array."""
    kind, _ = without_none(member.type)
    return without_none(get_args(kind)[0])[0] if get_origin(kind) is tuple else None


def filled(kind: Any, count: Callable[[Path], int], around: Path = (), number: int = 0) -> Any:
    """An entity whose arrays have as many elements as `count` says."""
    values: dict[str, Any] = {}
    for member in fields(kind):
        path = (*around, member.name)
        element, (inner, _) = element_of(member), without_none(member.type)
        kafka_type = member.metadata.get("kafka_type")
        if element is not None:
            values[member.name] = tuple(
                filled(element, count, path, index) if is_dataclass(element) else _primitive(kafka_type, index)
                for index in range(count(path))
            )
        elif is_dataclass(inner):
            values[member.name] = filled(inner, count, path)
        else:
            # a Produce with acks=0 is not answered
            values[member.name] = 1 if member.name == "acks" else _primitive(kafka_type, number)
    return kind(**values)
