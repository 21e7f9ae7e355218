"""Consumer groups whose coordinator assigns the partitions (KIP-848)."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import (
    HIDDEN_TOPICS,
    accepted_heartbeat,
    described_assignment,
    described_groups,
    group_shard,
    may_describe_all,
    milliseconds,
    refuse_group_descriptions,
    refused_heartbeat,
    require_descriptions,
    undescribed_group,
)
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.cluster.features import GROUP_VERSION, finalized_level
from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.consumer.group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_MEMBER_EPOCH,
    Assignment,
    ConsumerGroup,
    ConsumerMember,
    new_member_id,
)
from dualwrite.broker_emulator.groups.consumer.membership import HeartbeatRequest
from dualwrite.broker_emulator.groups.consumer.service import consumer_group
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition
from dualwrite.broker_emulator.security.acl import NOT_ASKED_FOR, AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Steps, in_slices

_OWN_ID_VERSION = 1


async def handle_consumer_group_heartbeat(call: NodeCall) -> Any:
    """Serve ConsumerGroupHeartbeat (key 68), versions 0-1.

    The only request of a member of a consumer group (KIP-848): it joins (epoch 0), keeps its session alive, subscribes,
    releases partitions, and leaves (-1; a static member temporarily -2).

    * v1: the member creates its own id (v0: the broker does, if it has none), and may subscribe by a regular
      expression.
    * An invalid request, and the empty group id, is 42; an unknown assignor 112.
    * Access: READ on the group (30), DESCRIBE on the topics in the request (29); an expression matches no others.
    * Group of another node 16; while loading 14; unknown group, or one that cannot be converted 69; unknown member 25;
      wrong epoch 110; a static instance that is in use 111, or has been replaced 82; `group.consumer.max.size` reached
      81; invalid regular expression 128.
    * At level 0 of the feature `group.version`, every request gets 35, also in the profile kafka-3.9, which has v0 for
      that.
    """
    if finalized_level(GROUP_VERSION, call.cluster.config) == 0:
        return await call.refused(ErrorCode.unsupported_version)
    request = call.request
    call.require(AclOperation.READ, ResourceType.GROUP, request.group_id)
    await require_descriptions(call, request.subscribed_topic_names or ())
    try:
        _check(call)
        shard = group_shard(call, request.group_id)
        answer = await shard.consumer.heartbeat(request.group_id, _request(call), lambda name: _is_visible(call, name))
    except RefusedError as refused:
        return refuse_consumer_group_heartbeat(call, refused.error, refused.message)
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


refuse_consumer_group_heartbeat = refused_heartbeat


async def handle_consumer_group_describe(call: NodeCall) -> Any:
    """Serve ConsumerGroupDescribe (key 69), versions 0-1.

    Consumer groups (KIP-848) with their epochs, and the current and target assignments of their members.

    * v1 has the protocol of each member: classic (0) or new (1).
    * Unknown group, or a classic one 69, with a message; group of another node 16; while loading 14.
    * Access: DESCRIBE on the group (30) and on every topic in an assignment of its members (29).
    * Partitions that a member has yet to release are part of its current assignment. Deleted topics are omitted.
    * At level 0 of the feature `group.version`, every request gets 35, also in the profile kafka-3.9, which has v0 for
      that.
    """
    return described_groups(call, await in_slices(_described(call)))


def _described(call: NodeCall) -> Steps[list[Any]]:
    groups = []
    for group_id in call.request.group_ids:
        groups.append((yield from _description(call, group_id)))
        yield
    return groups


def _description(call: NodeCall, group_id: str) -> Steps[Any]:
    """Describe the current state of a group, one topic of its members' assignments per step."""
    try:
        call.require(AclOperation.DESCRIBE, ResourceType.GROUP, group_id)
        group = _group(call, group_id)
    except RefusedError as refused:
        return undescribed_group(call, group_id, refused.error, refused.message)
    is_visible = _are_visible(call, group)
    members = []
    for member in group.members.values() if is_visible else ():
        members.append((yield from _member(call, group, member)))
    return call.new.DescribedGroup(
        error_code=ErrorCode.none if is_visible else ErrorCode.topic_authorization_failed,
        error_message=None if is_visible else HIDDEN_TOPICS,
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor(call.cluster.config.group_consumer_assignors[0]),
        members=tuple(members),
        authorized_operations=_operations(call, group_id) if is_visible else NOT_ASKED_FOR,
    )


def _group(call: NodeCall, group_id: str) -> ConsumerGroup:
    """Return the group. Raises RefusedError if there is no consumer group of this id here."""
    if finalized_level(GROUP_VERSION, call.cluster.config) == 0:
        raise RefusedError(ErrorCode.unsupported_version)
    shard = group_shard(call, group_id)
    if shard.has_share_group(group_id):
        raise RefusedError(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")
    return consumer_group(shard.groups.get(group_id), group_id)


def _operations(call: NodeCall, group_id: str) -> int:
    is_asked = call.request.include_authorized_operations
    return call.authorized_operations(ResourceType.GROUP, group_id) if is_asked else NOT_ASKED_FOR


def _are_visible(call: NodeCall, group: ConsumerGroup) -> bool:
    topic_ids = {name.topic_id for member in group.members.values() for name in member.owned}
    topic_ids |= {name.topic_id for target in group.targets.values() for name in target}
    return may_describe_all(call, topic_ids)


def _member(call: NodeCall, group: ConsumerGroup, member: ConsumerMember) -> Steps[Any]:
    assignment = yield from described_assignment(call, frozenset(member.owned))
    target = yield from described_assignment(call, group.target(member.member_id))
    return call.new.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.subscribed_topics)),
        subscribed_topic_regex=member.subscribed_regex,
        assignment=assignment,
        target_assignment=target,
        member_type=0 if member.is_classic else 1,
    )


refuse_consumer_group_describe = refuse_group_descriptions
