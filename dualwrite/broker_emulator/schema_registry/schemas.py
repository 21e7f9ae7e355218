"""Schemas of every kind: what is stored of them, reading and comparing them."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dualwrite.broker_emulator.schema_registry.avro_resolution import unreadable
from dualwrite.broker_emulator.schema_registry.avro_schema import AvroSchema, read_avro
from dualwrite.broker_emulator.schema_registry.errors import InvalidSchemaError, UndecidedError
from dualwrite.broker_emulator.schema_registry.json_schema import not_accepted, read_json_schema
from dualwrite.broker_emulator.schema_registry.json_text import compact
from dualwrite.broker_emulator.schema_registry.protobuf_schema import incompatible, read_protobuf

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
KINDS: Final = (JSON, PROTOBUF, AVRO)


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one uses, by a name that its text has."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema. Equal ones have one id."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()

    @property
    def guid(self) -> str:
        """The same in every registry."""
        named = [(each.name, each.subject, each.version) for each in self.references]
        content = compact([self.kind, self.text, named]).encode("utf-8", "surrogatepass")
        return str(uuid.UUID(bytes=hashlib.md5(content, usedforsecurity=False).digest()))


Resolved = Sequence[Schema]
"""What a schema refers to, and what that refers to, in an order in which everything comes before its use."""


def in_common_form(schema: Schema, resolved: Resolved, *, normalize: bool) -> Schema:
    """Return the schema as it is stored. Raises InvalidSchemaError."""
    if schema.kind == AVRO:
        text = _avro(schema, resolved, normalize=normalize).text
    elif schema.kind == JSON:
        text = read_json_schema(schema.text, normalize=normalize)
    else:
        text = read_protobuf(schema.text, [each.name for each in schema.references])
    return Schema(schema.kind, text, schema.references)


def _avro(schema: Schema, resolved: Resolved, *, normalize: bool = False) -> AvroSchema:
    other = next((each for each in resolved if each.kind != AVRO), None)
    if other is not None:
        raise InvalidSchemaError(f"an AVRO schema refers to one of the kind {other.kind}")
    return read_avro(schema.text, (each.text for each in resolved), normalize=normalize)


def problems(reader: tuple[Schema, Resolved], writer: tuple[Schema, Resolved]) -> list[str]:
    """Return what keeps one schema from reading data of another one. Raises UndecidedError."""
    new, old = reader[0], writer[0]
    if new.kind != old.kind:
        return [f"TYPE_CHANGED: from {old.kind} to {new.kind}"]
    if new.kind == AVRO:
        return unreadable(_avro(*reader).root, _avro(*writer).root)
    if set(new.references) != set(old.references):
        raise UndecidedError("their references differ")
    return (not_accepted if new.kind == JSON else incompatible)(new.text, old.text)


def ordered(schemas: Iterable[Schema]) -> Resolved:
    """Return the schemas, each once, in their order."""
    return list(dict.fromkeys(schemas))
