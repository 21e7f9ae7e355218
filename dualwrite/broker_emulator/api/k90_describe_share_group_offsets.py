"""DescribeShareGroupOffsets (key 90), versions 0-1.

The start offsets of share groups (KIP-932), and the number of records that they still have to read (v1, KIP-1226).

* The start offset is -1 for unknown partitions, unfetched ones, and those of an unknown group.
* Without topics in the request: all topics of the group that the client may DESCRIBE.
* Access: DESCRIBE on the group (30) and on the topics (29).
* Group of another node 16; while loading 14.
* At level 0 of the feature `share.version` everything is 35.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import group_shard
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.api.share_groups import are_share_groups_on
from dualwrite.broker_emulator.cluster.topics import Topic
from dualwrite.broker_emulator.groups.shard import GroupShard
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.share.ports import StateError
from dualwrite.broker_emulator.share.state import NO_OFFSET, NO_SUMMARY, UNKNOWN_COUNT, StateKey, Summary
from dualwrite.broker_emulator.slices import Pace


async def handle(call: NodeCall) -> Any:
    pace = Pace()
    groups = []
    for group in call.request.groups:
        await pace.keep()
        groups.append(await _group(call, group, pace))
    return _response(call, groups)


async def _group(call: NodeCall, requested: Any, pace: Pace) -> Any:
    if not are_share_groups_on(call):
        return _error(call, requested, ErrorCode.unsupported_version)
    if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.GROUP, requested.group_id):
        return _error(call, requested, ErrorCode.group_authorization_failed)
    shard = group_shard(call, requested.group_id, allow_empty_id=True)
    if isinstance(shard, ErrorCode):
        return _error(call, requested, shard)
    topics = []
    if requested.topics is None:
        for topic, indexes in _known_topics(call, shard, requested.group_id):
            if _is_visible(call, topic.name):
                topics.append(await _topic(call, requested.group_id, topic.name, indexes, pace))
    else:
        for row in requested.topics:
            topics.append(await _topic(call, requested.group_id, row.topic_name, row.partitions, pace))
    return call.new.DescribeShareGroupOffsetsResponseGroup(
        group_id=requested.group_id, topics=tuple(topics), error_code=ErrorCode.none, error_message=None
    )


def _known_topics(call: NodeCall, shard: GroupShard, group_id: str) -> list[tuple[Topic, list[int]]]:
    group = shard.share.groups.get(group_id)
    known = {} if group is None else group.initialized
    found = ((call.cluster.topic_by_id(topic_id), sorted(topic.partitions)) for topic_id, topic in known.items())
    return [(topic, indexes) for topic, indexes in found if topic is not None]


def _is_visible(call: NodeCall, topic: str) -> bool:
    return call.is_allowed(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)


async def _topic(call: NodeCall, group_id: str, name: str, indexes: Any, pace: Pace) -> Any:
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
        error_message=None,
    )


def _lag(summary: Summary, high_watermark: int) -> int:
    """Return the number of records that were not delivered completely; -1 if unknown."""
    if summary.start_offset == NO_OFFSET or summary.delivery_complete_count == UNKNOWN_COUNT:
        return -1
    return high_watermark - summary.start_offset - summary.delivery_complete_count


def _error(call: NodeCall, requested: Any, error: ErrorCode) -> Any:
    return call.new.DescribeShareGroupOffsetsResponseGroup(
        group_id=requested.group_id, topics=(), error_code=error, error_message=None
    )


def _response(call: NodeCall, groups: list[Any]) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, groups=tuple(groups))


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, [_error(call, group, error) for group in call.request.groups])
