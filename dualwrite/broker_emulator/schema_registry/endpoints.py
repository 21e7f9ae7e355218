"""The endpoints of the registry's REST API: the data that each request reads or changes.

A handler takes the service, and the parts of the request that its parameters name: `path`, `query` and `body`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from dualwrite.broker_emulator.control.endpoint import Endpoint
from dualwrite.broker_emulator.schema_registry import decisions, errors
from dualwrite.broker_emulator.schema_registry.errors import RegistryError
from dualwrite.broker_emulator.schema_registry.request import Body, Query, proposed
from dualwrite.broker_emulator.schema_registry.schemas import KINDS, Schema
from dualwrite.broker_emulator.schema_registry.service import RegistryService
from dualwrite.broker_emulator.schema_registry.state import BACKWARD, READWRITE, Version, described
from dualwrite.broker_emulator.security.acl import AclOperation

Path = Mapping[str, str]
T = TypeVar("T")

_FORMATS: Final = ("", "serialized")
"""A Protobuf schema is always returned as a serialized descriptor; the other kinds have no such form."""


# ---- schemas by id ----------------------------------------------------------------------------------------------


async def root(service: RegistryService) -> Any:
    return {}


async def kinds(service: RegistryService) -> Any:
    return list(KINDS)


async def contexts(service: RegistryService) -> Any:
    return ["."]


async def schema_by_id(service: RegistryService, path: Path, query: Query) -> Any:
    schema = await _schema(service, path["id"], query)
    return {**described(schema), "guid": schema.guid}


async def schema_text_by_id(service: RegistryService, path: Path, query: Query) -> Any:
    return (await _schema(service, path["id"], query)).text


async def schema_by_guid(service: RegistryService, path: Path, query: Query) -> Any:
    _check_format(query)
    state = await service.state()
    schema_id = state.guids.get(path["guid"].lower())
    if schema_id is None:
        raise RegistryError(errors.SCHEMA_NOT_FOUND, f"Schema {path['guid'][:50]} not found")
    return {**described(state.schemas[schema_id]), "guid": path["guid"].lower()}


async def subjects_by_id(service: RegistryService, path: Path, query: Query) -> Any:
    return list(dict.fromkeys(subject for subject, _ in await _uses(service, path["id"], query)))


async def versions_by_id(service: RegistryService, path: Path, query: Query) -> Any:
    return [
        {"subject": subject, "version": version.number} for subject, version in await _uses(service, path["id"], query)
    ]


async def _schema(service: RegistryService, schema_id: str, query: Query) -> Schema:
    _check_format(query)
    schema = (await service.state()).schemas.get(_id(schema_id))
    if schema is None:
        raise RegistryError(errors.SCHEMA_NOT_FOUND, f"Schema {schema_id} not found")
    return schema


async def _uses(service: RegistryService, schema_id: str, query: Query) -> list[tuple[str, Version]]:
    wanted, state = _id(schema_id), await service.state()
    if wanted not in state.schemas:
        raise RegistryError(errors.SCHEMA_NOT_FOUND, f"Schema {schema_id} not found")
    subject = query.text("subject")
    return [
        (name, version)
        for name in ([subject] if subject else sorted(state.subjects))
        for version in state.versions(name, deleted=query.flag("deleted"))
        if version.schema_id == wanted
    ]


def _id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 11):
        raise RegistryError(errors.SCHEMA_NOT_FOUND, f"Schema {text[:50]!r} not found: an id is a number")
    return int(text)


def _check_format(query: Query) -> None:
    if query.text("format") not in _FORMATS:
        raise RegistryError(errors.NOT_PERMITTED, f"the format {query.text('format')[:50]!r} is not known here")


# ---- subjects ---------------------------------------------------------------------------------------------------


async def subjects(service: RegistryService, query: Query) -> Any:
    state, prefix = await service.state(), query.text("subjectPrefix")
    found = [
        name
        for name in sorted(state.subjects)
        if name.startswith(prefix) and _is_wanted(query, state.versions(name, deleted=True))
    ]
    return _page(found, query)


async def versions(service: RegistryService, path: Path, query: Query) -> Any:
    every = (await service.state()).versions(path["subject"], deleted=True)
    if not _is_wanted(query, every):
        raise RegistryError(errors.SUBJECT_NOT_FOUND, f"Subject '{path['subject']}' not found.")
    return _page([version.number for version in every if _is_wanted(query, [version])], query)


def _is_wanted(query: Query, versions: Sequence[Version]) -> bool:
    """Return whether to list a subject or a version: deleted ones only on request."""
    has_living = any(not version.is_deleted for version in versions)
    if query.flag("deletedOnly") or query.flag("deleted_only"):
        return bool(versions) and not has_living
    return bool(versions) and (has_living or query.flag("deleted"))


def _page(found: Sequence[T], query: Query) -> Sequence[T]:
    first, limit = max(query.number("offset", 0), 0), query.number("limit", -1)
    return found[first:] if limit < 0 else found[first : first + limit]


async def version(service: RegistryService, path: Path, query: Query) -> Any:
    return decisions.version_body(path["subject"], await _version(service, path, query))


async def version_text(service: RegistryService, path: Path, query: Query) -> Any:
    return (await _version(service, path, query)).schema.text


async def referenced_by(service: RegistryService, path: Path, query: Query) -> Any:
    found = await _version(service, path, query)
    return _page(decisions.referencing(await service.state(), path["subject"], {found.number}), query)


async def _version(service: RegistryService, path: Path, query: Query) -> Version:
    _check_format(query)
    return decisions.find_version(
        await service.state(), path["subject"], path["version"], deleted=query.flag("deleted")
    )


async def register(service: RegistryService, path: Path, query: Query, body: Body) -> Any:
    given, normalize = proposed(body), query.flag("normalize")
    return await service.change(lambda state: decisions.register(state, path["subject"], given, normalize=normalize))


async def look_up(service: RegistryService, path: Path, query: Query, body: Body) -> Any:
    schema = proposed(body).schema
    normalize, deleted = query.flag("normalize"), query.flag("deleted")
    return await service.change(
        lambda state: decisions.look_up(state, path["subject"], schema, normalize=normalize, deleted=deleted)
    )


async def check(service: RegistryService, path: Path, query: Query, body: Body) -> Any:
    schema = proposed(body).schema
    normalize, verbose = query.flag("normalize"), query.flag("verbose")
    return await service.change(
        lambda state: decisions.check(
            state, path["subject"], path.get("version"), schema, normalize=normalize, verbose=verbose
        )
    )


async def delete_subject(service: RegistryService, path: Path, query: Query) -> Any:
    permanent = query.flag("permanent")
    return await service.change(lambda state: decisions.delete_subject(state, path["subject"], permanent=permanent))


async def delete_version(service: RegistryService, path: Path, query: Query) -> Any:
    permanent = query.flag("permanent")
    return await service.change(
        lambda state: decisions.delete_version(state, path["subject"], path["version"], permanent=permanent)
    )


# ---- levels and modes -------------------------------------------------------------------------------------------


async def level(service: RegistryService, path: Path, query: Query) -> Any:
    state, subject = await service.state(), path.get("subject")
    if subject is not None and subject not in state.levels and not query.flag("defaultToGlobal"):
        message = f"Subject '{subject}' does not have subject-level compatibility configured"
        raise RegistryError(errors.NO_SUBJECT_LEVEL, message)
    found = state.levels.get(None, BACKWARD) if subject is None else state.level(subject)
    return {"compatibilityLevel": found}


async def set_level(service: RegistryService, path: Path, body: Body) -> Any:
    body.check_only("compatibility", "the configuration of a subject")
    return await service.change(lambda _: decisions.set_level(path.get("subject"), body.get("compatibility")))


async def reset_level(service: RegistryService, path: Path) -> Any:
    return await service.change(partial(_of_subject, decisions.reset_level, path))


async def mode(service: RegistryService, path: Path, query: Query) -> Any:
    state, subject = await service.state(), path.get("subject")
    if subject is not None and subject not in state.modes and not query.flag("defaultToGlobal"):
        message = f"Subject '{subject}' does not have subject-level mode configured"
        raise RegistryError(errors.NO_SUBJECT_MODE, message)
    return {"mode": state.modes.get(None, READWRITE) if subject is None else state.mode(subject)}


async def set_mode(service: RegistryService, path: Path, query: Query, body: Body) -> Any:
    body.check_only("mode", "the mode")
    given, force = body.get("mode"), query.flag("force")
    return await service.change(lambda state: decisions.set_mode(state, path.get("subject"), given, force=force))


async def reset_mode(service: RegistryService, path: Path) -> Any:
    return await service.change(partial(_of_subject, decisions.reset_mode, path))


def _of_subject(decide: Callable[..., decisions.Decision], path: Path, state: Any) -> decisions.Decision:
    return decide(state, path.get("subject"))


@dataclass(frozen=True)
class RegistryEndpoint(Endpoint):
    """An endpoint, and the operation on the topic `_schemas` that a client must be allowed."""

    operation: AclOperation | None = None
    """None for responses that are the same in every registry."""


_reading: Final = partial(RegistryEndpoint, operation=AclOperation.READ)
_writing: Final = partial(RegistryEndpoint, operation=AclOperation.WRITE)

_SUBJECT: Final = "/subjects/{subject}"
_VERSIONS: Final = _SUBJECT + "/versions"
_VERSION: Final = _VERSIONS + "/{version}"
_CHECK: Final = "/compatibility" + _VERSIONS

ENDPOINTS: Final = (
    RegistryEndpoint("GET", "/", root, "Nothing, to see that the registry is there"),
    RegistryEndpoint("GET", "/contexts", contexts, "The only context"),
    RegistryEndpoint("GET", "/schemas/types", kinds, "The kinds of schemas"),
    _reading("GET", "/schemas/ids/{id}", schema_by_id, "A schema"),
    _reading("GET", "/schemas/ids/{id}/schema", schema_text_by_id, "The text of a schema"),
    _reading("GET", "/schemas/ids/{id}/subjects", subjects_by_id, "The subjects that have a schema"),
    _reading("GET", "/schemas/ids/{id}/versions", versions_by_id, "The versions that have a schema"),
    _reading("GET", "/schemas/guids/{guid}", schema_by_guid, "A schema"),
    _reading("GET", "/subjects", subjects, "All subjects"),
    _reading("POST", _SUBJECT, look_up, "The version that has a schema"),
    _writing("DELETE", _SUBJECT, delete_subject, "Delete a subject"),
    _reading("GET", _VERSIONS, versions, "The versions of a subject"),
    _writing("POST", _VERSIONS, register, "Register a schema"),
    _reading("GET", _VERSION, version, "A version"),
    _writing("DELETE", _VERSION, delete_version, "Delete a version"),
    _reading("GET", _VERSION + "/schema", version_text, "The text of a version"),
    _reading("GET", _VERSION + "/referencedby", referenced_by, "The schemas that refer to a version"),
    _reading("POST", _CHECK, check, "Whether a schema is compatible with all that its level names"),
    _reading("POST", _CHECK + "/{version}", check, "Whether a schema is compatible with a version"),
    *(
        endpoint
        for template in ("/config", "/config/{subject}")
        for endpoint in (
            _reading("GET", template, level, "The compatibility"),
            _writing("PUT", template, set_level, "Set the compatibility"),
            _writing("DELETE", template, reset_level, "Reset the compatibility"),
        )
    ),
    *(
        endpoint
        for template in ("/mode", "/mode/{subject}")
        for endpoint in (
            _reading("GET", template, mode, "The mode"),
            _writing("PUT", template, set_mode, "Set the mode"),
            _writing("DELETE", template, reset_mode, "Reset the mode"),
        )
    ),
)
