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

Check = Callable[[bytes | memoryview, int, int], None]
"""Called with the frame, the position of the request in it, and how many elements its arrays may have together.

Raises ValueError or IndexError on a request that cannot be what it claims.
"""

_Walk = Callable[[bytes | memoryview, int, int], tuple[int, int]]
"""Takes a position and the number of elements that may still come, and gives both as they are behind a value."""


def bounds_check(request_type: Any) -> Check | None:
    """The check for one version of a request, generated; None where it has no arrays."""
    if not _has_arrays(request_type):
        return None
    source = _WalkSource()
    source.add_entity(request_type)
    walk = source.compiled()

    def check(frame: bytes | memoryview, position: int, max_elements: int) -> None:
        try:
            end, _ = walk(frame, position, max_elements)
        except struct.error as error:
            raise IndexError("the frame ends within the length of a field") from error
        if end > len(frame):
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


class _WalkSource:
    """The source of one walk as it grows. Neighbours of fixed size wait in `_fixed_size` to be skipped at once."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 1
        self._fixed_size = 0
        self._names: dict[str, Any] = {
            "int16": struct.Struct(">h").unpack_from,
            "int32": struct.Struct(">i").unpack_from,
            "read_unsigned_varint": read_unsigned_varint,
            "length_of_nothing": _length_of_nothing,
            "count_of_nothing": _count_of_nothing,
            "too_many": _too_many,
        }

    def add_entity(self, entity_type: Any) -> None:
        """All fields of an entity, and its tagged ones if the version has them."""
        flexible: bool = entity_type.__flexible__
        members = fields(entity_type)
        for member in members:
            if "tag" not in member.metadata:
                self.add_field(member, flexible)
        if flexible:
            tagged = (member for member in members if "tag" in member.metadata)
            self._add_tags({member.metadata["tag"]: _walk_of_field(member) for member in tagged})

    def add_field(self, member: Field[Any], flexible: bool) -> None:
        kind = _without_none(member.type)
        is_nullable = kind is not member.type
        if get_origin(kind) is tuple:
            inner = _without_none(get_args(kind)[0])
            self._add_array(inner if is_dataclass(inner) else None, member.metadata, flexible, is_nullable)
        elif is_dataclass(kind):
            self._add_struct(kind, is_nullable=is_nullable and "tag" not in member.metadata)
        else:
            self._add_primitive(member.metadata["kafka_type"], flexible)

    def _add_primitive(self, kafka_type: str, flexible: bool) -> None:
        if kafka_type in _FIXED_SIZES:
            self._fixed_size += _FIXED_SIZES[kafka_type]
        elif flexible:
            self._add_unsigned_varint("size")
            self._line("if size: position += size - 1")
        else:
            self._add_number("size", "int16" if kafka_type == "string" else "int32")
            self._line("position += size if size >= 0 else length_of_nothing(size)")

    def _add_number(self, name: str, kafka_type: str) -> None:
        self._line(f"({name},) = {kafka_type}(frame, position)")
        self._fixed_size += _FIXED_SIZES[kafka_type]

    def _add_unsigned_varint(self, name: str) -> None:
        self._line(f"{name} = frame[position]")
        self._line("position += 1")
        self._line(f"if {name} >= 0x80: {name}, position = read_unsigned_varint(frame, position - 1)")

    def _add_struct(self, entity_type: Any, *, is_nullable: bool) -> None:
        if not is_nullable:
            self.add_entity(entity_type)
            return
        self._line("position += 1")  # KIP-893
        self._line("if frame[position - 1] < 0x80:")
        self._add_block(lambda: self.add_entity(entity_type))

    def _add_array(self, entity_type: Any, metadata: Any, flexible: bool, is_nullable: bool) -> None:
        element_size = 0 if entity_type else _FIXED_SIZES.get(metadata["kafka_type"], 0)
        if flexible:
            self._add_unsigned_varint("count")
            self._line("count -= 1")
        else:
            self._add_number("count", "int32")
        self._line(f"if count <= 0: count = count_of_nothing(count, {is_nullable})")
        self._line(f"elif count > left or count * {element_size or 1} > len(frame) - position:")
        self._line("    raise too_many(count, left, len(frame) - position)")
        self._line("left -= count")
        if element_size:
            self._line(f"position += count * {element_size}")
            return
        self._line("for _ in range(count):")
        if entity_type:
            self._add_block(lambda: self.add_entity(entity_type))
        else:
            self._add_block(lambda: self._add_primitive(metadata["kafka_type"], flexible))

    def _add_tags(self, known: dict[int, _Walk]) -> None:
        name = f"tags_{len(self._names)}"
        self._names[name] = _walk_of_tags(known)
        self._line("position += 1")
        self._line("if frame[position - 1]:")
        self._line(f"    position, left = {name}(frame, position - 1, left)")

    def compiled(self) -> _Walk:
        self._line("return position, left")
        body = "\n".join(self._lines)
        namespace = dict(self._names)
        exec(compile(f"def walk(frame, position, left):\n{body}\n", f"<{__name__}>", "exec"), namespace)
        walk: _Walk = namespace["walk"]
        return walk

    def _add_block(self, add: Callable[[], None]) -> None:
        self._depth += 1
        add()
        self._line("pass")
        self._depth -= 1

    def _line(self, line: str) -> None:
        indent = "    " * self._depth
        if self._fixed_size:
            self._lines.append(f"{indent}position += {self._fixed_size}")
            self._fixed_size = 0
        self._lines.append(indent + line)


def _walk_of_field(member: Field[Any]) -> _Walk:
    """Over one field that stands alone, as tagged ones do, which only flexible versions have."""
    source = _WalkSource()
    source.add_field(member, flexible=True)
    return source.compiled()


def _walk_of_tags(known: dict[int, _Walk]) -> _Walk:
    def walk(frame: bytes | memoryview, position: int, left: int) -> tuple[int, int]:
        count, position = read_unsigned_varint(frame, position)
        for _ in range(count):
            tag, position = read_unsigned_varint(frame, position)
            size, position = read_unsigned_varint(frame, position)
            end = position + size
            if tag in known:
                reached, left = known[tag](frame, position, left)
                if reached != end:
                    raise ValueError(f"tagged field {tag} is not of the size {size} that it claims")
            position = end
        return position, left

    return walk


def _length_of_nothing(length: int) -> int:
    if length < -1:
        raise ValueError(f"a field claims the length {length}")
    return 0


def _count_of_nothing(count: int, is_nullable: bool) -> int:
    if count < -1:
        raise ValueError(f"an array claims {count} elements")
    if count == -1 and not is_nullable:  # the codec would let it pass, and the API would meet a null
        raise ValueError("an array that cannot be null is null")
    return 0


def _too_many(count: int, left: int, left_bytes: int) -> ValueError:
    if count > left:
        return ValueError("its arrays have more elements than max.request.elements allows")
    return ValueError(f"an array claims {count} elements, {left_bytes} bytes are left")


def read_unsigned_varint(frame: bytes | memoryview, position: int) -> tuple[int, int]:
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
