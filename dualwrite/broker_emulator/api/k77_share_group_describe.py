"""ShareGroupDescribe (key 77), versions 1-1.

Share groups with their epochs and the assignments of their members (KIP-932).

* The empty group id 24; an unknown group, or one of another type 69, with a message; group of another node 16; while
  loading 14.
* Access: DESCRIBE on the group (30) and on every topic in an assignment of its members (29).
* At level 0 of the feature `share.version` everything is 35.
"""

from __future__ import annotations

import uuid
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import group_shard, undescribed_group
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.api.share_groups import are_share_groups_on
from dualwrite.broker_emulator.groups.consumer.group import Assignment, RefusedError
from dualwrite.broker_emulator.security.acl import NOT_ASKED_FOR, AclOperation, ResourceType
from dualwrite.broker_emulator.share.group import ASSIGNOR, ShareGroup, ShareMember
from dualwrite.broker_emulator.slices import mapped

_HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


async def handle(call: NodeCall) -> Any:
    return _response(call, await mapped(lambda group_id: _describe(call, group_id), call.request.group_ids))


def _response(call: NodeCall, groups: list[Any]) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, groups=tuple(groups))


def _describe(call: NodeCall, group_id: str) -> Any:
    if not are_share_groups_on(call):
        return undescribed_group(call, group_id, ErrorCode.unsupported_version)
    if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.GROUP, group_id):
        return undescribed_group(call, group_id, ErrorCode.group_authorization_failed)
    shard = group_shard(call, group_id)
    if isinstance(shard, ErrorCode):
        return undescribed_group(call, group_id, shard)
    try:
        group = shard.share.known(group_id)
    except RefusedError as refused:
        return undescribed_group(call, group_id, refused.error, refused.message)
    if not _are_visible(call, group):
        return undescribed_group(call, group_id, ErrorCode.topic_authorization_failed, _HIDDEN_TOPICS)
    is_asked = call.request.include_authorized_operations
    return call.new.DescribedGroup(
        error_code=ErrorCode.none,
        error_message=None,
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=ASSIGNOR,
        members=tuple(_member(call, member) for member in group.members.values()),
        authorized_operations=call.authorized_operations(ResourceType.GROUP, group_id) if is_asked else NOT_ASKED_FOR,
    )


def _are_visible(call: NodeCall, group: ShareGroup) -> bool:
    topic_ids = {name.topic_id for member in group.members.values() for name in member.assigned}
    topics = (call.cluster.topic_by_id(topic_id) for topic_id in topic_ids)
    return all(
        call.is_allowed(AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name, is_logged=False)
        for topic in topics
        if topic is not None
    )


def _member(call: NodeCall, member: ShareMember) -> Any:
    return call.new.Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.subscribed_topics)),
        assignment=_assignment(call, member.assigned),
    )


def _assignment(call: NodeCall, assignment: Assignment) -> Any:
    by_topic: dict[uuid.UUID, list[int]] = {}
    for topic_id, index in sorted(assignment):
        by_topic.setdefault(topic_id, []).append(index)
    topics = ((call.cluster.topic_by_id(topic_id), indexes) for topic_id, indexes in by_topic.items())
    return call.new.Assignment(
        topic_partitions=tuple(
            call.new.TopicPartitions(topic_id=topic.topic_id, topic_name=topic.name, partitions=tuple(indexes))
            for topic, indexes in topics
            if topic is not None
        )
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, [undescribed_group(call, group_id, error) for group_id in call.request.group_ids])
