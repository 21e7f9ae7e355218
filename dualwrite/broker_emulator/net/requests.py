"""Frames to requests, and responses to frames; large ones can be converted in a thread.

The conversion touches no state, so the event loop serves others while a thread decodes or encodes tens of thousands of
elements.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final, get_origin

from dualwrite.broker_emulator.messages.request_bounds import (
    TooManyElementsError,
    read_unsigned_varint,
    too_many_elements,
    without_none,
)
from dualwrite.broker_emulator.messages.schema import Schema

_SIZE: Final = struct.Struct(">i")
SIZE_BYTES: Final = _SIZE.size
unpack_size: Final = _SIZE.unpack_from

_HEADER: Final = struct.Struct(">ihhih")  # frame size, api key, api version, correlation id, length of the client id
HEADER_BYTES: Final = _HEADER.size
unpack_header: Final = _HEADER.unpack_from

_LARGE_FRAME: Final = 8 << 10
"""Smaller frames are always decoded at once."""
_FEW_ELEMENTS: Final = 1000


class TooLargeToDecodeAtOnceError(Exception):
    """The request has so many elements that decoding it would hold up others; call `decode` in a thread to get it."""

    def __init__(self, decode: Callable[[], Any]) -> None:
        super().__init__()
        self.decode = decode


def decoded(message: Schema, frame: bytes | memoryview, offset: int, max_elements: int) -> Any:
    """Return the request. Raises TooLargeToDecodeAtOnceError, and many other types for a malformed request."""
    if len(frame) >= _LARGE_FRAME:
        _check_large(message, frame, offset, max_elements)
    elif message.check_bounds is not None:
        message.check_bounds(frame, offset, max_elements)
    return message.read(frame, offset)


def _check_large(message: Schema, frame: bytes | memoryview, offset: int, max_elements: int) -> None:
    try:
        message.check_large(frame, offset, min(_FEW_ELEMENTS, max_elements))
    except TooManyElementsError:
        if max_elements <= _FEW_ELEMENTS:
            raise
        raise TooLargeToDecodeAtOnceError(lambda: _checked(message, frame, offset, max_elements)) from None


def _checked(message: Schema, frame: bytes | memoryview, offset: int, max_elements: int) -> Any:
    if message.check_bounds is not None:
        message.check_bounds(frame, offset, max_elements)
    return message.read(frame, offset)


def encoded_large(message: Schema, correlation_id: int, response: Any) -> tuple[bytes, Sequence[int]]:
    """Return the frame of a large response, made with less memory, and its error codes."""
    return message.large_frame(correlation_id, response), message.errors_of(response)


def is_large(response: Any) -> bool:
    """Return whether a response has so many elements that encoding it would hold up others."""
    return response is not None and _left_after(response, _FEW_ELEMENTS) < 0


def _left_after(entity: Any, left: int) -> int:
    """Subtract the elements of all arrays in an entity; stop below zero."""
    for name in _parts_of(entity):
        value = getattr(entity, name)
        if isinstance(value, tuple):
            left -= len(value)
            parts = value if value and is_dataclass(value[0]) and _parts_of(value[0]) else ()
        else:
            parts = () if value is None else (value,)
        for part in parts:
            if left < 0:
                return left
            left = _left_after(part, left)
    return left


def _parts_of(entity: Any) -> tuple[str, ...]:
    kind: Any = type(entity)
    return _parts(kind)


@cache
def _parts(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields that are arrays or entities."""
    types = ((member.name, without_none(member.type)) for member in fields(kind))
    return tuple(name for name, inner in types if get_origin(inner) is tuple or is_dataclass(inner))


def rest_of_header(
    frame: bytes | memoryview, client_id_length: int, *, flexible: bool, max_tags: int
) -> tuple[str | None, int]:
    """Return the client id and the offset of the request. Raises ValueError or IndexError for an invalid header."""
    offset = HEADER_BYTES
    client_id = None
    if client_id_length >= 0:
        end = offset + client_id_length
        if end > len(frame):
            raise IndexError(f"client id of {client_id_length} bytes")
        client_id = str(frame[offset:end], "utf-8")
        offset = end
    if not flexible:
        return client_id, offset
    return client_id, _skip_tagged_fields(frame, offset, max_tags) if frame[offset] else offset + 1


def _skip_tagged_fields(frame: bytes | memoryview, offset: int, max_tags: int) -> int:
    count, offset = read_unsigned_varint(frame, offset)
    if count > min(max_tags, _FEW_ELEMENTS):
        raise too_many_elements()
    for _ in range(count):
        _, offset = read_unsigned_varint(frame, offset)
        size, offset = read_unsigned_varint(frame, offset)
        offset += size
    return offset
