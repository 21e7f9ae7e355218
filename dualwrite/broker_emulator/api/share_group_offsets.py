"""The offsets at which share groups start (KIP-932): described, altered, deleted."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import described_groups, group_shard
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.share_groups import (
    FORBIDDEN_TOPIC,
    UNKNOWN_PARTITION,
    offsets_changed,
    refused_offsets,
    require_share_group,
)
from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.shard import GroupShard
from dualwrite.broker_emulator.groups.share.service import AlteredOffset
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.share.state import NO_OFFSET, NO_SUMMARY, UNKNOWN_COUNT, StateError, StateKey, Summary
from dualwrite.broker_emulator.slices import Pace, mapped
from dualwrite.broker_emulator.topics.topics import Topic


async def handle_describe_share_group_offsets(call: NodeCall) -> Any:
    """Serve DescribeShareGroupOffsets (key 90), versions 0-1.

    The start offsets of share groups (KIP-932), and the number of records that they still have to read (v1, KIP-1226).

    * The start offset is -1 for unknown partitions, unfetched ones, and those of an unknown group.
    * Without topics in the request: all topics of the group that the client may DESCRIBE.
    * Access: DESCRIBE on the group (30) and on the topics (29).
    * Group of another node 16; while loading 14.
    * At level 0 of the feature `share.version` everything is 35.
    """
    pace = Pace()
    groups = []
    for group in call.request.groups:
        await pace.keep()
        groups.append(await _group(call, group, pace))
    return described_groups(call, groups)


async def _group(call: NodeCall, requested: Any, pace: Pace) -> Any:
    try:
        require_share_group(call, AclOperation.DESCRIBE, requested.group_id)
        shard = group_shard(call, requested.group_id, allow_empty_id=True)
    except RefusedError as refused:
        return _described(call, requested, [], refused.error)
    topics = []
    if requested.topics is None:
        for topic, indexes in _known_topics(call, shard, requested.group_id):
            if _is_visible(call, topic.name):
                topics.append(await _described_topic(call, requested.group_id, topic.name, indexes, pace))
    else:
        for row in requested.topics:
            topics.append(await _described_topic(call, requested.group_id, row.topic_name, row.partitions, pace))
    return _described(call, requested, topics, ErrorCode.none)


def _known_topics(call: NodeCall, shard: GroupShard, group_id: str) -> list[tuple[Topic, list[int]]]:
    group = shard.share.groups.get(group_id)
    known = {} if group is None else group.initialized
    found = ((call.cluster.topic_by_id(topic_id), sorted(topic.partitions)) for topic_id, topic in known.items())
    return [(topic, indexes) for topic, indexes in found if topic is not None]


def _is_visible(call: NodeCall, topic: str) -> bool:
    return call.is_allowed(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)


async def _described_topic(call: NodeCall, group_id: str, name: str, indexes: Any, pace: Pace) -> Any:
    await pace.keep()
    topic = call.cluster.topics.get(name)
    is_visible = _is_visible(call, name)
    rows = []
    for index in indexes:
        await pace.keep()
        rows.append(_partition(call, group_id, topic, index, is_visible=is_visible))
    return call.new.DescribeShareGroupOffsetsResponseTopic(
        topic_name=name, topic_id=topic.topic_id if topic and is_visible else None, partitions=tuple(rows)
    )


def _partition(call: NodeCall, group_id: str, topic: Topic | None, index: int, *, is_visible: bool) -> Any:
    error, summary, lag = ErrorCode.none, NO_SUMMARY, -1
    if not is_visible:
        error = ErrorCode.topic_authorization_failed
    elif topic is not None and 0 <= index < len(topic.partitions):
        try:
            key = StateKey(group_id, topic.topic_id, index)
            summary = call.cluster.share_states.shard(key).summary(key)
            lag = _lag(summary, topic.partitions[index].log.high_watermark)
        except StateError as failed:
            error = failed.error
    return call.new.DescribeShareGroupOffsetsResponsePartition(
        partition_index=index,
        start_offset=summary.start_offset,
        leader_epoch=summary.leader_epoch,
        lag=lag,
        error_code=error,
    )


def _lag(summary: Summary, high_watermark: int) -> int:
    """Return the number of records that were not delivered completely; -1 if unknown."""
    if summary.start_offset == NO_OFFSET or summary.delivery_complete_count == UNKNOWN_COUNT:
        return -1
    return high_watermark - summary.start_offset - summary.delivery_complete_count


def _described(call: NodeCall, requested: Any, topics: list[Any], error: ErrorCode) -> Any:
    return call.new.DescribeShareGroupOffsetsResponseGroup(
        group_id=requested.group_id, topics=tuple(topics), error_code=error
    )


def refuse_describe_share_group_offsets(call: NodeCall, error: ErrorCode) -> Any:
    return described_groups(call, [_described(call, group, [], error) for group in call.request.groups])


async def handle_alter_share_group_offsets(call: NodeCall) -> Any:
    """Serve AlterShareGroupOffsets (key 91), version 0.

    Changes the start offsets of a share group without members (KIP-932); records in flight are forgotten. An unknown
    group is created.

    * A group with members is 68, a group of another type 69, each with a message.
    * Access: READ on the group (30) and on the topics (29).
    * A negative start offset other than -1 is 42 for the whole request, with a message.
    * Unknown topic or partition 3, with a message; group of another node 16; while loading 14.
    * At level 0 of the feature `share.version` it is 35.
    """
    request = call.request
    require_share_group(call, AclOperation.READ, request.group_id)
    shard = group_shard(call, request.group_id)
    altered: list[AlteredOffset] = []
    refused: list[Any] = []
    accepted: list[Any] = []
    pace = Pace()
    for requested in request.topics:
        row, is_known = await _altered_topic(call, requested, altered, pace)
        (accepted if is_known else refused).append(row)
    try:
        await shard.share.alter_offsets(request.group_id, altered)
    except RefusedError as error:
        return offsets_changed(call, error.error, error.message, [])
    return offsets_changed(call, ErrorCode.none, None, refused + accepted)


async def _altered_topic(call: NodeCall, requested: Any, altered: list[AlteredOffset], pace: Pace) -> tuple[Any, bool]:
    """Return the topic's part of the response and whether the topic exists; add its altered offsets to `altered`."""
    topic = call.cluster.topics.get(requested.topic_name)
    is_allowed = call.is_allowed(AclOperation.READ, ResourceType.TOPIC, requested.topic_name)
    rows = []
    await pace.keep()
    for partition in requested.partitions:
        await pace.keep()
        error, message = ErrorCode.none, None
        if not is_allowed:
            error, message = ErrorCode.topic_authorization_failed, FORBIDDEN_TOPIC
        elif topic is None or not 0 <= partition.partition_index < len(topic.partitions):
            error, message = ErrorCode.unknown_topic_or_partition, UNKNOWN_PARTITION
        else:
            altered.append(AlteredOffset(topic, partition.partition_index, partition.start_offset))
        rows.append(
            call.new.AlterShareGroupOffsetsResponsePartition(
                partition_index=partition.partition_index, error_code=error, error_message=message
            )
        )
    is_known = topic is not None and is_allowed
    row = call.new.AlterShareGroupOffsetsResponseTopic(
        topic_name=requested.topic_name,
        topic_id=topic.topic_id if topic is not None and is_allowed else None,
        partitions=tuple(rows),
    )
    return row, is_known


refuse_alter_share_group_offsets = refused_offsets


async def handle_delete_share_group_offsets(call: NodeCall) -> Any:
    """Serve DeleteShareGroupOffsets (key 92), version 0.

    Deletes the state of a share group without members in some topics (KIP-932).

    * A group with members is 68, an unknown group or one of another type 69, each with a message.
    * Access: DELETE on the group (30), READ on the topics (29).
    * Unknown topic 3, with a message; a topic without state is no error. Group of another node 16; while loading 14.
    * At level 0 of the feature `share.version` it is 35.
    """
    request = call.request
    require_share_group(call, AclOperation.DELETE, request.group_id)
    shard = group_shard(call, request.group_id)
    found: list[Topic] = []
    refused = []
    pace = Pace()
    for requested in request.topics:
        await pace.keep()
        name = requested.topic_name
        topic = call.cluster.topics.get(name)
        if not call.is_allowed(AclOperation.READ, ResourceType.TOPIC, name):
            refused.append(_row(call, name, None, ErrorCode.topic_authorization_failed, FORBIDDEN_TOPIC))
        elif topic is None:
            refused.append(_row(call, name, None, ErrorCode.unknown_topic_or_partition, UNKNOWN_PARTITION))
        else:
            found.append(topic)
    try:
        await shard.share.delete_offsets(request.group_id, found)
    except RefusedError as error:
        return offsets_changed(call, error.error, error.message, [])
    deleted = await mapped(lambda topic: _row(call, topic.name, topic, ErrorCode.none, None), found)
    return offsets_changed(call, ErrorCode.none, None, deleted + refused)


def _row(call: NodeCall, name: str, topic: Topic | None, error: ErrorCode, message: str | None) -> Any:
    return call.new.DeleteShareGroupOffsetsResponseTopic(
        topic_name=name, topic_id=None if topic is None else topic.topic_id, error_code=error, error_message=message
    )


refuse_delete_share_group_offsets = refused_offsets
