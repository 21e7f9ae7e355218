"""The records of the topic `_schemas`: JSON, in Confluent's form, so that its tools can read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dualwrite.broker_emulator.schema_registry.schemas import AVRO, Reference, Schema

SCHEMAS_TOPIC: Final = "_schemas"

SCHEMA: Final = "SCHEMA"
CONFIG: Final = "CONFIG"
MODE: Final = "MODE"
DELETE_SUBJECT: Final = "DELETE_SUBJECT"


class RegistryRecord(NamedTuple):
    """One change. A value of None is a tombstone."""

    key: Mapping[str, Any]
    value: Mapping[str, Any] | None

    def encoded(self) -> tuple[bytes, bytes | None]:
        """Return key and value as bytes."""
        return _encoded(self.key), None if self.value is None else _encoded(self.value)


def decoded(key: bytes, value: bytes | None) -> RegistryRecord:
    """Decode a record. Raises ValueError if key or value is not a JSON object."""
    record = RegistryRecord(json.loads(key), None if value is None else json.loads(value))
    if not isinstance(record.key, dict) or not isinstance(record.value, dict | None):
        raise ValueError("not a JSON object")
    return record


def schema_record(subject: str, version: int, schema_id: int, schema: Schema, *, deleted: bool) -> RegistryRecord:
    """Return the record of a version of a subject."""
    value: dict[str, Any] = {"subject": subject, "version": version, "id": schema_id}
    value |= described(schema)
    return RegistryRecord(_version_key(subject, version), {**value, "deleted": deleted})


def version_tombstone(subject: str, version: int) -> RegistryRecord:
    """Return the record that removes a version for good."""
    return RegistryRecord(_version_key(subject, version), None)


def config_record(subject: str | None, level: str | None) -> RegistryRecord:
    """Return the record that sets the level of a subject (None: the default), or without a level removes it."""
    value = None if level is None else {"subject": subject, "compatibilityLevel": level}
    return RegistryRecord({"keytype": CONFIG, "subject": subject, "magic": 0}, value)


def mode_record(subject: str | None, mode: str | None) -> RegistryRecord:
    """Return the record that sets the mode of a subject (None: the default), or without a mode removes it."""
    value = None if mode is None else {"subject": subject, "mode": mode}
    return RegistryRecord({"keytype": MODE, "subject": subject, "magic": 0}, value)


def subject_deletion(subject: str, version: int) -> RegistryRecord:
    """Return the record that marks every version up to this one as deleted."""
    return RegistryRecord(
        {"keytype": DELETE_SUBJECT, "subject": subject, "magic": 0}, {"subject": subject, "version": version}
    )


def described(schema: Schema) -> dict[str, Any]:
    """Return a schema in the form of records and responses, which omit `schemaType` for Avro."""
    described: dict[str, Any] = {} if schema.kind == AVRO else {"schemaType": schema.kind}
    if schema.references:
        described["references"] = [reference_described(each) for each in schema.references]
    return {**described, "schema": schema.text}


def reference_described(reference: Reference) -> dict[str, Any]:
    """Return a reference in its JSON form."""
    return {"name": reference.name, "subject": reference.subject, "version": reference.version}


def _version_key(subject: str, version: int) -> dict[str, Any]:
    return {"keytype": SCHEMA, "subject": subject, "version": version, "magic": 1}


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()
