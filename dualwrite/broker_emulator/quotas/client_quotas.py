"""Which quotas can be set, the quotas that are set, and which of them applies to a client."""

from __future__ import annotations

import ipaddress
import math
import socket
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from dualwrite.broker_emulator.quotas.entity import CLIENT_ID, IP, TYPES, USER, Entity, decoded, encoded, entity
from dualwrite.broker_emulator.storage.storage import Storage


class Quota(StrEnum):
    """The kinds of quotas."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    """Bytes of Produce requests per second."""
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    """Bytes of Fetch responses per second."""
    REQUEST_PERCENTAGE = "request_percentage"
    """Time that requests take, in percent of one thread."""
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
"""The largest valid value and its type in messages, for quotas of whole numbers; None for those with fractions."""

_WHOLE = 1e-6


def quota_problem(entity: Entity, changes: Mapping[str, float | None]) -> str | None:
    """Return why these quotas cannot be set for `entity`, or None if they can; a value None removes a quota.

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


_KIND = "client-quota"


class Limit(NamedTuple):
    """A quota that applies to a client."""

    bound: float
    user: str
    """The user whose usage counts; "" if that of all users counts together."""
    client_id: str
    """The client id whose usage counts; "" if that of all client ids counts together."""


class ClientQuotas:
    """The quotas that are set in one cluster, by entity; they survive a restart."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._values: dict[Entity, dict[str, float]] = {
            decoded(key): dict(values) for key, values in storage.kept(_KIND).items()
        }
        self.is_active = bool(self._values)
        """Whether any quota is set; without one, nothing is measured."""

    def all(self) -> Iterator[tuple[Entity, Mapping[str, float]]]:
        """Yield every entity that has a quota, with its quotas."""
        yield from self._values.items()

    def alter(self, named: Entity, changes: Mapping[str, float | None]) -> None:
        """Set quotas of `named`, or remove them (None). Raises StorageError, and then nothing has changed."""
        values: dict[str, float | None] = {**self._values.get(named, {}), **changes}
        left = {key: value for key, value in values.items() if value is not None}
        if left == self._values.get(named, {}):
            return
        self._storage.keep(_KIND, encoded(named), left or None)
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
        """Return how many connections per second an address may make, or None if it has no quota."""
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
