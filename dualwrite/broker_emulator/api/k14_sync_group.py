"""SyncGroup (key 14), versions 0-5.

A member requests its assignment, and the leader sends all of them; the responses come once those are stored.

* v3 group instance id (KIP-345); v4 flexible; v5 protocol type and name, which are required and must be those of the
  group (23, KIP-559).
* Access: READ on the group (30).
* Empty group id 24; group of another node 16; while loading 14; unknown group or member 25; wrong generation 22;
  replaced static member 82; rebalance in progress 27.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.call import CloseConnectionError
from dualwrite.broker_emulator.api.groups import group_shard
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.groups.member_requests import SupersededError, SyncRequest, SyncResponse
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType

_PROTOCOL_VERSION = 5


async def handle(call: NodeCall) -> Any:
    request = call.request
    sync_request = await call.made(_sync_request, request)
    names = (sync_request.protocol_type, sync_request.protocol_name)
    if call.version >= _PROTOCOL_VERSION and None in names:
        return await call.refused(ErrorCode.inconsistent_group_protocol)
    if not call.is_allowed(AclOperation.READ, ResourceType.GROUP, request.group_id):
        return await call.refused(ErrorCode.group_authorization_failed)
    shard = group_shard(call, request.group_id)
    if isinstance(shard, ErrorCode):
        return await call.refused(shard)
    try:
        return _response(call, await shard.sync(request.group_id, sync_request))
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


def _response(call: NodeCall, answer: SyncResponse) -> Any:
    return call.new.response(
        throttle_time=NO_THROTTLE,
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, SyncResponse(error))
