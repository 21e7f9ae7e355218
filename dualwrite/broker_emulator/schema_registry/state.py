"""The registry's state, built from its records: subjects with their versions, levels of compatibility, and modes.

The records of the topic `_schemas` are JSON in Confluent's form, so that its tools can read them.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from dualwrite.broker_emulator.schema_registry.schemas import AVRO, KINDS, Reference, Schema

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


BACKWARD: Final = "BACKWARD"
NONE: Final = "NONE"
LEVELS: Final = (
    NONE,
    BACKWARD,
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
READWRITE: Final = "READWRITE"
READONLY: Final = "READONLY"
IMPORT: Final = "IMPORT"
MODES: Final = (READWRITE, READONLY, IMPORT)


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a subject; a deleted one still answers requests for its id."""

    number: int
    schema_id: int
    schema: Schema
    is_deleted: bool = False


@dataclass(slots=True)
class RegistryState:
    """Changed by `apply` alone."""

    stops: threading.Event = field(default_factory=threading.Event, compare=False)
    """Set when the registry stops, to abandon a long decision."""
    subjects: dict[str, dict[int, Version]] = field(default_factory=dict)
    levels: dict[str | None, str] = field(default_factory=dict)
    """By subject; None is the default of subjects without their own."""
    modes: dict[str | None, str] = field(default_factory=dict)
    schemas: dict[int, Schema] = field(default_factory=dict)
    ids: dict[Schema, int] = field(default_factory=dict)
    guids: dict[str, int] = field(default_factory=dict)
    highest_id: int = 0
    text_length: int = 0
    """Total length of all versions."""
    version_count: int = 0
    _uses: Counter[int] = field(default_factory=Counter)
    """Number of versions per id."""

    def apply(self, record: RegistryRecord) -> None:
        """Apply a change. Raises ValueError, KeyError or TypeError for an invalid record."""
        key, value = record
        subject = key["subject"]
        if subject is not None and not isinstance(subject, str):
            raise TypeError("the subject is not a text")
        kind = key["keytype"]
        if kind == SCHEMA:
            version = None if value is None else _version(value)
            self._set_version(_text(subject), _number(key["version"]), version)
        elif kind == DELETE_SUBJECT and value is not None:
            self._delete_up_to(_text(subject), _number(value["version"]))
        elif kind == CONFIG:
            _set(self.levels, subject, value and _one_of(value["compatibilityLevel"], LEVELS))
        elif kind == MODE:
            _set(self.modes, subject, value and _one_of(value["mode"], MODES))
        # others change nothing: NOOP, which Confluent's registry writes, and kinds of later releases

    def level(self, subject: str) -> str:
        """Return the level in force for a subject."""
        return self.levels.get(subject) or self.levels.get(None, BACKWARD)

    def mode(self, subject: str) -> str:
        """Return the mode in force for a subject."""
        return self.modes.get(subject) or self.modes.get(None, READWRITE)

    def versions(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """Return the versions of a subject in order, with deleted ones only on request."""
        known = self.subjects.get(subject, {})
        return [known[number] for number in sorted(known) if deleted or not known[number].is_deleted]

    def _set_version(self, subject: str, number: int, version: Version | None) -> None:
        before = self.subjects.get(subject, {}).pop(number, None)
        if version is not None:
            self.subjects.setdefault(subject, {})[number] = version
            self.text_length += len(version.schema.text)
            self.version_count += 1
            self._use_id(version.schema_id, version.schema)
        if before is not None:
            self.text_length -= len(before.schema.text)
            self.version_count -= 1
            self._leave_id(before)
        if not self.subjects.get(subject, True):
            del self.subjects[subject]

    def _use_id(self, schema_id: int, schema: Schema) -> None:
        self._uses[schema_id] += 1
        self.schemas[schema_id] = schema
        self.ids.setdefault(schema, schema_id)
        self.guids.setdefault(schema.guid, schema_id)
        self.highest_id = max(self.highest_id, schema_id)

    def _leave_id(self, removed: Version) -> None:
        schema_id, schema = removed.schema_id, removed.schema
        self._uses[schema_id] -= 1
        if self._uses[schema_id]:
            return
        del self._uses[schema_id], self.schemas[schema_id]
        if self.ids.get(schema) == schema_id:
            del self.ids[schema], self.guids[schema.guid]

    def _delete_up_to(self, subject: str, last: int) -> None:
        known = self.subjects.get(subject, {})
        for number, version in list(known.items()):
            if number <= last:
                known[number] = Version(number, version.schema_id, version.schema, is_deleted=True)


def _version(value: Any) -> Version:
    references = tuple(
        Reference(_text(each["name"]), _text(each["subject"]), _number(each["version"]))
        for each in value.get("references") or ()
    )
    kind = _one_of(value.get("schemaType") or AVRO, KINDS)
    schema = Schema(kind, _text(value["schema"]), references)
    return Version(_number(value["version"]), _number(value["id"]), schema, is_deleted=value.get("deleted") is True)


def _set(settings: dict[str | None, str], subject: str | None, value: Any) -> None:
    if value is None:
        settings.pop(subject, None)
    else:
        settings[subject] = value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        raise ValueError(f"{value!r} is not a number from 1 on")
    return value


def _one_of(value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{value!r} is none of {', '.join(known)}")
    return _text(value)
