"""OffsetForLeaderEpoch (key 23), versions 2-4.

The end of a leader epoch's records, so that a consumer notices that its position is in a lost part of the log
(KIP-320).

* The response has the newest epoch that is not newer than the requested one, and the offset after its last record. For
  the current epoch that is the log end; an unknown future epoch, or one below 0, gets (-1, -1), without an error.
* v3 replica id, which has no effect here; v4 flexible.
* Access: DESCRIBE on the topics (29), or CLUSTER_ACTION.
* Unknown partition 3; led by another node 6; wrong current leader epoch 74 / 75; failed read from the disk 56.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.api.topics import allowed_topic, check_leader_epoch, led_partition, requested_topic
from dualwrite.broker_emulator.cluster.topics import Topic
from dualwrite.broker_emulator.log.leader_epochs import UNKNOWN_EPOCH, EpochEnd
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped_rows


async def handle(call: NodeCall) -> Any:
    named = [(topic, requested) for topic in call.request.topics for requested in topic.partitions]
    return await call.made(_response, call, await mapped_rows(lambda pair: _end(call, *pair), named))


def _end(call: NodeCall, requested_in: Any, requested: Any) -> Any:
    topic, error = _allowed_topic(call, requested_in)
    if topic is None:
        return _row(call, requested.partition, error)
    partition, error = led_partition(call, topic, requested.partition)
    if partition is None:
        return _row(call, requested.partition, error)
    error = check_leader_epoch(partition, requested)
    if error is not ErrorCode.none:
        return _row(call, requested.partition, error)
    try:
        return _row(call, requested.partition, error, partition.log.end_of_epoch(requested.leader_epoch))
    except StorageError:
        return _row(call, requested.partition, ErrorCode.kafka_storage_error)


def _allowed_topic(call: NodeCall, requested: Any) -> tuple[Topic | None, ErrorCode]:
    if call.is_allowed(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, is_logged=False):
        return requested_topic(call, requested)
    return allowed_topic(call, requested, AclOperation.DESCRIBE)


def _row(call: NodeCall, index: int, error: ErrorCode, end: EpochEnd = UNKNOWN_EPOCH) -> Any:
    return call.new.EpochEndOffset(error_code=error, partition=index, **end._asdict())


def _response(call: NodeCall, row_of: Any) -> Any:
    return call.new.response(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            call.new.OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=tuple(row_of(topic, requested) for requested in topic.partitions)
            )
            for topic in call.request.topics
        ),
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, lambda topic, requested: _row(call, requested.partition, error))
