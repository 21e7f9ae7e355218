"""Schemas of every kind: their stored form, reading and comparing them."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dualwrite.broker_emulator.schema_registry.avro_resolution import unreadable
from dualwrite.broker_emulator.schema_registry.avro_schema import AvroSchema, read_avro
from dualwrite.broker_emulator.schema_registry.errors import Effort, InvalidSchemaError, UndecidedError
from dualwrite.broker_emulator.schema_registry.json_schema import JsonSchema, compact, not_accepted, read_json_schema
from dualwrite.broker_emulator.schema_registry.protobuf_schema import incompatible, parse_protobuf, read_protobuf

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
KINDS: Final = (JSON, PROTOBUF, AVRO)


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another schema uses, under a name in the text of that schema."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema. Equal schemas have one id."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()

    @property
    def guid(self) -> str:
        """An id that is the same in every registry."""
        named = [(each.name, each.subject, each.version) for each in self.references]
        content = compact([self.kind, self.text, named]).encode("utf-8", "surrogatepass")
        return str(uuid.UUID(bytes=hashlib.md5(content, usedforsecurity=False).digest()))


Resolved = Sequence[Schema]
"""The schemas that a schema references, directly and indirectly, each before its use."""


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


@dataclass(frozen=True, slots=True)
class ParsedSchema:
    """A schema to compare with others, parsed once."""

    schema: Schema
    content: Any
    """An AvroType, a JsonSchema or a FileDescriptorProto."""


def parsed(schema: Schema, resolved: Resolved) -> ParsedSchema:
    """Parse a schema in its common form. Raises InvalidSchemaError."""
    if schema.kind == AVRO:
        return ParsedSchema(schema, _avro(schema, resolved).root)
    return ParsedSchema(schema, (JsonSchema.parsed if schema.kind == JSON else parse_protobuf)(schema.text))


def problems(reader: ParsedSchema, writer: ParsedSchema, effort: Effort) -> list[str]:
    """Return why one schema cannot read data of another. Raises UndecidedError and RegistryError."""
    effort.begin_pair()
    new, old = reader.schema, writer.schema
    if new.kind != old.kind:
        return [f"TYPE_CHANGED: from {old.kind} to {new.kind}"]
    if new.kind == AVRO:
        return unreadable(reader.content, writer.content, effort)
    if set(new.references) != set(old.references):
        raise UndecidedError("their references differ")
    if new.kind == JSON:
        return not_accepted(reader.content, writer.content, effort)
    return incompatible(reader.content, writer.content)


def ordered(schemas: Iterable[Schema]) -> Resolved:
    """Return the schemas in their order, without duplicates."""
    return list(dict.fromkeys(schemas))
