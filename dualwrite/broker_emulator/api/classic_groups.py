"""The members of classic groups: they join, synchronize, send heartbeats, leave."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import group_shard, milliseconds
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.group import Protocol
from dualwrite.broker_emulator.groups.member_requests import (
    JoinRequest,
    JoinResponse,
    LeavingMember,
    SupersededError,
    SyncRequest,
    SyncResponse,
)
from dualwrite.broker_emulator.messages.call import CloseConnectionError
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped

_MEMBER_ID_REQUIRED_VERSION = 4
_NO_PROTOCOL_VERSION = 7
_SKIP_ASSIGNMENT_VERSION = 9


async def handle_join_group(call: NodeCall) -> Any:
    """Serve JoinGroup (key 11), versions 0-9.

    A member joins its group, or rejoins; the response comes when the join phase of the rebalance is complete.

    * v1 rebalance timeout (v0: the session timeout); v4 gives a new member its id with 79, and it has to join again
      (KIP-394); v5 group instance id (KIP-345); v6 flexible; v7 the response may have no protocol (below: ""); v8
      reason (KIP-800); v9 a leader may be told not to assign (KIP-814).
    * Access: READ on the group (30).
    * Empty group id 24; session timeout outside of `group.min.session.timeout.ms` and `group.max.session.timeout.ms`
      26; group of another node 16; while loading 14; unknown member, or a member id in an unknown group 25; no common
      protocol 23; replaced static member 82; `group.max.size` reached 81 (KIP-389).
    """
    request, config = call.request, call.cluster.config
    call.require(AclOperation.READ, ResourceType.GROUP, request.group_id)
    session_ms = milliseconds(request.session_timeout)
    join_request = await call.made(_join_request, call, session_ms)
    is_legal = config.group_min_session_timeout_ms <= session_ms <= config.group_max_session_timeout_ms
    if request.group_id and not is_legal:
        return await call.refused(ErrorCode.invalid_session_timeout)
    shard = group_shard(call, request.group_id)
    try:
        return _join_response(call, await shard.join(request.group_id, join_request))
    except SupersededError as superseded:
        raise CloseConnectionError(str(superseded)) from superseded


def _join_request(call: NodeCall, session_timeout_ms: int) -> JoinRequest:
    request = call.request
    group_instance_id = getattr(request, "group_instance_id", None)
    client_id = call.client_id or ""
    rebalance_timeout_ms = milliseconds(request.rebalance_timeout) if call.version >= 1 else session_timeout_ms
    return JoinRequest(
        member_id=request.member_id,
        group_instance_id=group_instance_id,
        client_id=client_id,
        client_host=f"/{call.client_host}",
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        new_member_id=f"{client_id if group_instance_id is None else group_instance_id}-{uuid4()}",
        requires_known_member_id=call.version >= _MEMBER_ID_REQUIRED_VERSION,
        can_skip_assignment=call.version >= _SKIP_ASSIGNMENT_VERSION,
    )


def _join_response(call: NodeCall, answer: JoinResponse) -> Any:
    new = call.new
    protocol_name = answer.protocol_name
    return new.response(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol_name or "" if call.version < _NO_PROTOCOL_VERSION else protocol_name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=tuple(
            new.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.group_instance_id, metadata=member.metadata
            )
            for member in answer.members
        ),
    )


def refuse_join_group(call: NodeCall, error: ErrorCode) -> Any:
    return _join_response(call, JoinResponse(error, call.request.member_id))


async def handle_heartbeat(call: NodeCall) -> Any:
    """Serve Heartbeat (key 12), versions 0-4.

    The heartbeat of a member; the response says whether it has to rejoin (27).

    * v3 group instance id (KIP-345); v4 flexible.
    * Access: READ on the group (30).
    * Empty group id 24; group of another node 16; unknown group or member 25; wrong generation 22; replaced static
      member 82. While the group is loading, every heartbeat gets 0.
    """
    request = call.request
    call.require(AclOperation.READ, ResourceType.GROUP, request.group_id)
    try:
        shard = group_shard(call, request.group_id)
    except RefusedError as refused:
        is_loading = refused.error is ErrorCode.coordinator_load_in_progress
        return await call.refused(ErrorCode.none if is_loading else refused.error)
    group_instance_id = getattr(request, "group_instance_id", None)
    return refuse_heartbeat(
        call, shard.heartbeat(request.group_id, request.member_id, group_instance_id, request.generation_id)
    )


def refuse_heartbeat(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error)


_MANY_MEMBERS_VERSION = 3


async def handle_leave_group(call: NodeCall) -> Any:
    """Serve LeaveGroup (key 13), versions 0-5.

    Members leave at once, without waiting for their session timeouts.

    * v3 several members, each with an error, and static members by their instance id alone (KIP-345); v4 flexible; v5
      reason (KIP-800). Before v3, the response has the error of its only member.
    * Access: READ on the group (30).
    * Empty group id 24; group of another node 16; while loading 14; unknown group or member 25; replaced static member
      82.
    """
    call.require(AclOperation.READ, ResourceType.GROUP, call.request.group_id)
    leaving = await call.made(_leaving, call)
    shard = group_shard(call, call.request.group_id)
    errors = shard.leave(call.request.group_id, leaving)
    if call.version < _MANY_MEMBERS_VERSION:
        return await call.refused(errors[0])
    return call.new.response(
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


def refuse_leave_group(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error, members=())


_PROTOCOL_VERSION = 5


async def handle_sync_group(call: NodeCall) -> Any:
    """Serve SyncGroup (key 14), versions 0-5.

    A member requests its assignment, and the leader sends all of them; the responses come once those are stored.

    * v3 group instance id (KIP-345); v4 flexible; v5 protocol type and name, which are required and must be those of
      the group (23, KIP-559).
    * Access: READ on the group (30).
    * Empty group id 24; group of another node 16; while loading 14; unknown group or member 25; wrong generation 22;
      replaced static member 82; rebalance in progress 27.
    """
    request = call.request
    sync_request = await call.made(_sync_request, request)
    names = (sync_request.protocol_type, sync_request.protocol_name)
    if call.version >= _PROTOCOL_VERSION and None in names:
        return await call.refused(ErrorCode.inconsistent_group_protocol)
    call.require(AclOperation.READ, ResourceType.GROUP, request.group_id)
    shard = group_shard(call, request.group_id)
    try:
        return _sync_response(call, await shard.sync(request.group_id, sync_request))
    except SupersededError as superseded:
        raise CloseConnectionError(str(superseded)) from superseded


def _sync_request(request: Any) -> SyncRequest:
    return SyncRequest(
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        generation=request.generation_id,
        protocol_type=getattr(request, "protocol_type", None),
        protocol_name=getattr(request, "protocol_name", None),
        assignments={assigned.member_id: bytes(assigned.assignment) for assigned in request.assignments},
    )


def _sync_response(call: NodeCall, answer: SyncResponse) -> Any:
    return call.new.response(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


def refuse_sync_group(call: NodeCall, error: ErrorCode) -> Any:
    return _sync_response(call, SyncResponse(error))
