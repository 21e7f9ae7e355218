"""Fast builders and writers of responses, generated for each message type from kio's schemas.

kio's reader is compiled, but its writer walks the schema field by field for every message, and its entities are frozen
dataclasses, whose construction costs a call per field. Together they took more than a quarter of the time of a
transaction with one record. Here, a function with the same effect is generated once for each entity type; adjacent
fields of fixed width become one `struct.pack`. The bytes are the same as kio's: tests check that for every served API
and version.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin

from dualwrite.broker_emulator.log.record_fields import SINGLE_BYTES, uvarint
from dualwrite.broker_emulator.messages.request_bounds import without_none

Emit = Callable[[bytes], None]
"""Takes the next bytes of a message."""

Writer = Callable[[Emit, Any], None]

NO_THROTTLE = timedelta(0)
"""The throttle time in the responses of requests that no quota delays."""
_DEFAULTS: dict[str, Any] = {"throttle_time": NO_THROTTLE, "error_message": None}
"""The values of fields that a handler leaves out, beside the defaults of kio's schemas."""
_NULL_LENGTH = -1
_LONGEST_TEXT = 32_767
"""In bytes."""


# --- building -------------------------------------------------------------------------------------------------------


@cache
def builder(entity_type: type[Any]) -> Callable[..., Any]:
    """Return a function that builds an `entity_type` from fields by name, ignoring fields that this version lacks.

    It is not a class with an `__init__`, because calling that takes twice as long.
    """
    members = fields(entity_type)
    defaults = _DEFAULTS | {member.name: member.default for member in members if member.default is not MISSING}
    names: dict[str, Any] = {f"default_{name}": value for name, value in defaults.items()}
    parameters = ", ".join(
        f"{member.name}=default_{member.name}" if member.name in defaults else member.name for member in members
    )
    assignments = "; ".join(f"_entity.{member.name} = {member.name}" for member in members) or "pass"
    source = (
        f"def make(*, {parameters + ', ' if parameters else ''}**_):\n"
        "    _entity = _new(_kind)\n"  # no field begins with an underscore
        f"    {assignments}\n"
        "    return _entity\n"
    )
    names |= {"_new": object.__new__, "_kind": _mutable(entity_type)}
    made: Callable[..., Any] = _compiled(source, "make", names)
    return made


def _mutable(entity_type: type[Any]) -> type[Any]:
    """Return an unfrozen subclass of `entity_type`, so that assigning a field costs next to nothing."""
    return type(
        entity_type.__name__,
        (entity_type,),
        {
            "__slots__": (),
            "__module__": entity_type.__module__,
            "__setattr__": object.__setattr__,
            "__eq__": _equality(entity_type),
            "__hash__": entity_type.__hash__,
        },
    )


def _equality(entity_type: type[Any]) -> Callable[[Any, Any], Any]:
    """Return an `__eq__` that compares by field, so that kio's own entities, of another class, are equal too."""
    names = [member.name for member in fields(entity_type)]

    def equal(one: Any, other: Any) -> Any:
        if not isinstance(other, entity_type):
            return NotImplemented
        return all(getattr(one, name) == getattr(other, name) for name in names)

    return equal


def cut_long_texts(entity: Any) -> None:
    """Cut texts that are too long for a field with two bytes of length, in an entity that `builder` made."""
    for member in fields(entity):
        value = getattr(entity, member.name)
        if isinstance(value, str) and len(value) > _LONGEST_TEXT // 4:
            setattr(entity, member.name, value.encode()[:_LONGEST_TEXT].decode(errors="ignore"))
        for element in value if isinstance(value, tuple) else (value,):
            if is_dataclass(element):
                cut_long_texts(element)


# --- writing --------------------------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """The type of a field."""

    entity_type: Any
    kafka_type: str | None
    is_array: bool
    is_nullable: bool


def _kind(member: Field[Any]) -> _Kind:
    inner = without_none(member.type)
    is_nullable, is_array = inner is not member.type, get_origin(inner) is tuple
    if is_array:
        inner = without_none(get_args(inner)[0])
    return _Kind(inner if is_dataclass(inner) else None, member.metadata.get("kafka_type"), is_array, is_nullable)


_FIXED = {  # Kafka type: the letter of `struct`, and the expression that turns the value into a number
    "bool": ("?", "{}"),
    "int8": ("b", "{}"),
    "int16": ("h", "{}"),
    "int32": ("i", "{}"),
    "int64": ("q", "{}"),
    "uint8": ("B", "{}"),
    "uint16": ("H", "{}"),
    "uint32": ("I", "{}"),
    "uint64": ("Q", "{}"),
    "float64": ("d", "{}"),
    "error_code": ("h", "{}"),
    "timedelta_i32": ("i", "duration_ms({0}) if {0} else 0"),
    "timedelta_i64": ("q", "duration_ms({0}) if {0} else 0"),
    "datetime_i64": ("q", "-1 if {0} is None else timestamp_ms({0})"),
    "uuid": ("16s", "NO_UUID if {0} is None else {0}.bytes"),
}
_TEXT = "string"
_BYTES = ("bytes", "records")


def duration_ms(duration: timedelta) -> int:
    """Return whole milliseconds, rounded as kio does."""
    return round(duration.total_seconds() * 1000)


def timestamp_ms(instant: datetime) -> int:
    """Return milliseconds since the Unix epoch, rounded as kio does."""
    return round(instant.timestamp() * 1000)


def write_tags(emit: Emit, tags: list[tuple[int, list[bytes]]]) -> None:
    """Write the tagged fields of one entity, which are ordered by tag."""
    emit(uvarint(len(tags)))
    for tag, parts in tags:
        payload = b"".join(parts)
        emit(uvarint(tag) + uvarint(len(payload)) + payload)


@cache
def writer(entity_type: type[Any]) -> Writer:
    """Return a function that writes an `entity_type`. Raises NotImplementedError for an unsupported field."""
    source = _WriterSource(entity_type.__flexible__)
    source.add_members(entity_type, "entity")
    return source.compiled()


class _WriterSource:
    """The source of one writer as it grows. Fixed-width values collect in `_run`, to be packed together.

    Nested entities are written inline: a row of a large response costs no call of its own.
    """

    def __init__(self, flexible: bool) -> None:
        self._flexible = flexible
        self._lines: list[str] = []
        self._depth = 1
        self._run: list[tuple[str, str]] = []
        self._names: dict[str, Any] = {
            "NO_UUID": bytes(16),
            "duration_ms": duration_ms,
            "timestamp_ms": timestamp_ms,
            "uvarint": uvarint,
            "small": SINGLE_BYTES,
            "pack": struct.pack,
            "write_tags": write_tags,
        }

    def add_members(self, entity_type: Any, entity: str) -> None:
        """Add all fields, including tagged ones, of the entity in the source's variable `entity`."""
        members = fields(entity_type)
        for member in members:
            if "tag" not in member.metadata:
                self.add_value(_kind(member), f"{entity}.{member.name}")
        if entity_type.__flexible__:
            tagged = (member for member in members if "tag" in member.metadata)
            self._add_tags(entity, sorted(tagged, key=lambda member: int(member.metadata["tag"])))

    def add_value(self, kind: _Kind, value: str) -> None:
        if kind.is_array:
            self._add_array(kind, value)
        elif kind.entity_type is not None:
            self._add_entity(kind, value)
        elif kind.kafka_type in _FIXED:
            letter, expression = _FIXED[kind.kafka_type]
            self._run.append((letter, expression.format(value)))
        else:
            self._add_sized(kind, value)

    def _add_sized(self, kind: _Kind, value: str) -> None:
        """Add a string or bytes after its length. A forbidden null raises, because None has no length."""
        if kind.kafka_type == _TEXT:
            content = f"{value}.encode()" + (f" if {value} is not None else None" if kind.is_nullable else "")
            letter = "h"
        elif kind.kafka_type in _BYTES:
            content, letter = value, "i"
        else:
            raise NotImplementedError(f"no writer for the Kafka type {kind.kafka_type!r}")
        self._line(f"data = {content}")
        self._add_length("data", letter, kind.is_nullable)
        self._flush()
        self._line("if data: emit(data)")

    def _add_length(self, value: str, letter: str, is_nullable: bool) -> None:
        if self._flexible:
            size = f"len({value}) + 1" if not is_nullable else f"0 if {value} is None else len({value}) + 1"
            self._flush()
            self._line(f"size = {size}")
            self._line("emit(small[size] if size < 0x80 else uvarint(size))")
        else:
            length = f"len({value})"
            self._run.append(
                (letter, f"{length} if {value} is not None else {_NULL_LENGTH}" if is_nullable else length)
            )

    def _add_array(self, kind: _Kind, value: str) -> None:
        self._line(f"items = {value}")
        self._add_length("items", "i", is_nullable=True)  # kio writes a null in any array field
        self._flush()
        if kind.entity_type is not None:
            item = f"item_{self._depth}"
            self._line(f"for {item} in items or ():")
            self._add_block(kind.entity_type, item)
        elif kind.kafka_type in _FIXED and _FIXED[kind.kafka_type][1] == "{}":
            self._line(f"if items: emit(pack(f'>{{len(items)}}{_FIXED[kind.kafka_type][0]}', *items))")
        else:
            write = self._name(_item_writer(kind.kafka_type, self._flexible))
            self._line(f"for item in items or (): {write}(emit, item)")

    def _add_entity(self, kind: _Kind, value: str) -> None:
        if not kind.is_nullable:
            self.add_members(kind.entity_type, value)
            return
        self._run.append(("b", f"-1 if {value} is None else 1"))  # KIP-893
        self._flush()
        self._line(f"if {value} is not None:")
        self._add_block(kind.entity_type, value)

    def _add_block(self, entity_type: Any, entity: str) -> None:
        self._depth += 1
        before = len(self._lines)
        self.add_members(entity_type, entity)
        self._flush()
        if len(self._lines) == before:
            self._line("pass")
        self._depth -= 1

    def _add_tags(self, entity: str, members: list[Field[Any]]) -> None:
        if not members:
            self._run.append(("x", ""))  # one zero byte: no tags
            return
        self._flush()
        self._line("tags = []")
        for member in members:
            if member.default is MISSING:
                raise NotImplementedError(f"the tagged field {member.name} has no default")
            kind = _kind(member)._replace(is_nullable=False)  # a null tagged field is absent
            value, default = f"{entity}.{member.name}", self._name(member.default)
            write = self._name(_value_writer(kind, self._flexible))
            self._line(f"if {value} is not {default} and {value} != {default}:")
            self._line("    parts = []")
            self._line(f"    {write}(parts.append, {value})")
            self._line(f"    tags.append(({member.metadata['tag']}, parts))")
        self._line("write_tags(emit, tags) if tags else emit(b'\\0')")

    def compiled(self, parameter: str = "entity") -> Writer:
        self._flush()
        body = "\n".join(self._lines or ["    pass"])
        made: Writer = _compiled(f"def write(emit, {parameter}):\n{body}\n", "write", self._names)
        return made

    def _flush(self) -> None:
        """Pack the fixed-width values collected so far."""
        if not self._run:
            return
        pack = self._name(struct.Struct(">" + "".join(letter for letter, _ in self._run)).pack)
        values = ", ".join(expression for letter, expression in self._run if letter != "x")
        self._run.clear()
        self._line(f"emit({pack}({values}))")

    def _line(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    def _name(self, thing: Any) -> str:
        name = f"given_{len(self._names)}"
        self._names[name] = thing
        return name


def _value_writer(kind: _Kind, flexible: bool) -> Writer:
    """Return a writer of a single value."""
    source = _WriterSource(flexible)
    source.add_value(kind, "value")
    return source.compiled("value")


@cache
def _item_writer(kafka_type: str | None, flexible: bool) -> Writer:
    return _value_writer(_Kind(None, kafka_type, is_array=False, is_nullable=False), flexible)


def _compiled(source: str, name: str, names: dict[str, Any]) -> Any:
    namespace = dict(names)
    exec(compile(source, f"<{__name__}>", "exec"), namespace)
    return namespace[name]
