"""DeleteShareGroupOffsets (key 92), version 0.

Deletes the state of a share group without members in some topics (KIP-932).

* A group with members is 68, an unknown group or one of another type 69, each with a message.
* Access: DELETE on the group (30), READ on the topics (29).
* Unknown topic 3, with a message; a topic without state is no error. Group of another node 16; while loading 14.
* At level 0 of the feature `share.version` it is 35.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import group_shard
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.share_groups import (
    FORBIDDEN_TOPIC,
    UNKNOWN_PARTITION,
    are_share_groups_on,
    offsets_changed,
)
from dualwrite.broker_emulator.api.share_groups import refused_offsets as refuse
from dualwrite.broker_emulator.cluster.topics import Topic
from dualwrite.broker_emulator.groups.consumer.group import RefusedError
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace, mapped


async def handle(call: NodeCall) -> Any:
    request = call.request
    if not are_share_groups_on(call):
        return refuse(call, ErrorCode.unsupported_version)
    if not call.is_allowed(AclOperation.DELETE, ResourceType.GROUP, request.group_id):
        return refuse(call, ErrorCode.group_authorization_failed)
    shard = group_shard(call, request.group_id)
    if isinstance(shard, ErrorCode):
        return refuse(call, shard)
    found: list[Topic] = []
    refused = []
    pace = Pace()
    for requested in request.topics:
        await pace.keep()
        topic = call.cluster.topics.get(requested.topic_name)
        if not call.is_allowed(AclOperation.READ, ResourceType.TOPIC, requested.topic_name):
            refused.append(
                _row(call, requested.topic_name, None, ErrorCode.topic_authorization_failed, FORBIDDEN_TOPIC)
            )
        elif topic is None:
            refused.append(
                _row(call, requested.topic_name, None, ErrorCode.unknown_topic_or_partition, UNKNOWN_PARTITION)
            )
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
