"""Frames to requests, and responses to frames; large ones in such a way that a thread can do it.

Neither touches any state, so the event loop serves others while a thread decodes or encodes ten thousands of elements.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Final

from dualwrite.broker_emulator.api.registry import Schema
from dualwrite.broker_emulator.api.request_bounds import (
    TooManyElementsError,
    read_unsigned_varint,
    too_many_elements,
)

_SIZE: Final = struct.Struct(">i")
SIZE_BYTES: Final = _SIZE.size
unpack_size: Final = _SIZE.unpack_from

_HEADER: Final = struct.Struct(">ihhih")  # frame size, api key, api version, correlation id, length of the client id
HEADER_BYTES: Final = _HEADER.size
unpack_header: Final = _HEADER.unpack_from

_LARGE_FRAME: Final = 8 << 10
"""Frames smaller than this are decoded at once, whatever they hold."""
_FEW_ELEMENTS: Final = 1000
_LOOKED_INTO: Final = 20
"""Elements of an array of a response whose own arrays count too."""


class TooLargeToDecodeAtOnceError(Exception):
    """The request has so many elements that decoding it would hold up others; `decode` returns it, in a thread."""

    def __init__(self, decode: Callable[[], Any]) -> None:
        super().__init__()
        self.decode = decode


def decoded(message: Schema, frame: bytes | memoryview, offset: int, max_elements: int) -> Any:
    """Return the request. Raises TooLargeToDecodeAtOnceError, and many types for a malformed one."""
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
    return response is not None and _count_elements(response, _LOOKED_INTO) > _FEW_ELEMENTS


def _count_elements(entity: Any, looked_into: int) -> int:
    """Count the elements of an entity's arrays, and of the arrays in the first of them."""
    count = 0
    for member in fields(entity):
        value = getattr(entity, member.name)
        if isinstance(value, tuple):
            count += len(value)
            if value and hasattr(value[0], "__dataclass_fields__"):
                count += sum(_count_elements(item, 1) for item in value[:looked_into])
        elif hasattr(value, "__dataclass_fields__"):
            count += _count_elements(value, looked_into)
    return count


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
