"""Frames of requests of every API and version, and lengths that damage them."""

from __future__ import annotations

import io
import struct
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

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
