"""The quotas that are set, over restarts, and which of them concerns whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dualwrite.broker_emulator.quotas.entity import CLIENT_ID, IP, USER, Entity, decoded, encoded, entity
from dualwrite.broker_emulator.quotas.rules import Quota, address_of
from dualwrite.broker_emulator.storage.storage import Storage

_KIND = "client-quota"


class Limit(NamedTuple):
    """A quota as it concerns one client."""

    bound: float
    user: str
    """Whose use is counted together; "" for all users'."""
    client_id: str
    """As `user`."""


class ClientQuotas:
    """What is set for whom, in one cluster."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._values: dict[Entity, dict[str, float]] = {
            decoded(key): dict(values) for key, values in storage.values(_KIND).items()
        }
        self.is_active = bool(self._values)
        """Whether any quota is set; where none is, nothing is measured."""

    def all(self) -> Iterator[tuple[Entity, Mapping[str, float]]]:
        """Every entity that has a quota."""
        yield from self._values.items()

    def alter(self, named: Entity, changes: Mapping[str, float | None]) -> None:
        """Set quotas of `named`, or take them away (None). Raises StorageError, and then nothing has changed."""
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
        """The most specific quota of a client; None where it has none."""
        for named, limit in _precedence(user, client_id):
            bound = self._values.get(named, {}).get(quota)
            if bound is not None:
                return limit._replace(bound=bound)
        return None

    def connection_rate(self, host: str) -> float | None:
        """How many connections a second may come from an address."""
        by_default = None
        for named, values in self._values.items():
            for kind, name in named:
                if kind == IP and name is None:
                    by_default = values.get(Quota.CONNECTION_CREATION_RATE)
                elif kind == IP and address_of(name) == host:
                    return values.get(Quota.CONNECTION_CREATION_RATE)
        return by_default


def _precedence(user: str, client_id: str) -> Iterator[tuple[Entity, Limit]]:
    """The entities of a client, the most specific one first, each with who shares what it allows (KIP-55)."""
    both, of_user, of_client = Limit(0, user, client_id), Limit(0, user, ""), Limit(0, "", client_id)
    for named_user in (user, None):
        for named_client in (client_id, None):
            yield entity({USER: named_user, CLIENT_ID: named_client}.items()), both
        yield entity({USER: named_user}.items()), of_user
    for named_client in (client_id, None):
        yield entity({CLIENT_ID: named_client}.items()), of_client
