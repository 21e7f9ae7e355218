"""DescribeClientQuotas (key 48), versions 0-1.

The quotas of the entities that match a filter (KIP-546).

* Components are ANDed: a name (0), the default (1), or either (2) of an entity type. Strict: no entities with other
  types.
* An invalid filter 42, an unknown entity type 35.
* Access: DESCRIBE_CONFIGS on the cluster (31).
* v1 flexible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.quotas.client_quotas import Component, Entity, FilterError, parse_filter
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped, selected


async def handle(call: NodeCall) -> Any:
    if not call.is_allowed(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER):
        return await call.refused(ErrorCode.cluster_authorization_failed)
    components = (Component(each.entity_type, each.match_type, each.match) for each in call.request.components)
    try:
        wanted = parse_filter(components, strict=call.request.strict)
    except FilterError as error:
        return _response(call, error.code, str(error), None)
    new = call.new

    def entry(entity: Entity, values: Mapping[str, float]) -> Any:
        return new.EntryData(
            entity=tuple(new.EntityData(entity_type=kind, entity_name=name) for kind, name in sorted(entity)),
            values=tuple(new.ValueData(key=key, value=value) for key, value in values.items()),
        )

    found = await selected(lambda quotas: wanted.matches(quotas[0]), list(call.cluster.quotas.all()))
    return _response(call, ErrorCode.none, "", tuple(await mapped(lambda quotas: entry(*quotas), found)))


def _response(call: NodeCall, error: ErrorCode, message: str | None, entries: tuple[Any, ...] | None) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, error_code=error, error_message=message, entries=entries)


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, error, None, None)
