"""Client quotas (KIP-546): most clients' admin APIs cannot set them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from dualwrite.broker_emulator.control.controlled import Controlled
from dualwrite.broker_emulator.control.endpoint import Endpoint
from dualwrite.broker_emulator.control.errors import bad_request
from dualwrite.broker_emulator.quotas.entity import TYPES, Entity, encoded, entity

_Names = Annotated[
    dict[str, str | None],
    f"By type ({', '.join(TYPES)}) a name, or null: whoever has no quota by name. Both user and client-id, or one.",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaView:
    """The quotas of an entity."""

    entity: _Names
    quotas: Annotated[dict[str, float], "By Kafka's names, such as producer_byte_rate."]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaList:
    """All entities that have a quota."""

    quotas: tuple[QuotaView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaChange:
    """Quotas that an entity is to have; what is not named stays."""

    entity: _Names
    quotas: Annotated[dict[str, float | None], "By Kafka's names; null takes one away."]


def _view(named: Entity, values: Mapping[str, float]) -> QuotaView:
    return QuotaView(entity=dict(sorted(named)), quotas=dict(values))


def _views(controlled: Controlled) -> QuotaList:
    by_name = sorted(controlled.cluster.quotas.all(), key=lambda each: encoded(each[0]))
    return QuotaList(quotas=tuple(_view(named, values) for named, values in by_name))


async def list_all(controlled: Controlled) -> QuotaList:
    return _views(controlled)


async def alter(controlled: Controlled, body: QuotaChange) -> QuotaView:
    named = entity(body.entity.items())
    try:
        controlled.operations.set_quota(named, body.quotas)
    except ValueError as error:
        raise bad_request(str(error)) from None
    return _view(named, dict(controlled.cluster.quotas.all()).get(named, {}))


async def remove_all(controlled: Controlled) -> QuotaList:
    removed = _views(controlled)
    for named, values in list(controlled.cluster.quotas.all()):
        controlled.operations.set_quota(named, dict.fromkeys(values))
    return removed


ENDPOINTS = (
    Endpoint("GET", "/v1/quotas", list_all, "All client quotas"),
    Endpoint("PUT", "/v1/quotas", alter, "Set quotas of users, client ids or addresses, or take them away"),
    Endpoint("DELETE", "/v1/quotas", remove_all, "Take all quotas away, and name them"),
)
