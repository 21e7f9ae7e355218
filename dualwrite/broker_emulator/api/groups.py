"""Groups in requests: finding a group, and responses to heartbeats and descriptions of groups."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.groups.consumer.group import Assignment, HeartbeatResponse
from dualwrite.broker_emulator.groups.consumer.topics import by_id_and_index
from dualwrite.broker_emulator.groups.shard import GroupShard
from dualwrite.broker_emulator.security.acl import NOT_ASKED_FOR

_MILLISECOND = timedelta(milliseconds=1)


def group_shard(call: NodeCall, group_id: str, *, allow_empty_id: bool = False) -> GroupShard | ErrorCode:
    """Return this node's shard of the group, or the error: 24 for the id "", 14 while loading, 16 on another node."""
    if group_id == "" and not allow_empty_id:
        return ErrorCode.invalid_group_id
    return call.node.groups.shard(group_id)


def milliseconds(duration: timedelta) -> int:
    """Return a duration in whole milliseconds."""
    return duration // _MILLISECOND


# --- groups with heartbeats (KIP-848, KIP-932) ------------------------------------------------------------------------


def refused_heartbeat(call: NodeCall, error: ErrorCode, message: str | None = None) -> Any:
    """Build the response to a refused heartbeat."""
    return call.new.response(
        throttle_time=NO_THROTTLE,
        error_code=error,
        error_message=message,
        member_id=None,
        member_epoch=0,
        heartbeat_interval=timedelta(0),
        assignment=None,
    )


def accepted_heartbeat(call: NodeCall, answer: HeartbeatResponse) -> Any:
    """Build the response to an accepted heartbeat."""
    return call.new.response(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=timedelta(milliseconds=answer.heartbeat_interval_ms),
        assignment=None if answer.assignment is None else _assignment(call, answer.assignment),
    )


def _assignment(call: NodeCall, assignment: Assignment) -> Any:
    by_topic: dict[uuid.UUID, list[int]] = {}
    for topic_id, index in sorted(assignment, key=by_id_and_index):
        by_topic.setdefault(topic_id, []).append(index)
    topics = tuple(
        call.new.TopicPartitions(topic_id=topic_id, partitions=tuple(indexes)) for topic_id, indexes in by_topic.items()
    )
    return call.new.Assignment(topic_partitions=topics)


def undescribed_group(call: NodeCall, group_id: str, error: ErrorCode, message: str | None = None) -> Any:
    """Build the part of a response for a group that is not described."""
    return call.new.DescribedGroup(
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
        authorized_operations=NOT_ASKED_FOR,
    )
