"""Heartbeat (key 12), versions 0-4.

The heartbeat of a member; the response says whether it has to rejoin (27).

* v3 group instance id (KIP-345); v4 flexible.
* Access: READ on the group (30).
* Empty group id 24; group of another node 16; unknown group or member 25; wrong generation 22; replaced static member
  82. While the group is loading, every heartbeat gets 0.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import group_shard
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType


async def handle(call: NodeCall) -> Any:
    request = call.request
    if not call.is_allowed(AclOperation.READ, ResourceType.GROUP, request.group_id):
        return await call.refused(ErrorCode.group_authorization_failed)
    shard = group_shard(call, request.group_id)
    if shard is ErrorCode.coordinator_load_in_progress:
        return await call.refused(ErrorCode.none)
    if isinstance(shard, ErrorCode):
        return await call.refused(shard)
    group_instance_id = getattr(request, "group_instance_id", None)
    return refuse(call, shard.heartbeat(request.group_id, request.member_id, group_instance_id, request.generation_id))


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, error_code=error)
