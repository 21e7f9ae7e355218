"""ListGroups (key 16), versions 0-5.

The groups that this node coordinates; clients send it to every node.

* v3 flexible; v4 filter by state (KIP-518); v5 filter by type (KIP-848). Filters ignore case; an unknown state or type
  matches no group.
* Access: without DESCRIBE on the cluster, only groups that the client may DESCRIBE are listed.
* While groups of this node are loading, the response is 14.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.groups.consumer.group import AnyGroup, ConsumerGroup
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.share.group import ShareGroup
from dualwrite.broker_emulator.slices import mapped, selected


async def handle(call: NodeCall) -> Any:
    groups = call.node.groups
    if groups.is_loading:
        return await call.refused(ErrorCode.coordinator_load_in_progress)
    states = _lowered(getattr(call.request, "states_filter", ()))
    types = _lowered(getattr(call.request, "types_filter", ()))
    listed: list[AnyGroup | ShareGroup] = [group for shard in groups.shards() for group in shard.groups.values()]
    listed += [group for shard in groups.shards() for group in shard.share.groups.values()]
    shows_all = call.is_allowed(AclOperation.DESCRIBE, ResourceType.CLUSTER, is_logged=False)

    def is_wanted(group: AnyGroup | ShareGroup) -> bool:
        is_named = (not states or group.state.lower() in states) and (not types or _type(group) in types)
        return is_named and (shows_all or _is_shown(call, group))

    wanted = await selected(is_wanted, listed)
    return _response(call, await mapped(lambda group: _row(call, group), wanted))


def _type(group: AnyGroup | ShareGroup) -> str:
    if isinstance(group, ShareGroup):
        return "share"
    return "consumer" if isinstance(group, ConsumerGroup) else "classic"


def _is_shown(call: NodeCall, group: AnyGroup | ShareGroup) -> bool:
    return call.is_allowed(AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id, is_logged=False)


def _lowered(names: Any) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in names)


def _row(call: NodeCall, group: AnyGroup | ShareGroup) -> Any:
    return call.new.ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.state,
        group_type=_type(group),
    )


def _response(call: NodeCall, rows: list[Any], error: ErrorCode = ErrorCode.none) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, error_code=error, groups=tuple(rows))


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, [], error)
