"""DescribeGroups (key 15), versions 0-6.

State, protocol and members of groups.

* v3 authorized operations (KIP-430); v4 group instance ids (KIP-345); v5 flexible; v6 an unknown group, or one of
  KIP-848, is 69 with a message (KIP-1043). Before, it is Dead without an error.
* Only a stable group has metadata; while it rebalances, members have their last assignment (kafka-3.9: none).
* Group of another node 16; while loading 14.
* Access: DESCRIBE on the group (30).
* v6 is hidden by the profile kafka-3.9.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import group_shard
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.groups.consumer.group import ConsumerGroup
from dualwrite.broker_emulator.groups.group import Group, Member
from dualwrite.broker_emulator.groups.states import GroupState
from dualwrite.broker_emulator.security.acl import NOT_ASKED_FOR, AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped

_UNKNOWN_GROUP_VERSION = 6


async def handle(call: NodeCall) -> Any:
    return _response(call, await mapped(lambda group_id: _describe(call, group_id), call.request.groups))


def _response(call: NodeCall, groups: list[Any]) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, groups=tuple(groups))


def _describe(call: NodeCall, group_id: str) -> Any:
    if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.GROUP, group_id):
        return _error(call, group_id, ErrorCode.group_authorization_failed)
    shard = group_shard(call, group_id, allow_empty_id=True)
    if isinstance(shard, ErrorCode):
        return _error(call, group_id, shard)
    group = shard.groups.get(group_id)
    if shard.has_share_group(group_id) or isinstance(group, ConsumerGroup):
        return _unknown(call, group_id, f"Group {group_id} is not a classic group.")
    if group is None:
        return _unknown(call, group_id, f"Group {group_id} not found.")
    return _described(
        call,
        group_id,
        group_state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if group.is_in(GroupState.STABLE) else "",
        members=tuple(_member(call, group, member) for member in group.members.values()),
    )


def _member(call: NodeCall, group: Group, member: Member) -> Any:
    is_stable = group.is_in(GroupState.STABLE)
    shows_last = call.cluster.config.behaviours.assignments_outlast_generations
    return call.new.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol_name) if is_stable else b"",
        member_assignment=member.assignment if is_stable or shows_last else b"",
    )


def _unknown(call: NodeCall, group_id: str, message: str) -> Any:
    if call.version < _UNKNOWN_GROUP_VERSION:
        return _described(call, group_id, group_state=GroupState.DEAD)
    return _described(
        call,
        group_id,
        error_code=ErrorCode.group_id_not_found,
        error_message=message,
        group_state=GroupState.DEAD,
    )


def _error(call: NodeCall, group_id: str, error: ErrorCode) -> Any:
    return _described(call, group_id, error_code=error)


def _described(call: NodeCall, group_id: str, **values: Any) -> Any:
    is_requested = getattr(call.request, "include_authorized_operations", False)
    is_included = is_requested and values.get("error_code", ErrorCode.none) is ErrorCode.none
    operations = call.authorized_operations(ResourceType.GROUP, group_id) if is_included else NOT_ASKED_FOR
    defaults = {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
        "authorized_operations": operations,
    }
    return call.new.DescribedGroup(group_id=group_id, **{**defaults, **values})


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, [_error(call, group_id, error) for group_id in call.request.groups])
