"""JSON defined by dataclasses: read strictly, written, and described as JSON Schema, all from the same annotations.

A field's annotation may be `str`, `int`, `bool`, `float`, `Any`, an enumeration, a `Literal`, a union, a tuple, a
mapping, or another dataclass. The dataclasses of a union are distinguished by their field `type`, a `Literal`.
`Annotated` adds a description, `AtLeast` or `AtMost`. A field without a default is required.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from dualwrite.broker_emulator.text import did_you_mean

TAG = "type"
"""The field that distinguishes the dataclasses of a union."""

_SCALARS: Mapping[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The least valid number."""

    least: int


@dataclass(frozen=True, slots=True)
class AtMost:
    """The greatest valid number."""

    greatest: int


class ShapeError(Exception):
    """A value does not have the required shape; the message names its place."""

    def __init__(self, message: str, known: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.known = tuple(known)


@cache
def field_kinds(shape: type) -> dict[str, Any]:
    """Return the annotation of each field of a dataclass."""
    hints = get_type_hints(shape, include_extras=True)
    return {field.name: hints[field.name] for field in fields(shape)}


@cache
def required(shape: type) -> tuple[str, ...]:
    """Return the fields of a dataclass that have no default."""
    return tuple(field.name for field in fields(shape) if field.default is MISSING and field.default_factory is MISSING)


# reading


def read(kind: Any, value: Any, where: str = "") -> Any:
    """Convert `value`, a result of `json.loads`, to the annotation `kind`. Raises ShapeError if it does not fit."""
    kind, notes = _unwrapped(kind)
    if kind is Any:
        return value
    if isinstance(kind, type) and is_dataclass(kind):
        return _read_object(kind, value, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _read_choice(kind, [member.value for member in kind], value, where)
    origin = get_origin(kind)
    if origin is Literal:
        return _read_choice(lambda chosen: chosen, list(get_args(kind)), value, where)
    if origin in (Union, types.UnionType):
        return _read_union(kind, value, where)
    if origin is tuple:
        return _read_list(get_args(kind)[0], value, where)
    if origin is dict:
        return _read_mapping(get_args(kind)[1], value, where)
    return _read_scalar(kind, notes, value, where)


def read_texts(shape: type, texts: Mapping[str, str], where: str) -> Any:
    """Build a dataclass from the texts of a path or a query. Raises ShapeError."""
    return _read_object(shape, {name: _from_text(shape, name, text) for name, text in texts.items()}, where)


def _from_text(shape: type, name: str, text: str) -> Any:
    accepted = _alternatives(field_kinds(shape).get(name, str))
    if bool in accepted and text in ("true", "false"):
        return text == "true"
    if int in accepted and text.isascii() and text.removeprefix("-").isdecimal() and len(text) < 20:
        return int(text)
    return text


def _alternatives(kind: Any) -> tuple[Any, ...]:
    kind, _ = _unwrapped(kind)
    is_union = get_origin(kind) in (Union, types.UnionType)
    return tuple(_unwrapped(each)[0] for each in get_args(kind)) if is_union else (kind,)


def _unwrapped(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(kind) is Annotated:
        base, *notes = get_args(kind)
        return base, tuple(notes)
    return kind, ()


def _read_object(shape: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ShapeError(
            f"{where or 'the body'} must be an object with {_listed(field_kinds(shape))}, not {_shown(value)}"
        )
    kinds = field_kinds(shape)
    for name in value:
        if name not in kinds:
            problem = f"{_at(where, name)!r} is not known{did_you_mean(name, kinds)}"
            raise ShapeError(problem, list(kinds))
    for name in required(shape):
        if name not in value:
            raise ShapeError(f"{_at(where, name)!r} is missing", list(kinds))
    return shape(**{name: read(kinds[name], given, _at(where, name)) for name, given in value.items()})


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _read_choice(kind: Any, choices: list[Any], value: Any, where: str) -> Any:
    if value not in choices or isinstance(value, bool):
        listed = [str(choice) for choice in choices]
        hint = did_you_mean(value, listed) if isinstance(value, str) else ""
        raise ShapeError(f"{where!r} must be one of {', '.join(listed)}, not {_shown(value)}{hint}", listed)
    return kind(value)


def _read_union(kind: Any, value: Any, where: str) -> Any:
    alternatives = _alternatives(kind)
    if value is None and type(None) in alternatives:
        return None
    shapes = [each for each in alternatives if is_dataclass(each)]
    if len(shapes) > 1:
        return _read_tagged(shapes, value, where)
    if shapes:
        return _read_object(shapes[0], value, where)  # type: ignore[arg-type]  # is_dataclass takes instances too
    others = [each for each in get_args(kind) if each is not type(None)]
    if len(others) == 1:
        return read(others[0], value, where)
    for other in others:
        try:
            return read(other, value, where)
        except ShapeError:
            continue
    names = " or ".join(_SCALARS.get(_unwrapped(other)[0], str(other)) for other in others)
    raise ShapeError(f"{where!r} must be of type {names}, not {_shown(value)}")


def _read_tagged(shapes: Sequence[Any], value: Any, where: str) -> Any:
    by_tag = {tag_of(shape): shape for shape in shapes}
    if not isinstance(value, dict) or not isinstance(value.get(TAG), str):
        raise ShapeError(f"{where!r} must be an object with a {TAG!r}, not {_shown(value)}", list(by_tag))
    shape = by_tag.get(value[TAG])
    if shape is None:
        hint = did_you_mean(value[TAG], by_tag)
        raise ShapeError(f"{_at(where, TAG)!r} is not known: {_shown(value[TAG])}{hint}", list(by_tag))
    return _read_object(shape, value, where)


def tag_of(shape: Any) -> str:
    """Return the value of the field `type` of a dataclass."""
    (tag,) = get_args(_unwrapped(field_kinds(shape)[TAG])[0])
    return str(tag)


def _read_list(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, list):
        raise ShapeError(f"{where!r} must be a list, not {_shown(value)}")
    return tuple(read(kind, element, f"{where}[{index}]") for index, element in enumerate(value))


def _read_mapping(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ShapeError(f"{where!r} must be an object, not {_shown(value)}")
    return {name: read(kind, element, _at(where, name)) for name, element in value.items()}


def _read_scalar(kind: Any, notes: tuple[Any, ...], value: Any, where: str) -> Any:
    is_right = type(value) is kind or (kind is float and type(value) is int)
    if not is_right:
        raise ShapeError(f"{where!r} must be of type {_SCALARS[kind]}, not {_shown(value)}")
    for note in notes:
        if isinstance(note, AtLeast) and value < note.least:
            raise ShapeError(f"{where!r} must be at least {note.least}, not {value}")
        if isinstance(note, AtMost) and value > note.greatest:
            raise ShapeError(f"{where!r} must be at most {note.greatest}, not {value}")
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(names) or "no fields"


# writing


@cache
def _names(shape: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(shape))


_MANY: Final = 100


def is_long(value: Any) -> bool:
    """Return whether a dataclass has so many elements that writing it takes long."""
    if not is_dataclass(value):
        return False
    parts = [getattr(value, name) for name in _names(value.__class__)]
    return any(len(part) > _MANY if isinstance(part, tuple | list | dict) else is_long(part) for part in parts)


def write(value: Any) -> Any:
    """Convert `value` for `json.dumps`."""
    if value.__class__ in _SCALARS:
        return value
    if is_dataclass(value):
        return {name: write(getattr(value, name)) for name in _names(value.__class__)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(name): write(element) for name, element in value.items()}
    if isinstance(value, tuple | list):
        return [write(element) for element in value]
    return value


# describing


def schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of `kind`, and add the schemas of its dataclasses to `definitions`."""
    kind, notes = _unwrapped(kind)
    described = {**_schema_of(kind, definitions)}
    for note in notes:
        match note:
            case str():
                described["description"] = note
            case AtLeast():
                described["minimum"] = note.least
            case AtMost():
                described["maximum"] = note.greatest
    return described


def _schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind is Any:
        return {}
    if is_dataclass(kind):
        return _reference(kind, definitions)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": "string", "enum": [member.value for member in kind]}
    origin = get_origin(kind)
    if origin is Literal:
        choices = list(get_args(kind))
        return {"type": "string", **({"const": choices[0]} if len(choices) == 1 else {"enum": choices})}
    if origin in (Union, types.UnionType):
        return _schema_of_union(kind, definitions)
    if origin is tuple:
        return {"type": "array", "items": schema(get_args(kind)[0], definitions)}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema(get_args(kind)[1], definitions)}
    return {"type": _SCALARS[kind]}


def _schema_of_union(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    alternatives = get_args(kind)
    shapes = [each for each in _alternatives(kind) if is_dataclass(each)]
    described: dict[str, Any] = {"anyOf": [schema(each, definitions) for each in alternatives]}
    if len(shapes) > 1:
        mapping = {tag_of(shape): schema(shape, definitions)["$ref"] for shape in shapes}
        described["discriminator"] = {"propertyName": TAG, "mapping": mapping}
    return described


def _reference(shape: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    name = shape.__name__
    if name not in definitions:
        definitions[name] = {}  # it may refer to itself
        described: dict[str, Any] = {"type": "object", "additionalProperties": False}
        if shape.__doc__:
            described["description"] = " ".join(shape.__doc__.split())
        defaults = {field.name: field.default for field in fields(shape) if field.default is not MISSING}
        described["properties"] = {
            field: {**schema(kind, definitions), **({"default": write(defaults[field])} if field in defaults else {})}
            for field, kind in field_kinds(shape).items()
        }
        described["required"] = list(required(shape))
        definitions[name] = described
    return {"$ref": f"#/components/schemas/{name}"}


T = TypeVar("T")

Limit: TypeAlias = Annotated[int, AtLeast(1), AtMost(10_000), "The most elements that are returned."]


def first(elements: Iterable[T], limit: int) -> tuple[list[T], int]:
    """Return at most `limit` elements, and the total number.

    Lists are cut so that no request keeps the event loop from serving clients.
    """
    shown: list[T] = []
    total = 0
    for element in elements:
        total += 1
        if total <= limit:
            shown.append(element)
    return shown, total
