"""Checks of the array lengths in a request, before memory is allocated for them.

The codec allocates memory by an array's claimed length, and if the system refuses that much, the whole process aborts:
fifteen bytes would end the broker. So the bytes of every request with arrays are walked first, without decoding them.
An array may not claim more elements than the remaining bytes can hold, and all arrays and tagged fields together not
more than the limit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

FIXED_SIZES = {
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
"""The size in bytes of each Kafka type with a fixed size."""

_LONGEST_STRING = 32_767
"""In bytes: the maximum in every version of Kafka, as older versions and records have two bytes for the length."""

Check = Callable[[bytes | memoryview, int, int], None]
"""Takes the frame, the offset of the request in it, and the maximum number of elements of all arrays together.

Raises ValueError or IndexError for a request with wrong lengths.
"""

_Walk = Callable[[bytes | memoryview, int, int], tuple[int, int]]
"""Takes the frame, a position and the number of elements still allowed; returns the last two after a value."""


def bounds_check(request_type: Any) -> Check | None:
    """Generate the check for one version of a request; return None if it has no arrays."""
    return lengths_check(request_type) if _has_arrays(request_type) else None


def lengths_check(request_type: Any) -> Check:
    """Generate the check for one version of a request, with or without arrays, since strings can be too long."""
    source = _WalkSource()
    source.add_entity(request_type)
    return source.compiled_check()


def _has_arrays(entity_type: Any) -> bool:
    return any(
        get_origin(kind) is tuple or (is_dataclass(kind) and _has_arrays(kind))
        for kind in (without_none(member.type) for member in fields(entity_type))
    )


def without_none(kind: Any) -> Any:
    """Return the type of a field, without None if it is nullable."""
    if get_origin(kind) not in (UnionType, Union):
        return kind
    (inner,) = (argument for argument in get_args(kind) if argument is not NoneType)
    return inner


class _WalkSource:
    """The source of one walk as it grows. `_fixed_size` is the sum of adjacent fixed-size fields, skipped together."""

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
            "too_long": _too_long,
            "too_short": _too_short,
            "struct_error": struct.error,
            "cut_off": _cut_off,
        }

    def add_entity(self, entity_type: Any) -> None:
        """Add all fields of an entity, including tagged ones if the version has them."""
        flexible: bool = entity_type.__flexible__
        members = fields(entity_type)
        for member in members:
            if "tag" not in member.metadata:
                self.add_field(member, flexible)
        if flexible:
            tagged = (member for member in members if "tag" in member.metadata)
            self._add_tags({member.metadata["tag"]: _walk_of_field(member) for member in tagged})

    def add_field(self, member: Field[Any], flexible: bool) -> None:
        kind = without_none(member.type)
        is_nullable = kind is not member.type
        if get_origin(kind) is tuple:
            inner = without_none(get_args(kind)[0])
            self._add_array(inner if is_dataclass(inner) else None, member.metadata, flexible, is_nullable)
        elif is_dataclass(kind):
            self._add_struct(kind, is_nullable=is_nullable and "tag" not in member.metadata)
        else:
            self._add_primitive(member.metadata["kafka_type"], flexible)

    def _add_primitive(self, kafka_type: str, flexible: bool) -> None:
        if kafka_type in FIXED_SIZES:
            self._fixed_size += FIXED_SIZES[kafka_type]
        elif flexible:
            self._add_unsigned_varint("size")
            if kafka_type == "string":
                self._line(f"if size > {_LONGEST_STRING + 1}: raise too_long(size - 1)")
            self._line("if size: position += size - 1")
        else:
            self._add_number("size", "int16" if kafka_type == "string" else "int32")
            self._line("position += size if size >= 0 else length_of_nothing(size)")

    def _add_number(self, name: str, kafka_type: str) -> None:
        self._line(f"({name},) = {kafka_type}(frame, position)")
        self._fixed_size += FIXED_SIZES[kafka_type]

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
        element_size = 0 if entity_type else FIXED_SIZES.get(metadata["kafka_type"], 0)
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
        walk: _Walk = self._function("\n".join(self._lines))
        return walk

    def compiled_check(self) -> Check:
        """Return the walk as a check of a whole request, which must end within the frame."""
        self._line("if position > len(frame): raise too_short()")
        body = "\n".join(f"    {line}" for line in self._lines)
        check: Check = self._function(f"    try:\n{body}\n    except struct_error as error: raise cut_off() from error")
        return check

    def _function(self, body: str) -> Any:
        namespace = dict(self._names)
        exec(compile(f"def walk(frame, position, left):\n{body}\n", f"<{__name__}>", "exec"), namespace)
        return namespace["walk"]

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
    """Return the walk over a single tagged field, which only flexible versions have."""
    source = _WalkSource()
    source.add_field(member, flexible=True)
    return source.compiled()


def _walk_of_tags(known: dict[int, _Walk]) -> _Walk:
    def walk(frame: bytes | memoryview, position: int, left: int) -> tuple[int, int]:
        count, position = read_unsigned_varint(frame, position)
        if count > left:
            raise too_many_elements()
        left -= count
        for _ in range(count):
            tag, position = read_unsigned_varint(frame, position)
            size, position = read_unsigned_varint(frame, position)
            end = position + size
            if tag in known:
                reached, left = known[tag](frame, position, left)
                if reached != end:
                    raise ValueError(f"tagged field {tag} does not have the size {size} that it claims")
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
    if count == -1 and not is_nullable:  # the codec would accept it, and the handler would get None
        raise ValueError("an array that cannot be null is null")
    return 0


class TooManyElementsError(ValueError):
    """The arrays and tagged fields of a request have more elements than allowed."""


def too_many_elements() -> TooManyElementsError:
    """Return the error for a request with more elements than the limit."""
    return TooManyElementsError("the arrays have more elements than max.request.elements allows")


def _too_many(count: int, left: int, left_bytes: int) -> ValueError:
    if count > left:
        return too_many_elements()
    return ValueError(f"an array claims {count} elements, {left_bytes} bytes are left")


def _too_short() -> IndexError:
    return IndexError("the request is longer than its frame")


def _cut_off() -> IndexError:
    return IndexError("the frame ends within the length of a field")


def _too_long(size: int) -> ValueError:
    return ValueError(f"a string of {size} bytes, {_LONGEST_STRING} are allowed")


def read_unsigned_varint(frame: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the number at `position` and the position after it. Raises ValueError; IndexError at the frame's end."""
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
