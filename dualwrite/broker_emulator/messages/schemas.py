"""The message schemas of each API and version: kio's, and those that kio does not have yet.

Loaded per version at first use, since importing all of them takes a second.

The codec refuses tagged fields that are unknown to a version. A receiver ignores them (KIP-482), in the body as in the
header, so that newer clients can send more. So a request that it refused for such a field is walked once more, and
copied without them. Its lengths have been checked before (`request_bounds.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from pkgutil import resolve_name
from typing import Any, Final, NamedTuple, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map

from dualwrite.broker_emulator.log.record_fields import uvarint
from dualwrite.broker_emulator.messages.request_bounds import FIXED_SIZES, read_unsigned_varint, without_none


class _Newer(NamedTuple):
    """The module and name of each type of a version that kio does not have."""

    request: str
    response: str


_OWN = f"{__package__}.newer_schemas"

_NEWER: Final[Mapping[str, Mapping[int, _Newer]]] = {
    "api_versions": {
        5: _Newer(f"{_OWN}:ApiVersionsRequest", "kio.schema.api_versions.v4.response:ApiVersionsResponse")
    },
    "delete_groups": {
        3: _Newer("kio.schema.delete_groups.v2.request:DeleteGroupsRequest", f"{_OWN}:DeleteGroupsResponse")
    },
    "txn_offset_commit": {6: _Newer(f"{_OWN}:TxnOffsetCommitRequest", f"{_OWN}:TxnOffsetCommitResponse")},
}
"""The versions that came with Kafka 4.4, after kio's last release (`newer_schemas.py`)."""


def versions_of(schema_name: str) -> tuple[int, ...]:
    """Return the versions of an API that have a schema, oldest first. Raises KeyError for an unknown API."""
    return tuple(sorted({*schema_name_map[schema_name], *_NEWER.get(schema_name, ())}))


def request_schema(key: int, version: int) -> Any:
    """Return the type of an API's requests in this version. Raises kio's UnknownEntity for an unknown version."""
    newer = _newer(key, version)
    return load_request_schema(key, version) if newer is None else resolve_name(newer.request)


def response_schema(key: int, version: int) -> Any:
    """Return the type of an API's responses in this version. Raises kio's UnknownEntity for an unknown version."""
    newer = _newer(key, version)
    return load_response_schema(key, version) if newer is None else resolve_name(newer.response)


def _newer(key: int, version: int) -> _Newer | None:
    return _NEWER.get(api_key_map.get(key, ""), {}).get(version)


Frame = bytes | memoryview


class _Copy:
    """A frame being copied: `parts` is the copy up to `copied`, a position of the frame."""

    __slots__ = ("copied", "frame", "parts")

    def __init__(self, frame: Frame, position: int) -> None:
        self.frame = frame
        self.parts: list[Frame] = []
        self.copied = position

    def up_to(self, position: int) -> None:
        """Copy the bytes before `position`."""
        if position > len(self.frame):
            raise IndexError("the request is longer than its frame")
        self.parts.append(self.frame[self.copied : position])
        self.copied = position

    def replace(self, end: int, content: bytes) -> None:
        """Put `content` in place of the bytes up to `end`."""
        self.parts.append(content)
        self.copied = end


_Walk = Callable[[_Copy, int], int]
"""Walks over a value at a position; returns the position after it."""


def without_unknown_tags(request_type: Any, frame: Frame, position: int) -> bytes:
    """Return the request that begins at `position`, without unknown tagged fields.

    Raises ValueError or IndexError for an otherwise malformed request.
    """
    return _copied(_walk_of_entity(request_type), frame, position, len(frame))


def _copied(walk: _Walk, frame: Frame, position: int, end: int) -> bytes:
    copy = _Copy(frame, position)
    walk(copy, position)
    copy.up_to(end)
    return b"".join(copy.parts)


@cache
def _walk_of_entity(entity_type: Any) -> _Walk:
    flexible: bool = entity_type.__flexible__
    plain = [_walk_of_field(member, flexible) for member in fields(entity_type) if "tag" not in member.metadata]
    tagged = {
        member.metadata["tag"]: _walk_of_field(member, flexible)
        for member in fields(entity_type)
        if "tag" in member.metadata
    }

    def walk(copy: _Copy, position: int) -> int:
        for walk_field in plain:
            position = walk_field(copy, position)
        return _walk_tags(copy, position, tagged) if flexible else position

    return walk


def _walk_tags(copy: _Copy, position: int, known: Mapping[int, _Walk]) -> int:
    if copy.frame[position] == 0:
        return position + 1
    copy.up_to(position)
    count, position = read_unsigned_varint(copy.frame, position)
    kept: list[bytes] = []
    for _ in range(count):
        tag, position = read_unsigned_varint(copy.frame, position)
        size, position = read_unsigned_varint(copy.frame, position)
        if tag in known:
            content = _copied(known[tag], copy.frame, position, position + size)
            kept.append(uvarint(tag) + uvarint(len(content)) + content)
        position += size
        if position > len(copy.frame):
            raise IndexError("the frame ends within a tagged field")
    copy.replace(position, uvarint(len(kept)) + b"".join(kept))
    return position


def _walk_of_field(member: Field[Any], flexible: bool) -> _Walk:
    kind: Any = without_none(member.type)
    if get_origin(kind) is tuple:
        inner: Any = without_none(get_args(kind)[0])
        element = _walk_of_entity(_untyped(inner)) if is_dataclass(inner) else _walk_of_primitive(member, flexible)
        return _walk_of_array(element, flexible)
    if is_dataclass(kind):
        walk = _walk_of_entity(_untyped(kind))
        return _nullable(walk) if kind is not member.type and "tag" not in member.metadata else walk
    return _walk_of_primitive(member, flexible)


def _untyped(entity_type: Any) -> Any:
    return entity_type


def _nullable(walk: _Walk) -> _Walk:
    """Return the walk over a struct after the byte that marks its presence (KIP-893)."""
    return lambda copy, position: walk(copy, position + 1) if copy.frame[position] < 0x80 else position + 1


def _walk_of_array(element: _Walk, flexible: bool) -> _Walk:
    def walk(copy: _Copy, position: int) -> int:
        count, position = _length(copy.frame, position, 4, flexible)
        for _ in range(count):
            position = element(copy, position)
        return position

    return walk


def _walk_of_primitive(member: Field[Any], flexible: bool) -> _Walk:
    kafka_type = member.metadata["kafka_type"]
    if kafka_type in FIXED_SIZES:
        fixed = FIXED_SIZES[kafka_type]
        return lambda _, position: position + fixed
    width = 2 if kafka_type == "string" else 4

    def walk(copy: _Copy, position: int) -> int:
        size, position = _length(copy.frame, position, width, flexible)
        return position + size

    return walk


def _length(frame: Frame, position: int, width: int, flexible: bool) -> tuple[int, int]:
    """Return the length of a string, of bytes or of an array, 0 if null, and the position after it."""
    if flexible:
        length, position = read_unsigned_varint(frame, position)
        return max(length - 1, 0), position
    length = int.from_bytes(frame[position : position + width], "big", signed=True)
    return max(length, 0), position + width
