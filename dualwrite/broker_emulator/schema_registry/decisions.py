"""Decide the changes of a request: pure functions of the state that return the records to write and the response.

They may take long over large schemas; the state must not change meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dualwrite.broker_emulator.schema_registry import errors
from dualwrite.broker_emulator.schema_registry.errors import Effort, InvalidSchemaError, RegistryError
from dualwrite.broker_emulator.schema_registry.schemas import Resolved, Schema, in_common_form, parsed, problems
from dualwrite.broker_emulator.schema_registry.state import (
    BACKWARD,
    IMPORT,
    LEVELS,
    MODES,
    NONE,
    READONLY,
    READWRITE,
    RegistryRecord,
    RegistryState,
    Version,
    config_record,
    described,
    mode_record,
    schema_record,
    subject_deletion,
    version_tombstone,
)

MAX_VERSIONS: Final = 10_000
MAX_TEXT_LENGTH: Final = 64 << 20
MAX_RESOLVED: Final = 1_000
MAX_COMPARED_TEXT: Final = 16 << 20
"""Total characters of the versions that one new schema is compared with."""
MAX_SUBJECT_LENGTH: Final = 500
_MAX_NUMBER: Final = 2**31 - 1


class Decision(NamedTuple):
    """The records to write, in order, and the response's body."""

    records: Sequence[RegistryRecord]
    body: Any


@dataclass(frozen=True, slots=True)
class Proposed:
    """A schema as a client sends it. `version` and `schema_id` are only for the mode IMPORT."""

    schema: Schema
    version: int | None = None
    schema_id: int | None = None


def check_subject(subject: str) -> None:
    """Raise RegistryError for an invalid subject name."""
    if subject.startswith(":."):
        raise RegistryError(
            errors.INVALID_SUBJECT, f"{subject[:100]!r} is in a context, and this registry has only one"
        )
    if subject in ("__GLOBAL", "__EMPTY") or not subject.isprintable() or len(subject) > MAX_SUBJECT_LENGTH:
        message = (
            f"The specified subject {subject[:100]!r} is not valid: 1 to {MAX_SUBJECT_LENGTH} printable characters"
        )
        raise RegistryError(errors.INVALID_SUBJECT, message)


# ---- schemas ----------------------------------------------------------------------------------------------------


def register(state: RegistryState, subject: str, proposed: Proposed, *, normalize: bool) -> Decision:
    """Register a schema as the next version, unless the subject already has it."""
    check_subject(subject)
    _check_writable(state, subject)
    schema, resolved = _read(state, proposed.schema, normalize=normalize)
    if state.mode(subject) == IMPORT:
        return _imported(state, subject, schema, proposed)
    known = state.versions(subject)
    same = next((each for each in reversed(known) if each.schema == schema), None)
    if proposed.schema_id is not None and (same is None or same.schema_id != proposed.schema_id):
        raise RegistryError(
            errors.NOT_PERMITTED,
            f"Subject {subject} is not in import mode, so the id {proposed.schema_id} cannot be set",
        )
    if same is not None:
        return Decision((), _registered(same))
    found = _problems(state, (schema, resolved), known, state.level(subject))
    if found:
        raise RegistryError(
            errors.INCOMPATIBLE_SCHEMA,
            "Schema being registered is incompatible with an earlier schema for subject "
            f'"{subject}", by its compatibility {state.level(subject)}; nothing was registered: '
            f"{'; '.join(found[:10])}",
        )
    number = 1 + max((each.number for each in state.versions(subject, deleted=True)), default=0)
    if proposed.version not in (None, number):
        raise RegistryError(errors.INVALID_VERSION, f"Version {proposed.version} is not the next one, {number}")
    return _new_version(state, subject, number, state.ids.get(schema, state.highest_id + 1), schema)


def look_up(state: RegistryState, subject: str, schema: Schema, *, normalize: bool, deleted: bool) -> Decision:
    """Return the version of a subject that has this schema."""
    known = _known(state, subject, deleted=deleted)
    schema, _ = _read(state, schema, normalize=normalize)
    same = next((each for each in reversed(known) if each.schema == schema), None)
    if same is None:
        raise RegistryError(errors.SCHEMA_NOT_FOUND, "Schema not found")
    return Decision((), {"subject": subject, **_registered(same)})


def check(
    state: RegistryState, subject: str, version: str | None, schema: Schema, *, normalize: bool, verbose: bool
) -> Decision:
    """Check whether a schema could be registered after one version, or after the versions that the level names."""
    known = state.versions(subject)
    if version is not None and (known or version != "latest"):
        known = [find_version(state, subject, version)]
    read = _read(state, schema, normalize=normalize)
    found = _problems(state, read, known, state.level(subject), only_latest=version is not None)
    body: dict[str, Any] = {"is_compatible": not found}
    return Decision((), {**body, "messages": found[:100]} if verbose else body)


def _read(state: RegistryState, schema: Schema, *, normalize: bool) -> tuple[Schema, Resolved]:
    resolved = resolve(state, schema)
    return in_common_form(schema, resolved, normalize=normalize), resolved


def resolve(state: RegistryState, schema: Schema) -> Resolved:
    """Return all schemas that a schema references, even indirectly, each before its use. Raises InvalidSchemaError."""
    resolved: dict[Schema, None] = {}
    steps: list[tuple[Schema, bool]] = [(schema, False)]
    while steps:
        each, is_complete = steps.pop()
        if is_complete:
            resolved[each] = None
            continue
        if each is not schema:
            steps.append((each, True))
        for reference in reversed(each.references):
            version = state.subjects.get(reference.subject, {}).get(reference.version)
            if version is None:
                raise InvalidSchemaError(
                    f'No schema reference found for subject "{reference.subject}" and version {reference.version}'
                )
            if version.schema not in resolved:
                steps.append((version.schema, False))
        if len(resolved) + len(steps) > MAX_RESOLVED:
            raise RegistryError(errors.TOO_LARGE, f"the schema refers to more than {MAX_RESOLVED} others")
    return list(resolved)


def _problems(
    state: RegistryState,
    new: tuple[Schema, Resolved],
    known: Sequence[Version],
    level: str,
    *,
    only_latest: bool = False,
) -> list[str]:
    """Return the ways in which a new schema breaks a level of compatibility with the known versions."""
    if level == NONE or not known:
        return []
    direction, _, transitive = level.partition("_")
    compared = known if transitive and not only_latest else known[-1:]
    found: list[str] = []
    new_parsed = parsed(*new)
    left, effort = MAX_COMPARED_TEXT, Effort()
    for version in reversed(compared):
        if state.stops.is_set():
            raise RegistryError(errors.STORE_FAILED, "the registry stops; nothing was changed")
        referenced = resolve(state, version.schema)
        left -= len(version.schema.text) + sum(len(each.text) for each in referenced)
        if left < 0:
            raise RegistryError(
                errors.TOO_LARGE,
                f"the earlier versions have more than {MAX_COMPARED_TEXT} characters to compare with; nothing was "
                "registered: delete versions, or set a compatibility of the subject that is not transitive",
            )
        old = parsed(version.schema, referenced)
        if direction in ("BACKWARD", "FULL"):
            found += [f"version {version.number} cannot be read: {each}" for each in problems(new_parsed, old, effort)]
        if direction in ("FORWARD", "FULL"):
            found += [f"version {version.number} cannot read it: {each}" for each in problems(old, new_parsed, effort)]
    return found


def _imported(state: RegistryState, subject: str, schema: Schema, proposed: Proposed) -> Decision:
    schema_id = proposed.schema_id
    if schema_id is None or not 0 < schema_id <= _MAX_NUMBER:
        raise RegistryError(
            errors.NOT_PERMITTED, f"Subject {subject} is in import mode, where each schema needs its id"
        )
    if state.schemas.get(schema_id, schema) != schema:
        raise RegistryError(errors.NOT_PERMITTED, f"Overwrite new schema with id {schema_id} is not permitted.")
    known = state.versions(subject, deleted=True)
    number = proposed.version or 1 + max((each.number for each in known), default=0)
    if not 0 < number <= _MAX_NUMBER:
        raise RegistryError(errors.INVALID_VERSION, f"Version {number} is not a version")
    same = next((each for each in known if each.number == number), None)
    if same is not None and same.schema != schema:
        raise RegistryError(errors.NOT_PERMITTED, f"Version {number} of {subject} is already another schema")
    return _new_version(state, subject, number, schema_id, schema)


def _new_version(state: RegistryState, subject: str, number: int, schema_id: int, schema: Schema) -> Decision:
    if state.version_count >= MAX_VERSIONS or state.text_length + len(schema.text) > MAX_TEXT_LENGTH:
        raise RegistryError(
            errors.TOO_LARGE,
            f"the registry is full: it keeps {MAX_VERSIONS} versions and {MAX_TEXT_LENGTH} characters; nothing was "
            "registered: delete versions for good",
        )
    record = schema_record(subject, number, schema_id, schema, deleted=False)
    return Decision((record,), _registered(Version(number, schema_id, schema)))


def _registered(version: Version) -> dict[str, Any]:
    schema = version.schema
    return {"id": version.schema_id, "version": version.number, "guid": schema.guid, **described(schema)}


# ---- deletion ---------------------------------------------------------------------------------------------------


def delete_subject(state: RegistryState, subject: str, *, permanent: bool) -> Decision:
    """Mark every version of a subject as deleted, or remove them for good once they are marked."""
    _check_writable(state, subject)
    every, living = _known(state, subject, deleted=True), state.versions(subject)
    if permanent and living:
        message = f"Subject '{subject}' was not deleted first before being permanently deleted"
        raise RegistryError(errors.SUBJECT_NOT_SOFT_DELETED, message)
    if not permanent and not living:
        message = f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
        raise RegistryError(errors.SUBJECT_SOFT_DELETED, message)
    deleted = every if permanent else living
    _check_unreferenced(state, subject, {each.number for each in deleted})
    body = [each.number for each in deleted]
    if permanent:
        return Decision([version_tombstone(subject, number) for number in body], body)
    records = [subject_deletion(subject, body[-1])]
    records += [config_record(subject, None)] if subject in state.levels else []
    records += [mode_record(subject, None)] if subject in state.modes else []
    return Decision(records, body)


def delete_version(state: RegistryState, subject: str, version: str, *, permanent: bool) -> Decision:
    """Mark one version as deleted, or remove it for good once it is marked."""
    _check_writable(state, subject)
    found = find_version(state, subject, version, deleted=True)
    if permanent and not found.is_deleted:
        message = f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted"
        raise RegistryError(errors.VERSION_NOT_SOFT_DELETED, message)
    if not permanent and found.is_deleted:
        message = f"Subject '{subject}' Version {version} was soft deleted. Set permanent=true to delete permanently"
        raise RegistryError(errors.VERSION_SOFT_DELETED, message)
    _check_unreferenced(state, subject, {found.number})
    if permanent:
        return Decision((version_tombstone(subject, found.number),), found.number)
    record = schema_record(subject, found.number, found.schema_id, found.schema, deleted=True)
    return Decision((record,), found.number)


def referencing(state: RegistryState, subject: str, numbers: set[int]) -> list[int]:
    """Return the ids of the schemas that reference one of these versions, without deleted ones."""
    return sorted(
        {
            version.schema_id
            for known in state.subjects.values()
            for version in known.values()
            if not version.is_deleted
            and any(each.subject == subject and each.version in numbers for each in version.schema.references)
        }
    )


def _check_unreferenced(state: RegistryState, subject: str, numbers: set[int]) -> None:
    ids = referencing(state, subject, numbers)
    if ids:
        raise RegistryError(
            errors.REFERENCE_EXISTS, f"One or more references exist to {subject}, in the schemas {ids[:10]}"
        )


# ---- levels and modes -------------------------------------------------------------------------------------------


def set_level(subject: str | None, level: Any) -> Decision:
    """Set the compatibility level of a subject, or the default level."""
    name = level.upper() if isinstance(level, str) else ""
    if name not in LEVELS:
        message = f"Invalid compatibility level {level!r:.100}. Valid values are {', '.join(LEVELS)}"
        raise RegistryError(errors.INVALID_LEVEL, message)
    if subject is not None:
        check_subject(subject)
    return Decision((config_record(subject, name),), {"compatibility": name})


def reset_level(state: RegistryState, subject: str | None) -> Decision:
    """Remove the compatibility level of a subject, or the default level; return the removed value."""
    if subject is not None and subject not in state.levels:
        message = f"Subject '{subject}' does not have subject-level compatibility configured"
        raise RegistryError(errors.NO_SUBJECT_LEVEL, message)
    before = state.levels.get(subject, BACKWARD)
    return Decision((config_record(subject, None),), {"compatibilityLevel": before})


def set_mode(state: RegistryState, subject: str | None, mode: Any, *, force: bool) -> Decision:
    """Set the mode of a subject, or the default mode."""
    name = mode.upper() if isinstance(mode, str) else ""
    if name not in MODES:
        message = f"Invalid mode {mode!r:.100}. Valid values are {', '.join(MODES)}"
        raise RegistryError(errors.INVALID_MODE, message)
    if subject is not None:
        check_subject(subject)
    before = state.mode(subject) if subject is not None else state.modes.get(None, READWRITE)
    has_schemas = state.versions(subject) if subject is not None else any(map(state.versions, state.subjects))
    if name == IMPORT and before != IMPORT and not force and has_schemas:
        raise RegistryError(
            errors.NOT_PERMITTED, "Cannot import since found existing subjects; force=true does it anyway"
        )
    return Decision((mode_record(subject, name),), {"mode": name})


def reset_mode(state: RegistryState, subject: str | None) -> Decision:
    """Remove the mode of a subject, or the default mode; return the removed value."""
    if subject is not None and subject not in state.modes:
        message = f"Subject '{subject}' does not have subject-level mode configured"
        raise RegistryError(errors.NO_SUBJECT_MODE, message)
    before = state.modes.get(subject, READWRITE)
    return Decision((mode_record(subject, None),), {"mode": before})


def _check_writable(state: RegistryState, subject: str) -> None:
    if state.mode(subject) == READONLY:
        raise RegistryError(errors.NOT_PERMITTED, f"Subject {subject} is in read-only mode; nothing was changed")


# ---- look-ups ---------------------------------------------------------------------------------------------------


def find_version(state: RegistryState, subject: str, version: str, *, deleted: bool = False) -> Version:
    """Return a version by its number, "latest" or -1."""
    if version in ("latest", "-1"):
        return (state.versions(subject) or _known(state, subject, deleted=deleted))[-1]
    if not (version.isascii() and version.isdecimal() and len(version) < 11 and 0 < int(version) <= _MAX_NUMBER):
        message = f"The specified version '{version[:50]}' is not a valid version id: a number from 1 on, or \"latest\""
        raise RegistryError(errors.INVALID_VERSION, message)
    _known(state, subject, deleted=True)
    found = state.subjects[subject].get(int(version))
    if found is None or (found.is_deleted and not deleted):
        if not deleted:
            _known(state, subject, deleted=False)
        raise RegistryError(errors.VERSION_NOT_FOUND, f"Version {version} not found.")
    return found


def _known(state: RegistryState, subject: str, *, deleted: bool) -> list[Version]:
    versions = state.versions(subject, deleted=deleted)
    if not versions:
        raise RegistryError(errors.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
    return versions


def version_body(subject: str, version: Version) -> Mapping[str, Any]:
    """Return the body that describes a version."""
    return {"subject": subject, **_registered(version)}
