"""JSON in schemas: read with limits, written in one form, and compared as JSON Schema.

Decided is whether one schema accepts everything that another accepts, by the rules of Confluent's registry, for `type`,
`enum`, `properties`, `required`, `additionalProperties`, `items` (one schema), and the limits of numbers, lengths and
counts. Descriptions are ignored. Any other keyword is accepted only if both schemas have it with the same value; `$ref`
only if both schemas have the same definitions and it leads to one of them, to the schema itself or to another schema.
Everything else is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dualwrite.broker_emulator.schema_registry.errors import Effort, InvalidSchemaError, UndecidedError

_LONGEST_PART: Final = 80
_LONGEST_PATH: Final = 240
MAX_DEPTH: Final = 64
"""Maximum depth of types in a schema; deeper schemas are refused."""


def loads(text: str) -> Any:
    """Read JSON. Raises InvalidSchemaError if the text is not JSON, or nested too deep."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"the schema is not JSON: {error}") from None


def compact(value: Any, *, sort: bool = False) -> str:
    """Write JSON without white space. Raises InvalidSchemaError if it is nested too deep."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort)
    except RecursionError:
        raise InvalidSchemaError("the schema is nested too deep") from None


def same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON. Python's `==` is not enough: it says that `true` equals 1."""
    return one == other and compact(one, sort=True) == compact(other, sort=True)


def step(path: str, *parts: str) -> str:
    """Return the path of a part for messages, cut because names can be as long as a request."""
    return "/".join((path, *(part[:_LONGEST_PART] for part in parts)))[-_LONGEST_PATH:]


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:50]} is too large for a number")
    return number


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_EFFORT_OF_PLACE: Final = 4
_LENGTH_OF_EFFORT: Final = 250
"""Characters that take as long to compare as one Avro type."""

_DESCRIPTIONS: Final = frozenset(
    ("$schema", "$id", "id", "$comment", "title", "description", "default", "examples", "readOnly", "writeOnly")
)
_DEFINITIONS: Final = ("definitions", "$defs")
_INTO_DEFINITIONS: Final = tuple(f"#/{name}/" for name in _DEFINITIONS)
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_DYNAMIC: Final = ("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor")
_BASES: Final = ("$id", "id")
"""Base URIs of references; below the root, they change the meaning of the references beside them."""
_OBJECT: Final = ("properties", "required", "additionalProperties")
_LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_DECIDED: Final = frozenset(("type", "enum", "items", *_OBJECT, *_LOWER, *_UPPER))
_ENTANGLED: Final = frozenset(
    (
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "patternProperties",
        "unevaluatedProperties",
        "unevaluatedItems",
        "additionalItems",
        "prefixItems",
    )
)
"""Keywords whose meaning depends on other keywords or other places."""
_TYPES: Final = frozenset(("null", "boolean", "number", "string", "array", "object", "integer"))


def read_json_schema(text: str, *, normalize: bool = False) -> str:
    """Return the schema in its common form. Raises InvalidSchemaError."""
    schema = loads(text)
    if not isinstance(schema, dict | bool):
        raise InvalidSchemaError("a JSON schema is an object, or true or false")
    return compact(schema, sort=normalize)


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A schema to compare with others."""

    value: Any
    has_references: bool

    @classmethod
    def parsed(cls, text: str) -> JsonSchema:
        """Parse a schema in its common form."""
        return cls(loads(text), any(f'"{name}"' in text for name in _REFERENCES))


def not_accepted(reader: JsonSchema, writer: JsonSchema, effort: Effort) -> list[str]:
    """Return the values that `writer` accepts and `reader` does not; an empty list if there are none.

    Raises UndecidedError for comparisons that are not decided here.
    """
    new, old = reader.value, writer.value
    if same(new, old):
        return []
    has_references = reader.has_references or writer.has_references
    if has_references:
        is_base_same = all(same(_value_of(new, name), _value_of(old, name)) for name in _BASES)
        _check_references(new, is_base_same=is_base_same)
        _check_references(old, is_base_same=is_base_same)
    same_definitions = all(same(_value_of(new, name), _value_of(old, name)) for name in _DEFINITIONS)
    if has_references and not same_definitions:
        raise UndecidedError("they use $ref, and their definitions differ")
    return _Comparison(effort).problems(new, old, "#")


def _value_of(schema: Any, name: str) -> Any:
    return schema.get(name) if isinstance(schema, dict) else None


def _check_references(schema: Any, *, is_base_same: bool) -> None:
    """Raise UndecidedError unless each reference leads to a definition, to the schema itself, or to another schema."""
    todo = [(schema, True)]
    while todo:
        value, is_root = todo.pop()
        if isinstance(value, list):
            todo += [(each, False) for each in value]
        elif isinstance(value, dict):
            for name in _DYNAMIC if is_root else (*_DYNAMIC, *_BASES):
                if isinstance(value.get(name), str | bool):
                    raise UndecidedError(f"{name} changes the meaning of references")
            target = value.get("$ref")
            if isinstance(target, str) and not _is_clear(target, is_base_same=is_base_same):
                raise UndecidedError(f"the target of the $ref {target[:100]!r} is not compared")
            todo += [(each, False) for each in value.values()]


def _is_clear(target: str, *, is_base_same: bool) -> bool:
    if target.startswith("#"):
        return target == "#" or target.startswith(_INTO_DEFINITIONS)
    return is_base_same


class _Comparison:
    """One comparison: `new` must accept everything that `old` accepts."""

    def __init__(self, effort: Effort) -> None:
        self._effort = effort

    def problems(self, new: Any, old: Any, path: str) -> list[str]:
        texts = [compact(each, sort=True) for each in (new, old)]
        self._effort.spend(_EFFORT_OF_PLACE + sum(map(len, texts)) // _LENGTH_OF_EFFORT)
        if old is False or texts[0] == texts[1]:
            return []
        new, old = _as_object(new, path), _as_object(old, path)
        _check_undecided(new, old, path)
        types = _types(old, path)
        found = [*_type_problems(_types(new, path), types, path), *_enum_problems(new, old, path)]
        found += _limit_problems(new, old, path)
        if "object" in types:
            found += self._object_problems(new, old, path)
        if "array" in types and "items" in new:
            found += self.problems(new["items"], old.get("items", True), step(path, "items"))
        return found

    def _object_problems(self, new: Mapping[str, Any], old: Mapping[str, Any], path: str) -> list[str]:
        read, written = _properties(new, path), _properties(old, path)
        further_read, further_written = new.get("additionalProperties", True), old.get("additionalProperties", True)
        found = []
        for name, schema in read.items():
            where = step(path, "properties", name)
            if name in written:
                found += self.problems(schema, written[name], where)
            elif self.problems(schema, further_written, where):
                found.append(f"PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL at {where}: older data may have anything there")
        for name in written.keys() - read.keys():
            where = step(path, "properties", name)
            if self.problems(further_read, written[name], where):
                found.append(f"PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL at {where}: older data may have it")
        if self.problems(further_read, further_written, step(path, "additionalProperties")):
            found.append(f"ADDITIONAL_PROPERTIES_NARROWED at {path}: older data may have more properties")
        return found + _required_problems(new, old, read, path)


def _as_object(schema: Any, path: str) -> Mapping[str, Any]:
    if schema is True:
        return {}
    if schema is False:
        return {"type": []}
    if not isinstance(schema, dict):
        raise UndecidedError(f"{path} is neither an object nor true or false")
    return schema


def _check_undecided(new: Mapping[str, Any], old: Mapping[str, Any], path: str) -> None:
    for name in (new.keys() | old.keys()) - _DECIDED - _DESCRIPTIONS:
        if name in _DEFINITIONS and path == "#":
            continue
        differs = name not in new or name not in old or not same(new[name], old[name])
        if differs or name in _ENTANGLED:
            raise UndecidedError(f"they differ at {path}, where the keyword {name} is")


def _types(schema: Mapping[str, Any], path: str) -> frozenset[str]:
    given = schema.get("type", list(_TYPES))
    named = [given] if isinstance(given, str) else given
    if not isinstance(named, list) or not all(isinstance(name, str) and name in _TYPES for name in named):
        raise UndecidedError(f"the type at {path} is none of JSON Schema")
    return frozenset(named) | ({"integer"} if "number" in named else frozenset())


def _type_problems(new: frozenset[str], old: frozenset[str], path: str) -> list[str]:
    missing = sorted(old - new)
    return [f"TYPE_NARROWED at {path}: {', '.join(missing)} is no longer accepted"] if missing else []


def _enum_problems(new: Mapping[str, Any], old: Mapping[str, Any], path: str) -> list[str]:
    if "enum" not in new:
        return []
    if not isinstance(new["enum"], list) or not isinstance(old.get("enum", []), list):
        raise UndecidedError(f"the enum at {path} is not a list")
    if "enum" in old and {compact(each, sort=True) for each in old["enum"]} <= {
        compact(each, sort=True) for each in new["enum"]
    }:
        return []
    return [f"ENUM_ARRAY_NARROWED at {path}: values are no longer accepted"]


def _limit_problems(new: Mapping[str, Any], old: Mapping[str, Any], path: str) -> list[str]:
    found = []
    for name in (*_LOWER, *_UPPER):
        if name not in new or same(new[name], old.get(name)):
            continue
        limits = new[name], old.get(name)
        if not all(
            limit is None or (isinstance(limit, int | float) and not isinstance(limit, bool)) for limit in limits
        ):
            raise UndecidedError(f"{name} at {path} is not a number")
        if limits[1] is None or (limits[0] > limits[1]) == (name in _LOWER):
            found.append(f"{name} at {path}: {limits[0]} accepts less than before")
    return found


def _properties(schema: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise UndecidedError(f"the properties at {path} are not an object")
    return properties


def _required_problems(
    new: Mapping[str, Any], old: Mapping[str, Any], properties: Mapping[str, Any], path: str
) -> list[str]:
    before, after = _required(old, path), _required(new, path)
    added = [name for name in sorted(after - before) if not _has_default(properties.get(name))]
    return [f"REQUIRED_ATTRIBUTE_ADDED at {path}: {name} is required, and older data may lack it" for name in added]


def _required(schema: Mapping[str, Any], path: str) -> frozenset[str]:
    names = schema.get("required", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UndecidedError(f"required at {path} is not a list of names")
    return frozenset(names)


def _has_default(schema: Any) -> bool:
    return isinstance(schema, dict) and "default" in schema
