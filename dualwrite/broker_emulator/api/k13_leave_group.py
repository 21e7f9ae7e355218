"""LeaveGroup (key 13), versions 0-5.

Members leave at once, without waiting for their session timeouts.

* v3 several members, each with an error, and static members by their instance id alone (KIP-345); v4 flexible; v5
  reason (KIP-800). Before v3, the response has the error of its only member.
* Access: READ on the group (30).
* Empty group id 24; group of another node 16; while loading 14; unknown group or member 25; replaced static member 82.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import group_shard
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.groups.member_requests import LeavingMember
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped

_MANY_MEMBERS_VERSION = 3


async def handle(call: NodeCall) -> Any:
    if not call.is_allowed(AclOperation.READ, ResourceType.GROUP, call.request.group_id):
        return await call.refused(ErrorCode.group_authorization_failed)
    leaving = await call.made(_leaving, call)
    shard = group_shard(call, call.request.group_id)
    if isinstance(shard, ErrorCode):
        return await call.refused(shard)
    errors = shard.leave(call.request.group_id, leaving)
    if call.version < _MANY_MEMBERS_VERSION:
        return await call.refused(errors[0])
    return call.new.response(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        members=tuple(await mapped(lambda pair: _row(call, *pair), zip(leaving, errors, strict=True))),
    )


def _row(call: NodeCall, member: LeavingMember, error: ErrorCode) -> Any:
    return call.new.MemberResponse(
        member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error
    )


def _leaving(call: NodeCall) -> list[LeavingMember]:
    if call.version < _MANY_MEMBERS_VERSION:
        return [LeavingMember(call.request.member_id, None)]
    return [LeavingMember(member.member_id, member.group_instance_id) for member in call.request.members]


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, error_code=error, members=())
