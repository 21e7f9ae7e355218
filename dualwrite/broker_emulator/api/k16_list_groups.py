"""ListGroups (key 16), versions 0-5.

The groups that this node coordinates; clients ask every node.

* v3 flexible; v4 filter by state (KIP-518); v5 filter by type (KIP-848). Filters ignore case; a name that is no state
  or type matches nothing.
* Access: without DESCRIBE on the cluster, groups are left out that one may not DESCRIBE.
* While some of the node's groups are loaded, the answer is 14.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.registry import NO_THROTTLE, Call
from dualwrite.broker_emulator.groups.consumer.group import AnyGroup, ConsumerGroup
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType


async def handle(call: Call) -> Any:
    groups = call.node.groups
    if groups.is_loading:
        return refuse(call, ErrorCode.coordinator_load_in_progress)
    states = _lowered(getattr(call.request, "states_filter", ()))
    types = _lowered(getattr(call.request, "types_filter", ()))
    listed = (group for shard in groups.shards() for group in shard.groups.values())
    wanted = [
        group
        for group in listed
        if (not states or group.state.lower() in states) and (not types or _type(group) in types)
    ]
    if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.CLUSTER, is_logged=False):
        wanted = [group for group in wanted if _is_shown(call, group)]
    return _response(call, wanted)


def _type(group: AnyGroup) -> str:
    return "consumer" if isinstance(group, ConsumerGroup) else "classic"


def _is_shown(call: Call, group: AnyGroup) -> bool:
    return call.is_allowed(AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id, is_logged=False)


def _lowered(names: Any) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in names)


def _response(call: Call, groups: list[AnyGroup], error: ErrorCode = ErrorCode.none) -> Any:
    return call.new.response(
        throttle_time=NO_THROTTLE,
        error_code=error,
        groups=tuple(
            call.new.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state,
                group_type=_type(group),
            )
            for group in groups
        ),
    )


def refuse(call: Call, error: ErrorCode) -> Any:
    return _response(call, [], error)
