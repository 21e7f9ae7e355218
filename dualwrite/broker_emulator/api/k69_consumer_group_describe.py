"""ConsumerGroupDescribe (key 69), versions 0-1.

Consumer groups (KIP-848) with their epochs, and the current and target assignments of their members.

* v1 has the protocol of each member: classic (0) or new (1).
* Unknown group, or a classic one 69, with a message; group of another node 16; while loading 14.
* Access: DESCRIBE on the group (30) and on every topic in an assignment of its members (29).
* Partitions that a member has yet to release are part of its current assignment. Deleted topics are omitted.
* At level 0 of the feature `group.version`, every request gets 35, also in the profile kafka-3.9, which has v0 for
  that.
"""

from __future__ import annotations

import uuid
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import group_shard, undescribed_group
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.cluster.features import GROUP_VERSION, finalized_level
from dualwrite.broker_emulator.groups.consumer.group import Assignment, ConsumerGroup, ConsumerMember, RefusedError
from dualwrite.broker_emulator.groups.consumer.service import consumer_group
from dualwrite.broker_emulator.groups.consumer.topics import by_id_and_index
from dualwrite.broker_emulator.security.acl import NOT_ASKED_FOR, AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Steps, in_slices

_HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


async def handle(call: NodeCall) -> Any:
    return _response(call, await in_slices(_described(call)))


def _response(call: NodeCall, groups: list[Any]) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, groups=tuple(groups))


def _described(call: NodeCall) -> Steps[list[Any]]:
    groups = []
    for group_id in call.request.group_ids:
        groups.append((yield from _description(call, group_id)))
        yield
    return groups


def _description(call: NodeCall, group_id: str) -> Steps[Any]:
    """Describe the current state of a group, one topic of its members' assignments per step."""
    if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.GROUP, group_id):
        return undescribed_group(call, group_id, ErrorCode.group_authorization_failed)
    if finalized_level(GROUP_VERSION, call.cluster.config) == 0:
        return undescribed_group(call, group_id, ErrorCode.unsupported_version)
    shard = group_shard(call, group_id)
    if isinstance(shard, ErrorCode):
        return undescribed_group(call, group_id, shard)
    if shard.has_share_group(group_id):
        message = f"Group {group_id} is not a consumer group."
        return undescribed_group(call, group_id, ErrorCode.group_id_not_found, message)
    try:
        group = consumer_group(shard.groups.get(group_id), group_id)
    except RefusedError as refused:
        return undescribed_group(call, group_id, refused.error, refused.message)
    is_visible = _are_visible(call, group)
    members = []
    for member in group.members.values() if is_visible else ():
        members.append((yield from _member(call, group, member)))
    return call.new.DescribedGroup(
        error_code=ErrorCode.none if is_visible else ErrorCode.topic_authorization_failed,
        error_message=None if is_visible else _HIDDEN_TOPICS,
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor(call.cluster.config.group_consumer_assignors[0]),
        members=tuple(members),
        authorized_operations=_operations(call, group_id) if is_visible else NOT_ASKED_FOR,
    )


def _operations(call: NodeCall, group_id: str) -> int:
    is_asked = call.request.include_authorized_operations
    return call.authorized_operations(ResourceType.GROUP, group_id) if is_asked else NOT_ASKED_FOR


def _are_visible(call: NodeCall, group: ConsumerGroup) -> bool:
    topic_ids = {name.topic_id for member in group.members.values() for name in member.owned}
    topic_ids |= {name.topic_id for target in group.targets.values() for name in target}
    topics = (call.cluster.topic_by_id(topic_id) for topic_id in topic_ids)
    return all(
        call.is_allowed(AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name, is_logged=False)
        for topic in topics
        if topic is not None
    )


def _member(call: NodeCall, group: ConsumerGroup, member: ConsumerMember) -> Steps[Any]:
    assignment = yield from _assignment(call, frozenset(member.owned))
    target = yield from _assignment(call, group.target(member.member_id))
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


def _assignment(call: NodeCall, assignment: Assignment) -> Steps[Any]:
    by_topic: dict[uuid.UUID, list[int]] = {}
    for topic_id, index in sorted(assignment, key=by_id_and_index):
        by_topic.setdefault(topic_id, []).append(index)
    rows = []
    for topic_id, indexes in by_topic.items():
        topic = call.cluster.topic_by_id(topic_id)
        if topic is not None:
            row = call.new.TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=tuple(indexes))
            rows.append(row)
        yield
    return call.new.Assignment(topic_partitions=tuple(rows))


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, [undescribed_group(call, group_id, error) for group_id in call.request.group_ids])
