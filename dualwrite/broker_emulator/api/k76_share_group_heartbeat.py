"""ShareGroupHeartbeat (key 76), versions 1-1.

The only request of a member of a share group (KIP-932): it joins (epoch 0), keeps its session alive, subscribes, and
leaves (-1). The member creates its own id.

* An invalid request, and the empty group id, is 42.
* Access: READ on the group (30), DESCRIBE on the topics in the request (29).
* Group of another node 16; while loading 14; unknown group, or one of another type 69; unknown member 25; wrong epoch
  110; `group.share.max.size` reached 81.
* At level 0 of the feature `share.version` everything is 35.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import accepted_heartbeat, group_shard
from dualwrite.broker_emulator.api.groups import refused_heartbeat as refuse
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.share_groups import are_share_groups_on, is_member_id
from dualwrite.broker_emulator.groups.consumer.group import JOIN_EPOCH, LEAVE_EPOCH, RefusedError
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.share.membership import ShareHeartbeat
from dualwrite.broker_emulator.slices import Pace


async def handle(call: NodeCall) -> Any:
    request = call.request
    if not are_share_groups_on(call):
        return refuse(call, ErrorCode.unsupported_version)
    if not call.is_allowed(AclOperation.READ, ResourceType.GROUP, request.group_id):
        return refuse(call, ErrorCode.group_authorization_failed)
    if not await _may_describe(call, request.subscribed_topic_names or ()):
        return refuse(call, ErrorCode.topic_authorization_failed)
    try:
        _check(request)
        shard = group_shard(call, request.group_id)
        if isinstance(shard, ErrorCode):
            return refuse(call, shard)
        answer = await shard.share.heartbeat(request.group_id, _heartbeat(call))
    except RefusedError as refused:
        return refuse(call, refused.error, refused.message or None)
    return accepted_heartbeat(call, answer)


async def _may_describe(call: NodeCall, names: Sequence[str]) -> bool:
    """Return whether the client may see all of the topics."""
    pace = Pace()
    for name in names if call.cluster.authorizer else ():
        await pace.keep()
        if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.TOPIC, name):
            return False
    return True


def _check(request: Any) -> None:
    """Check the request by itself, in Kafka's order. Raises RefusedError."""
    if not is_member_id(request.member_id):
        raise RefusedError(ErrorCode.invalid_request, "")
    if not request.group_id.strip():
        raise _invalid("GroupId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        raise _invalid("RackId can't be empty.")
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        raise _invalid("SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.invalid_request, message)


def _heartbeat(call: NodeCall) -> ShareHeartbeat:
    request = call.request
    names = request.subscribed_topic_names
    return ShareHeartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        subscribed_topics=None if names is None else frozenset(names),
        client_id=call.client_id or "",
        client_host=f"/{call.client_host}",
    )
