"""The entities that quotas are set for, and the filters of DescribeClientQuotas that select them.

An entity is a user, a client id, both together, or an address: by name, or as the default for all other names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"
TYPES = (USER, CLIENT_ID, IP)

Entity: TypeAlias = frozenset[tuple[str, str | None]]
"""Names by type; the name None is the default of the type, for all names without a quota of their own."""


def entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Return the entity that a request names; if a type is given twice, the last one counts, as in Kafka."""
    return frozenset(dict(parts).items())


def encoded(named: Entity) -> str:
    """Return the key under which the quotas of an entity are stored."""
    return json.dumps(dict(sorted(named)))


def decoded(key: str) -> Entity:
    """Return the entity of a key made by `encoded`."""
    return entity(json.loads(key).items())


def shown(named: Entity) -> str:
    """Return an entity as Kafka's messages write it."""
    return "ClientQuotaEntity(entries={" + ", ".join(f"{kind}={name or 'null'}" for kind, name in sorted(named)) + "})"


class MatchType(IntEnum):
    """How a component of a filter selects entities."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


class Component(NamedTuple):
    """A condition on one entity type in a filter."""

    entity_type: str
    match_type: int
    match: str | None


class FilterError(Exception):
    """An invalid filter; has Kafka's error code and message."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Filter(NamedTuple):
    """Selects entities that have all names of `exact`, and any name or the default of each type in `any_of`."""

    exact: dict[str, str | None]
    any_of: frozenset[str]
    strict: bool
    """Whether the entity must have no other types."""

    def matches(self, entity: Entity) -> bool:
        """Return whether the filter selects `entity`."""
        names = dict(entity)
        if not self.any_of <= names.keys() or not self.exact.items() <= names.items():
            return False
        return not self.strict or len(names) == len(self.any_of) + len(self.exact)


def parse_filter(components: Iterable[Component], *, strict: bool) -> Filter:
    """Parse a filter. Raises FilterError."""
    exact: dict[str, str | None] = {}
    any_of: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            raise FilterError(ErrorCode.invalid_request, "Invalid empty entity type.")
        if kind in exact or kind in any_of:
            raise FilterError(
                ErrorCode.invalid_request, f"Entity type {kind} cannot appear more than once in the filter."
            )
        if kind not in TYPES:
            raise FilterError(ErrorCode.unsupported_version, f"Unsupported entity type {kind}")
        _check_match(component)
        if component.match_type == MatchType.ANY:
            any_of.add(kind)
        else:
            exact[kind] = component.match
    named = exact.keys() | any_of
    if IP in named and named & {USER, CLIENT_ID}:
        raise FilterError(
            ErrorCode.invalid_request,
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component.",
        )
    return Filter(exact, frozenset(any_of), strict)


_MATCH_TYPES = {
    MatchType.EXACT: "MATCH_TYPE_EXACT",
    MatchType.DEFAULT: "MATCH_TYPE_DEFAULT",
    MatchType.ANY: "MATCH_TYPE_SPECIFIED",
}


def _check_match(component: Component) -> None:
    if component.match_type not in tuple(MatchType):
        raise FilterError(ErrorCode.invalid_request, f"Unknown match type {component.match_type}")
    name = _MATCH_TYPES[MatchType(component.match_type)]
    takes_name = component.match_type == MatchType.EXACT
    if takes_name and component.match is None:
        raise FilterError(ErrorCode.invalid_request, f"Request specified {name}, but set match string to null.")
    if not takes_name and component.match is not None:
        raise FilterError(ErrorCode.invalid_request, f"Request specified {name}, but also specified a match string.")
