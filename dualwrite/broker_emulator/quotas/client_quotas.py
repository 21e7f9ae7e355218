"""Client quotas: their entities, the valid quotas, the current ones, and those that apply to a client.

An entity is a user, a client id, both together, or an address: by name, or as the default for all other names. The
filters of DescribeClientQuotas select entities.
"""

from __future__ import annotations

import ipaddress
import json
import math
import socket
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.storage.storage import Storage

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"
TYPES = (USER, CLIENT_ID, IP)

_KIND = "client-quota"
_WHOLE = 1e-6

Entity: TypeAlias = frozenset[tuple[str, str | None]]
"""Names by type. The name None is the default of the type, for all names without a quota of their own."""


def entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Return the entity that a request names. If a type is given twice, the last one counts, as in Kafka."""
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


class Quota(StrEnum):
    """The kinds of quotas."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    """Bytes of Produce requests per second."""
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    """Bytes of Fetch responses per second."""
    REQUEST_PERCENTAGE = "request_percentage"
    """Processing time of requests, in percent of one thread."""
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    """Partitions created or deleted per second."""
    CONNECTION_CREATION_RATE = "connection_creation_rate"
    """New connections per second."""


_LONG = (2**63 - 1, "a LONG")
_INT = (2**31 - 1, "an INT")
_USER_AND_CLIENT: Mapping[str, tuple[int, str] | None] = {
    Quota.PRODUCER_BYTE_RATE: _LONG,
    Quota.CONSUMER_BYTE_RATE: _LONG,
    Quota.REQUEST_PERCENTAGE: None,
    Quota.CONTROLLER_MUTATION_RATE: None,
}
_IP: Mapping[str, tuple[int, str] | None] = {Quota.CONNECTION_CREATION_RATE: _INT}
"""The largest valid value and its type in messages, for quotas of whole numbers; None for quotas with fractions."""


def quota_problem(entity: Entity, changes: Mapping[str, float | None]) -> str | None:
    """Return why these quotas cannot be set for `entity`, or None; a value of None removes a quota.

    The checks and their order are those of Kafka's controller.
    """
    return _entity_problem(entity) or _value_problem(_IP if IP in dict(entity) else _USER_AND_CLIENT, changes)


def _entity_problem(entity: Entity) -> str | None:
    names = dict(entity)
    if not names:
        return "Invalid empty client quota entity"
    for kind, name in names.items():
        if kind not in TYPES:
            return f"Unhandled client quota entity type: {kind}"
        if name == "":
            return f"Empty {kind} not supported"
    if IP in names:
        if USER in names or CLIENT_ID in names:
            return "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
        if names[IP] is not None and address_of(names[IP]) is None:
            return f"{names[IP]} is not a valid IP or resolvable host."
    return None


def _value_problem(known: Mapping[str, tuple[int, str] | None], changes: Mapping[str, float | None]) -> str | None:
    for key, value in changes.items():
        if value is None:
            continue
        if key not in known:
            return f"Invalid configuration key {key}"
        if not value > 0:
            return f"Quota {key} must be greater than 0"
        whole = known[key]
        if whole is not None and value > whole[0]:
            return f"Proposed value for {key} is too large for {whole[1]}."
        if whole is not None and math.fmod(value, 1.0) > _WHOLE:
            return f"{key} cannot be a fractional value."
    return None


@lru_cache(maxsize=1024)
def address_of(host: str | None) -> str | None:
    """Return the address of a host as connections show it, or None if it has none."""
    if host is None:
        return None
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError):
        return None


class Limit(NamedTuple):
    """A quota that applies to a client."""

    bound: float
    user: str
    """The user whose usage counts; "" if the usage of all users counts together."""
    client_id: str
    """The client id whose usage counts; "" if the usage of all client ids counts together."""


class ClientQuotas:
    """The quotas of one cluster, by entity; they survive a restart."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._values: dict[Entity, dict[str, float]] = {
            decoded(key): dict(values) for key, values in storage.values(_KIND).items()
        }
        self.is_active = bool(self._values)
        """Whether any quota is set; otherwise usage is not measured."""

    def all(self) -> Iterator[tuple[Entity, Mapping[str, float]]]:
        """Yield every entity that has a quota, with its quotas."""
        yield from self._values.items()

    def alter(self, named: Entity, changes: Mapping[str, float | None]) -> None:
        """Set quotas of `named`, or remove them (None). Raises StorageError, without any change."""
        values: dict[str, float | None] = {**self._values.get(named, {}), **changes}
        left = {key: value for key, value in values.items() if value is not None}
        if left == self._values.get(named, {}):
            return
        self._storage.store_value(_KIND, encoded(named), left or None)
        self._values.pop(named, None)
        if left:
            self._values[named] = left
        self.is_active = bool(self._values)

    def limit(self, quota: Quota, user: str, client_id: str) -> Limit | None:
        """Return the most specific quota of a client, or None if it has none."""
        for named, limit in _precedence(user, client_id):
            bound = self._values.get(named, {}).get(quota)
            if bound is not None:
                return limit._replace(bound=bound)
        return None

    def connection_rate(self, host: str) -> float | None:
        """Return the number of connections per second allowed to an address, or None if it has no quota."""
        by_default = None
        for named, values in self._values.items():
            for kind, name in named:
                if kind == IP and name is None:
                    by_default = values.get(Quota.CONNECTION_CREATION_RATE)
                elif kind == IP and address_of(name) == host:
                    return values.get(Quota.CONNECTION_CREATION_RATE)
        return by_default


def _precedence(user: str, client_id: str) -> Iterator[tuple[Entity, Limit]]:
    """Yield the entities of a client, the most specific first, each with the usage that it limits (KIP-55)."""
    both, of_user, of_client = Limit(0, user, client_id), Limit(0, user, ""), Limit(0, "", client_id)
    for named_user in (user, None):
        for named_client in (client_id, None):
            yield entity({USER: named_user, CLIENT_ID: named_client}.items()), both
        yield entity({USER: named_user}.items()), of_user
    for named_client in (client_id, None):
        yield entity({CLIENT_ID: named_client}.items()), of_client


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
