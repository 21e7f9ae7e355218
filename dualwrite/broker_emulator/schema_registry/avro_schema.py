"""Read Avro schemas (specification 1.12): check them, and write them in the canonical form of Avro's Java library.

Two texts that differ only in white space, in the order of attributes, or in how names are written, have the same form,
so they are one schema with one id.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dualwrite.broker_emulator.schema_registry.errors import TOO_LARGE, InvalidSchemaError, RegistryError
from dualwrite.broker_emulator.schema_registry.json_schema import MAX_DEPTH, compact, loads

PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
NAMED: Final = frozenset(("record", "enum", "fixed"))
KINDS: Final = PRIMITIVES | NAMED | {"array", "map", "union"}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FULL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
MAX_DEFAULT_VALUES: Final = 200_000

_ORDERS: Final = ("ascending", "descending", "ignore")
_ATTRIBUTES: Final = frozenset(
    ("type", "name", "namespace", "doc", "aliases", "fields", "symbols", "default", "size", "items", "values")
)
_FIELD_ATTRIBUTES: Final = frozenset(("name", "type", "doc", "default", "order", "aliases"))
_INT: Final = 2**31
_LONG: Final = 2**63


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    aliases: frozenset[str]
    has_default: bool


@dataclass(slots=True, eq=False)
class AvroType:
    """A type; `kind` determines which attributes apply."""

    kind: str
    """A primitive type, record, enum, fixed, array, map or union."""
    full_name: str = ""
    aliases: frozenset[str] = frozenset()
    """Full names."""
    fields: list[AvroField] = field(default_factory=list)
    symbols: frozenset[str] = frozenset()
    has_default: bool = False
    """Whether an enum has a default for symbols that it does not know."""
    size: int = 0
    items: AvroType | None = None
    """Of an array or a map."""
    branches: list[AvroType] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name without the namespace; of an unnamed type, its kind."""
        return self.full_name.rpartition(".")[2] or self.kind


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A schema, and its text in the common form."""

    root: AvroType
    text: str


def read_avro(text: str, referenced: Iterable[str] = (), *, normalize: bool = False) -> AvroSchema:
    """Read a schema that may use names defined by the `referenced` schemas. Raises InvalidSchemaError.

    `normalize` also sorts attributes unknown to Avro.
    """
    reader = _Reader(normalize)
    for other in referenced:
        reader.read(_parsed(other), "", 0)
    root, form = reader.read(_parsed(text), "", 0)
    values = _Values()
    for type_, default, where in reader.defaults:
        if not values.has(type_, default):
            raise InvalidSchemaError(f"the default of {where} is not a value of its type: {compact(default)[:100]}")
    return AvroSchema(root, compact(form))


def _parsed(text: str) -> Any:
    if _FULL_NAME.fullmatch(text.strip()):  # Avro's own parser also takes a bare name
        return text.strip()
    return loads(text)


class _Reader:
    """Reads a schema to its type and its form. `space` is the enclosing namespace."""

    def __init__(self, normalize: bool) -> None:
        self._normalize = normalize
        self._names: dict[str, AvroType] = {}
        self.defaults: list[tuple[AvroType, Any, str]] = []

    def read(self, schema: Any, space: str, depth: int) -> tuple[AvroType, Any]:
        if depth > MAX_DEPTH:
            raise InvalidSchemaError(f"the schema is nested more than {MAX_DEPTH} levels deep")
        if isinstance(schema, str):
            return self._by_name(schema, space)
        if isinstance(schema, list):
            return self._union(schema, space, depth)
        if not isinstance(schema, dict):
            raise InvalidSchemaError(f"a type is a name, an object or a list, not {compact(schema)[:100]}")
        kind = schema.get("type")
        if isinstance(kind, dict | list):  # {"type": {...}}: the same type with more braces
            return self.read(kind, space, depth + 1)
        if kind in NAMED:
            return self._named(schema, kind, space, depth)
        if kind in ("array", "map"):
            return self._container(schema, kind, space, depth)
        if not isinstance(kind, str):
            raise InvalidSchemaError(f"a type without a type: {compact(schema)[:100]}")
        type_, form = self._by_name(kind, space)
        properties = self._properties(schema, _ATTRIBUTES)
        return type_, {"type": form, **properties} if properties and kind in PRIMITIVES else form

    def _by_name(self, name: str, space: str) -> tuple[AvroType, str]:
        if name in PRIMITIVES:
            return AvroType(name), name
        found = self._names.get(name if "." in name or not space else f"{space}.{name}") or self._names.get(name)
        if found is None:
            raise InvalidSchemaError(f"there is no type {name[:200]!r}: define it before its use, or reference it")
        return found, _relative(found.full_name, space)

    def _union(self, schemas: list[Any], space: str, depth: int) -> tuple[AvroType, list[Any]]:
        read = [self.read(each, space, depth + 1) for each in schemas]
        branches = [type_ for type_, _ in read]
        if any(branch.kind == "union" for branch in branches):
            raise InvalidSchemaError("a union directly inside a union")
        names = [branch.full_name or branch.kind for branch in branches]
        if len(set(names)) < len(names):
            raise InvalidSchemaError(f"a union has {_twice(names)} twice")
        return AvroType("union", branches=branches), [form for _, form in read]

    def _container(self, schema: Mapping[str, Any], kind: str, space: str, depth: int) -> tuple[AvroType, Any]:
        attribute = "items" if kind == "array" else "values"
        if attribute not in schema:
            raise InvalidSchemaError(f"{kind} needs {attribute}")
        items, form = self.read(schema[attribute], space, depth + 1)
        properties = self._properties(schema, _ATTRIBUTES)
        return AvroType(kind, items=items), {"type": kind, attribute: form, **properties}

    def _named(self, schema: Mapping[str, Any], kind: str, space: str, depth: int) -> tuple[AvroType, Any]:
        full_name, own_space = _full_name(schema, space)
        if full_name in self._names:
            raise InvalidSchemaError(f"the type {full_name} is defined twice")
        if full_name in PRIMITIVES:
            raise InvalidSchemaError(f"{full_name} is the name of a primitive type")
        aliases = [
            alias if "." in alias or not own_space else f"{own_space}.{alias}"
            for alias in _names(schema.get("aliases", []), _FULL_NAME, f"the aliases of {full_name}")
        ]
        type_ = self._names[full_name] = AvroType(kind, full_name, frozenset(aliases))
        form: dict[str, Any] = {"type": kind, "name": full_name.rpartition(".")[2]}
        if own_space != space:
            form["namespace"] = own_space
        if "doc" in schema:
            form["doc"] = schema["doc"]
        if kind == "record":
            form["fields"] = self._fields(type_, schema.get("fields"), own_space, depth)
        elif kind == "enum":
            form |= _enum(type_, schema)
        else:
            form |= _fixed(type_, schema)
        known = _ATTRIBUTES if kind != "fixed" else _ATTRIBUTES - {"default"}
        form |= self._properties(schema, known)
        return type_, {**form, "aliases": [_relative(alias, own_space) for alias in aliases]} if aliases else form

    def _fields(self, record: AvroType, fields: Any, space: str, depth: int) -> list[Any]:
        if not isinstance(fields, list) or not all(isinstance(each, dict) for each in fields):
            raise InvalidSchemaError(f"the fields of {record.full_name} must be a list of objects")
        names = _names([each.get("name") for each in fields], _NAME, f"the names of the fields of {record.full_name}")
        forms = []
        for name, each in zip(names, fields, strict=True):
            where = f"{record.full_name}.{name}"
            if "type" not in each:
                raise InvalidSchemaError(f"the field {where} has no type")
            type_, form = self.read(each["type"], space, depth + 1)
            forms.append(self._field_form(each, name, form, where))
            aliases = frozenset(_names(each.get("aliases", []), _NAME, f"the aliases of {where}"))
            record.fields.append(AvroField(name, type_, aliases, "default" in each))
            if "default" in each:
                self.defaults.append((type_, each["default"], where))
        return forms

    def _field_form(self, given: Mapping[str, Any], name: str, type_form: Any, where: str) -> dict[str, Any]:
        form = {"name": name, "type": type_form}
        form |= {known: given[known] for known in ("doc", "default") if known in given}
        order = given.get("order", _ORDERS[0])
        if order not in _ORDERS:
            raise InvalidSchemaError(f"the order of {where} must be one of {', '.join(_ORDERS)}")
        if order != _ORDERS[0]:
            form["order"] = order
        if given.get("aliases"):
            form["aliases"] = given["aliases"]
        return form | self._properties(given, _FIELD_ATTRIBUTES)

    def _properties(self, schema: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
        """Return the attributes that Avro keeps without interpreting them, such as logicalType."""
        names = [name for name in schema if name not in known]
        return {name: schema[name] for name in (sorted(names) if self._normalize else names)}


def _full_name(schema: Mapping[str, Any], space: str) -> tuple[str, str]:
    """Return the full name and the namespace."""
    name, namespace = schema.get("name"), schema.get("namespace", space)
    if not isinstance(name, str) or not isinstance(namespace, str | None):
        raise InvalidSchemaError(f"a {schema.get('type')} needs a name: {compact(schema)[:100]}")
    full_name = name if "." in name or not namespace else f"{namespace}.{name}"
    if not _FULL_NAME.fullmatch(full_name):
        raise InvalidSchemaError(f"{full_name[:200]!r} is not a name: letters, digits and _, with dots between")
    return full_name, full_name.rpartition(".")[0]


def _relative(full_name: str, space: str) -> str:
    """Return a name as written in a namespace: in full if its namespace differs or it clashes with a kind of type."""
    own_space, _, short = full_name.rpartition(".")
    return short if own_space == space and short not in KINDS else full_name


def _names(given: Any, form: re.Pattern[str], what: str) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(name, str) and form.fullmatch(name) for name in given):
        raise InvalidSchemaError(f"{what} must be a list of names of letters, digits and _")
    if len(set(given)) < len(given):
        raise InvalidSchemaError(f"{what}: {_twice(given)} occurs twice")
    return given


def _twice(names: list[str]) -> str:
    return Counter(names).most_common(1)[0][0]


def _enum(type_: AvroType, schema: Mapping[str, Any]) -> dict[str, Any]:
    symbols = _names(schema.get("symbols"), _NAME, f"the symbols of {type_.full_name}")
    type_.symbols = frozenset(symbols)
    form: dict[str, Any] = {"symbols": symbols}
    if "default" in schema:
        if not isinstance(schema["default"], str) or schema["default"] not in type_.symbols:
            raise InvalidSchemaError(f"the default of {type_.full_name} is not one of its symbols")
        type_.has_default = True
        form["default"] = schema["default"]
    return form


def _fixed(type_: AvroType, schema: Mapping[str, Any]) -> dict[str, Any]:
    size = schema.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < _INT:
        raise InvalidSchemaError(f"the size of {type_.full_name} must be a whole number of bytes")
    type_.size = size
    return {"size": size}


class _Values:
    """Checks whether JSON is a valid default of a type.

    Refuses defaults that take too long to check, such as a list of values of a long union.
    """

    def __init__(self) -> None:
        self._count = 0

    def has(self, type_: AvroType, value: Any) -> bool:
        self._count += 1
        if self._count > MAX_DEFAULT_VALUES:
            raise RegistryError(
                TOO_LARGE, f"the defaults are too large: more than {MAX_DEFAULT_VALUES} values to check"
            )
        match type_.kind:
            case "union":  # any branch may match (1.12)
                return any(self.has(branch, value) for branch in type_.branches)
            case "array":
                return isinstance(value, list) and self._all(type_, value)
            case "map":
                return isinstance(value, dict) and self._all(type_, value.values())
            case "record":
                return isinstance(value, dict) and all(
                    self.has(each.type, value[each.name]) if each.name in value else each.has_default
                    for each in type_.fields
                )
            case "enum":
                return isinstance(value, str) and value in type_.symbols
            case "fixed":
                return _is_bytes(value) and len(value) == type_.size
        return _is_primitive(type_.kind, value)

    def _all(self, container: AvroType, values: Iterable[Any]) -> bool:
        assert container.items is not None
        return all(self.has(container.items, each) for each in values)


def _is_primitive(kind: str, value: Any) -> bool:
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "bytes":
            return _is_bytes(value)
        case "float" | "double":
            return isinstance(value, int | float) and not isinstance(value, bool)
    limit = _INT if kind == "int" else _LONG
    return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit


def _is_bytes(value: Any) -> bool:
    return isinstance(value, str) and all(ord(unit) < 256 for unit in value)
