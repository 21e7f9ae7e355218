"""Whom a quota is for: users, client ids, both together, or addresses; by name, or all that have none of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TypeAlias

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"
TYPES = (USER, CLIENT_ID, IP)

Entity: TypeAlias = frozenset[tuple[str, str | None]]
"""Types with names; None is the default of the type: whoever has no quota by his name."""


def entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """What a request names; of a type that is given twice the last one counts, as in Kafka."""
    return frozenset(dict(parts).items())


def encoded(named: Entity) -> str:
    """The key under which quotas are kept."""
    return json.dumps(dict(sorted(named)))


def decoded(key: str) -> Entity:
    """What `encoded` gave."""
    return entity(json.loads(key).items())


def shown(named: Entity) -> str:
    """As Kafka's messages name it."""
    return "ClientQuotaEntity(entries={" + ", ".join(f"{kind}={name or 'null'}" for kind, name in sorted(named)) + "})"
