"""The registry's state, built from its records: subjects with their versions, levels of compatibility, and modes."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from dualwrite.broker_emulator.schema_registry import records
from dualwrite.broker_emulator.schema_registry.records import RegistryRecord
from dualwrite.broker_emulator.schema_registry.schemas import AVRO, KINDS, Reference, Schema

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
        match key["keytype"]:
            case records.SCHEMA:
                version = None if value is None else _version(value)
                self._set_version(_text(subject), _number(key["version"]), version)
            case records.DELETE_SUBJECT:
                if value is not None:
                    self._delete_up_to(_text(subject), _number(value["version"]))
            case records.CONFIG:
                _set(self.levels, subject, value and _one_of(value["compatibilityLevel"], LEVELS))
            case records.MODE:
                _set(self.modes, subject, value and _one_of(value["mode"], MODES))
            case _:  # NOOP, which Confluent's registry writes, and kinds of later releases
                return

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
