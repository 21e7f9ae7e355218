"""DescribeProducers (key 61), version 0.

The producers known to a node with a replica of a partition, with or without an open transaction (KIP-664).

* Access: READ on the topics (29).
* Illegal topic name 17; unknown partition 3; no replica on this node 6. A follower responds like the leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.cluster.topics import why_not_a_topic_name
from dualwrite.broker_emulator.log.results import ProducerDescription
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped_rows


async def handle(call: NodeCall) -> Any:
    named = [(topic.name, index) for topic in call.request.topics for index in topic.partition_indexes]
    return await call.made(_response, call, await mapped_rows(lambda pair: _describe(call, *pair), named))


def _describe(call: NodeCall, name: str, index: int) -> Any:
    problem = why_not_a_topic_name(name)
    if problem is not None:
        return _partition(call, index, ErrorCode.invalid_topic_exception, message=problem)
    if not call.is_allowed(AclOperation.READ, ResourceType.TOPIC, name):
        return _partition(call, index, ErrorCode.topic_authorization_failed)
    topic = call.cluster.topics.get(name)
    if topic is None:
        return _partition(call, index, ErrorCode.unknown_topic_or_partition)
    if not 0 <= index < len(topic.partitions):
        return _partition(call, index, ErrorCode.unknown_topic_or_partition)
    partition = topic.partitions[index]
    if call.node.node_id not in partition.replicas:
        return _partition(call, index, ErrorCode.not_leader_or_follower)
    return _partition(call, index, ErrorCode.none, partition.log.producers())


def _partition(
    call: NodeCall,
    index: int,
    error: ErrorCode,
    producers: Sequence[ProducerDescription] = (),
    message: str | None = None,
) -> Any:
    return call.new.PartitionResponse(
        partition_index=index,
        error_code=error,
        error_message=message,
        active_producers=tuple(call.new.ProducerState(**producer._asdict()) for producer in producers),
    )


def _response(call: NodeCall, partition_of: Any) -> Any:
    return call.new.response(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            call.new.TopicResponse(
                name=topic.name, partitions=tuple(partition_of(topic.name, index) for index in topic.partition_indexes)
            )
            for topic in call.request.topics
        ),
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, lambda name, index: _partition(call, index, error))
