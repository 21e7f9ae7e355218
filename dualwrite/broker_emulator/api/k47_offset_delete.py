"""OffsetDelete (key 47), version 0.

Deletes offsets of a group (KIP-496).

* Empty group id 24; unknown group 69; group of another node 16; while loading 14; a group whose members are not
  consumers 68.
* Access: DELETE on the group (30), READ on the topics (29).
* Unknown partition 3; a topic that the members subscribe to 86. An offset that does not exist is no error.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import group_shard
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.cluster.topics import TopicPartition
from dualwrite.broker_emulator.groups.shard import GroupShard
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace

_Errors = dict[TopicPartition, ErrorCode]


async def handle(call: NodeCall) -> Any:
    group_id = call.request.group_id
    if not call.is_allowed(AclOperation.DELETE, ResourceType.GROUP, group_id):
        return await call.refused(ErrorCode.group_authorization_failed)
    shard = group_shard(call, group_id)
    if isinstance(shard, ErrorCode):
        return await call.refused(shard)
    error = shard.delete_offsets_error(group_id)
    if error is not ErrorCode.none:
        return await call.refused(error)
    errors = await _errors(call, shard)
    error = shard.delete_offsets(group_id, [name for name, error in errors.items() if error is ErrorCode.none])
    return await call.made(_response, call, error, {} if error is not ErrorCode.none else errors)


async def _errors(call: NodeCall, shard: GroupShard) -> _Errors:
    group = shard.groups[call.request.group_id]
    errors: _Errors = {}
    pace = Pace()
    for topic in call.request.topics:
        await pace.keep()
        is_allowed = call.is_allowed(AclOperation.READ, ResourceType.TOPIC, topic.name)
        for partition in topic.partitions:
            await pace.keep()
            name = TopicPartition(topic.name, partition.partition_index)
            if not is_allowed:
                errors[name] = ErrorCode.topic_authorization_failed
            elif call.cluster.partition(*name) is None:
                errors[name] = ErrorCode.unknown_topic_or_partition
            elif group.is_subscribed_to(topic.name):
                errors[name] = ErrorCode.group_subscribed_to_topic
            else:
                errors[name] = ErrorCode.none
    return errors


def _response(call: NodeCall, error: ErrorCode, errors: _Errors) -> Any:
    new = call.new
    return new.response(
        throttle_time=NO_THROTTLE,
        error_code=error,
        topics=tuple(
            new.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    new.OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=errors[TopicPartition(topic.name, partition.partition_index)],
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in call.request.topics
            if errors
        ),
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, error, {})
