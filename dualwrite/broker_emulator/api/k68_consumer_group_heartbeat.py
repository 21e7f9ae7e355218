"""ConsumerGroupHeartbeat (key 68), versions 0-1.

The only request of a member of a consumer group (KIP-848): it joins (epoch 0), keeps its session alive, subscribes,
releases partitions, and leaves (-1; a static member temporarily -2).

* v1: the member creates its own id (v0: the broker does, if it has none), and may subscribe by a regular expression.
* An invalid request, and the empty group id, is 42; an unknown assignor 112.
* Access: READ on the group (30), DESCRIBE on the topics in the request (29); an expression matches no others.
* Group of another node 16; while loading 14; unknown group, or one that cannot be converted 69; unknown member 25;
  wrong epoch 110; a static instance that is in use 111, or has been replaced 82; `group.consumer.max.size` reached 81;
  invalid regular expression 128.
* At level 0 of the feature `group.version`, every request gets 35, also in the profile kafka-3.9, which has v0 for
  that.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import accepted_heartbeat, group_shard, milliseconds
from dualwrite.broker_emulator.api.groups import refused_heartbeat as refuse
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.cluster.features import GROUP_VERSION, finalized_level
from dualwrite.broker_emulator.groups.consumer.group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_MEMBER_EPOCH,
    Assignment,
    RefusedError,
    new_member_id,
)
from dualwrite.broker_emulator.groups.consumer.membership import HeartbeatRequest
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace

_OWN_ID_VERSION = 1


async def handle(call: NodeCall) -> Any:
    if finalized_level(GROUP_VERSION, call.cluster.config) == 0:
        return await call.refused(ErrorCode.unsupported_version)
    request = call.request
    if not call.is_allowed(AclOperation.READ, ResourceType.GROUP, request.group_id):
        return await call.refused(ErrorCode.group_authorization_failed)
    names = request.subscribed_topic_names or ()
    pace = Pace()
    for name in names:
        if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.TOPIC, name):
            return await call.refused(ErrorCode.topic_authorization_failed)
        await pace.keep()
    try:
        _check(call)
        shard = group_shard(call, request.group_id)
        if isinstance(shard, ErrorCode):
            return await call.refused(shard)
        answer = await shard.consumer.heartbeat(request.group_id, _request(call), lambda name: _is_visible(call, name))
    except RefusedError as refused:
        return refuse(call, refused.error, refused.message)
    return await call.made(accepted_heartbeat, call, answer)


def _is_visible(call: NodeCall, topic: str) -> bool:
    return call.is_allowed(AclOperation.DESCRIBE, ResourceType.TOPIC, topic, is_logged=False)


def _check(call: NodeCall) -> None:
    """Check the request by itself, in Kafka's order. Raises RefusedError."""
    request, epoch = call.request, call.request.member_epoch
    needs_member_id = call.version >= _OWN_ID_VERSION or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH
    if needs_member_id:
        _refuse_empty(request.member_id, "MemberId")
    _refuse_empty(request.group_id, "GroupId")
    _refuse_empty(request.instance_id, "InstanceId")
    _refuse_empty(request.rack_id, "RackId")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == LEAVE_STATIC_MEMBER_EPOCH:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_STATIC_MEMBER_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    assignors = call.cluster.config.group_consumer_assignors
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise RefusedError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _check_join(request: Any) -> None:
    if milliseconds(request.rebalance_timeout) == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and getattr(request, "subscribed_topic_regex", None) is None:
        raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def _refuse_empty(value: str | None, name: str) -> None:
    if value is not None and not value.strip():
        raise _invalid(f"{name} can't be empty.")


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.invalid_request, message)


def _request(call: NodeCall) -> HeartbeatRequest:
    request = call.request
    names = request.subscribed_topic_names
    return HeartbeatRequest(
        member_id=request.member_id or new_member_id(),
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        subscribed_topics=None if names is None else frozenset(names),
        subscribed_regex=getattr(request, "subscribed_topic_regex", None),
        server_assignor=request.server_assignor,
        owned=_owned(request.topic_partitions),
        client_id=call.client_id or "",
        client_host=f"/{call.client_host}",
    )


def _owned(topics: Any) -> Assignment | None:
    if topics is None:
        return None
    return frozenset(TopicIdPartition(topic.topic_id, index) for topic in topics for index in topic.partitions)
