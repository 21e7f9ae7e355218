"""Whether the arrays of a request can be as long as they claim, found out before anything is allocated for them.

The codec reserves memory by the length that an array claims, and where the system refuses that much the whole process
aborts: fifteen bytes would end the broker. So the bytes of each request that has arrays are walked through first,
without decoding anything: an array may claim no more elements than there are bytes left for, and all of them together
no more than the limit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

_FIXED_SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "uint32": 4,
    "int64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
    "error_code": 2,
}

_Skip = Callable[[bytes, int, list[int]], int]
"""Gives the position behind a value. The list holds the one number of elements that may still come."""

Check = Callable[[bytes, int, int], None]
"""Called with the frame, the position of the request in it, and how many elements its arrays may have together.

Raises ValueError or IndexError on a request that cannot be what it claims.
"""


def bounds_check(request_type: Any) -> Check | None:
    """The check for one version of a request; None where it has no arrays."""
    if not _has_arrays(request_type):
        return None
    skip = _entity(request_type)

    def check(frame: bytes, position: int, max_elements: int) -> None:
        if skip(frame, position, [max_elements]) > len(frame):
            raise IndexError("the request ends behind its frame")

    return check


def _has_arrays(entity_type: Any) -> bool:
    return any(
        get_origin(kind) is tuple or (is_dataclass(kind) and _has_arrays(kind))
        for kind in (_without_none(member.type) for member in fields(entity_type))
    )


def _without_none(kind: Any) -> Any:
    if get_origin(kind) not in (UnionType, Union):
        return kind
    (inner,) = (argument for argument in get_args(kind) if argument is not NoneType)
    return inner


def _entity(entity_type: Any) -> _Skip:
    """All fields of an entity, and its tagged ones if the version has them."""
    flexible: bool = entity_type.__flexible__
    members = fields(entity_type)
    plain = [_field(member, flexible) for member in members if "tag" not in member.metadata]
    steps = _with_fixed_runs_joined(plain)
    if flexible:
        tagged = {member.metadata["tag"]: _field(member, flexible) for member in members if "tag" in member.metadata}
        steps.append(_tagged_fields({tag: _as_skip(step) for tag, step in tagged.items()}))

    def skip(frame: bytes, position: int, budget: list[int]) -> int:
        for step in steps:
            position = step(frame, position, budget)
        return position

    return skip


def _with_fixed_runs_joined(plain: list[_Skip | int]) -> list[_Skip]:
    """Neighbours of fixed size are skipped at once."""
    joined: list[_Skip | int] = []
    for step in plain:
        if isinstance(step, int) and joined and isinstance(joined[-1], int):
            joined[-1] += step
        else:
            joined.append(step)
    return [_as_skip(step) for step in joined]


def _as_skip(step: _Skip | int) -> _Skip:
    if not isinstance(step, int):
        return step
    size = step
    return lambda frame, position, budget: position + size


def _field(member: Field[Any], flexible: bool) -> _Skip | int:
    """How to get over a field: its size, where that is fixed."""
    kind = _without_none(member.type)
    if get_origin(kind) is tuple:
        inner = _without_none(get_args(kind)[0])
        element = _entity(inner) if is_dataclass(inner) else _primitive(member.metadata["kafka_type"], flexible)
        return _array(element, flexible, is_nullable=kind is not member.type)
    if is_dataclass(kind):
        entity = _entity(kind)
        return entity if kind is member.type or "tag" in member.metadata else _nullable(entity)
    return _primitive(member.metadata["kafka_type"], flexible)


def _primitive(kafka_type: str, flexible: bool) -> _Skip | int:
    if kafka_type in _FIXED_SIZES:
        return _FIXED_SIZES[kafka_type]
    if flexible:
        return _compact_bytes
    return _string if kafka_type == "string" else _bytes


def _nullable(entity: _Skip) -> _Skip:
    def skip(frame: bytes, position: int, budget: list[int]) -> int:
        return position + 1 if frame[position] >= 0x80 else entity(frame, position + 1, budget)

    return skip


def _string(frame: bytes, position: int, budget: list[int]) -> int:
    return position + 2 + max(_length(_INT16, frame, position), 0)


def _bytes(frame: bytes, position: int, budget: list[int]) -> int:
    return position + 4 + max(_length(_INT32, frame, position), 0)


def _length(format_: struct.Struct, frame: bytes, position: int) -> int:
    if position + format_.size > len(frame):
        raise IndexError("the frame ends within the length of a field")
    length: int = format_.unpack_from(frame, position)[0]
    if length < -1:
        raise ValueError(f"a field claims the length {length}")
    return length


def _compact_bytes(frame: bytes, position: int, budget: list[int]) -> int:
    size = frame[position]
    if size >= 0x80:
        size, position = read_unsigned_varint(frame, position)
        return position + size - 1
    return position + 1 + (size - 1 if size else 0)


def _array(element: _Skip | int, flexible: bool, *, is_nullable: bool) -> _Skip:
    def skip(frame: bytes, position: int, budget: list[int]) -> int:
        if flexible:
            count, position = read_unsigned_varint(frame, position)
            count -= 1
        else:
            count = _length(_INT32, frame, position)
            position += 4
        if count <= 0:
            if count < 0 and not is_nullable:  # the codec would let it pass, and the API would meet a null
                raise ValueError("an array that cannot be null is null")
            return position
        size = element if isinstance(element, int) else 1
        if count * size > len(frame) - position:
            raise ValueError(f"an array claims {count} elements, {len(frame) - position} bytes are left")
        budget[0] -= count
        if budget[0] < 0:
            raise ValueError("its arrays have more elements than max.request.elements allows")
        if isinstance(element, int):
            return position + count * element
        for _ in range(count):
            position = element(frame, position, budget)
        return position

    return skip


def _tagged_fields(known: dict[int, _Skip]) -> _Skip:
    def skip(frame: bytes, position: int, budget: list[int]) -> int:
        if frame[position] == 0:
            return position + 1
        count, position = read_unsigned_varint(frame, position)
        for _ in range(count):
            tag, position = read_unsigned_varint(frame, position)
            size, position = read_unsigned_varint(frame, position)
            end = position + size
            if tag in known and known[tag](frame, position, budget) != end:
                raise ValueError(f"tagged field {tag} is not of the size {size} that it claims")
            position = end
        return position

    return skip


def read_unsigned_varint(frame: bytes, position: int) -> tuple[int, int]:
    """The number at `position`, and the position behind it. Raises ValueError, or IndexError at the frame's end."""
    value = shift = 0
    while True:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise ValueError("a varint longer than five bytes")
