"""AlterShareGroupOffsets (key 91), version 0.

Changes the start offsets of a share group without members (KIP-932); records in flight are forgotten. An unknown group
is created.

* A group with members is 68, a group of another type 69, each with a message.
* Access: READ on the group (30) and on the topics (29).
* A negative start offset other than -1 is 42 for the whole request, with a message.
* Unknown topic or partition 3, with a message; group of another node 16; while loading 14.
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
from dualwrite.broker_emulator.groups.consumer.group import RefusedError
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.share.groups_service import AlteredOffset
from dualwrite.broker_emulator.slices import Pace


async def handle(call: NodeCall) -> Any:
    request = call.request
    if not are_share_groups_on(call):
        return refuse(call, ErrorCode.unsupported_version)
    if not call.is_allowed(AclOperation.READ, ResourceType.GROUP, request.group_id):
        return refuse(call, ErrorCode.group_authorization_failed)
    shard = group_shard(call, request.group_id)
    if isinstance(shard, ErrorCode):
        return refuse(call, shard)
    altered: list[AlteredOffset] = []
    refused: list[Any] = []
    accepted: list[Any] = []
    pace = Pace()
    for requested in request.topics:
        row, is_known = await _topic(call, requested, altered, pace)
        (accepted if is_known else refused).append(row)
    try:
        await shard.share.alter_offsets(request.group_id, altered)
    except RefusedError as error:
        return offsets_changed(call, error.error, error.message, [])
    return offsets_changed(call, ErrorCode.none, None, refused + accepted)


async def _topic(call: NodeCall, requested: Any, altered: list[AlteredOffset], pace: Pace) -> tuple[Any, bool]:
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
