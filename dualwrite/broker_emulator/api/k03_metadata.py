"""Metadata (key 3), versions 0-13.

Living nodes, topics, partitions and leaders.

* No topics means all of them: an empty list in v0, null from v1 on (where an empty list requests none).
* v4+: AllowAutoTopicCreation; older versions always allow it. Creation needs `auto.create.topics.enable`. Kafka first
  returns 5 while it creates the topic; here the topic exists at once.
* v10+: topic ids (KIP-516); an unknown id is 100 and creates nothing.
* v9 flexible; v13 has a top-level error.
* A partition without a living replica is 5, with leader -1. All living replicas are in sync, except those that a
  reassignment under way is adding.
* Access: DESCRIBE on the topics (29, whether or not the topic exists), and CREATE on those that would be created, or on
  the cluster. If all topics are requested, forbidden ones are left out. v8+ returns the operations allowed on the
  topics, up to v10 also those on the cluster (KIP-430).
* Unknown topic 3, illegal name 17.
* v13 is hidden by the profile kafka-3.9.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.api.topics import MAX_PARTITIONS_PER_REQUEST
from dualwrite.broker_emulator.cluster.topics import NO_LEADER, Partition, Topic, is_legal_topic_name
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.security.acl import NOT_ASKED_FOR, AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped, selected


async def handle(call: NodeCall) -> Any:
    return _response(call, tuple(await _topics(call)), ErrorCode.none)


def _response(call: NodeCall, topics: tuple[Any, ...], error: ErrorCode) -> Any:
    new, cluster = call.new, call.cluster
    return new.response(
        throttle_time=NO_THROTTLE,
        brokers=tuple(
            new.MetadataResponseBroker(node_id=node.node_id, rack=None, **call.endpoint(node)._asdict())
            for node in cluster.living_nodes
        ),
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        topics=topics,
        error_code=error,
        cluster_authorized_operations=_cluster_operations(call),
    )


def _cluster_operations(call: NodeCall) -> int:
    if not getattr(call.request, "include_cluster_authorized_operations", False):
        return NOT_ASKED_FOR
    is_shown = call.is_allowed(AclOperation.DESCRIBE, ResourceType.CLUSTER)
    return call.authorized_operations(ResourceType.CLUSTER) if is_shown else 0


async def _topics(call: NodeCall) -> list[Any]:
    requested = call.request.topics
    if requested is None or (call.version == 0 and not requested):
        seen = await selected(lambda topic: _may_see(call, topic.name, False), call.cluster.topics.values())
        return await mapped(lambda topic: _describe(call, topic), seen)
    may_create = MAX_PARTITIONS_PER_REQUEST // max(call.cluster.config.num_partitions, 1)
    numbered = enumerate(requested)
    return await mapped(lambda given: _requested_topic(call, given[1], given[0] < may_create), numbered)


def _may_see(call: NodeCall, name: str, is_logged: bool = True) -> bool:
    return call.is_allowed(AclOperation.DESCRIBE, ResourceType.TOPIC, name, is_logged=is_logged)


def _requested_topic(call: NodeCall, requested: Any, may_create: bool) -> Any:
    name = requested.name
    if name is None:
        topic = call.cluster.topic_by_id(requested.topic_id)
        if topic is None:
            return _absent(call, None, requested.topic_id, ErrorCode.unknown_topic_id)
        if not _may_see(call, topic.name):
            return _absent(call, None, requested.topic_id, ErrorCode.topic_authorization_failed)
        return _describe(call, topic)
    topic = call.cluster.topics.get(name)
    if not _may_see(call, name) or (topic is None and _would_create(call) and not _may_create(call, name)):
        return _absent(call, name, None, ErrorCode.topic_authorization_failed)
    if topic is None and may_create:
        try:
            topic = _create(call, name)
        except StorageError:
            return _absent(call, name, None, ErrorCode.kafka_storage_error)
    if topic is not None:
        return _describe(call, topic)
    legal = is_legal_topic_name(name)
    error = ErrorCode.unknown_topic_or_partition if legal else ErrorCode.invalid_topic_exception
    return _absent(call, name, None, error)


def _would_create(call: NodeCall) -> bool:
    """Return whether the request creates missing topics."""
    is_requested: bool = getattr(call.request, "allow_auto_topic_creation", True)
    return call.cluster.config.auto_create_topics_enable and is_requested


def _may_create(call: NodeCall, name: str) -> bool:
    return call.is_allowed(AclOperation.CREATE, ResourceType.CLUSTER, is_logged=False) or call.is_allowed(
        AclOperation.CREATE, ResourceType.TOPIC, name
    )


def _create(call: NodeCall, name: str) -> Topic | None:
    if not _would_create(call) or not is_legal_topic_name(name):
        return None
    if call.cluster.default_replication_factor > len(call.cluster.nodes):
        return None
    return call.cluster.create_topic(name, call.cluster.config.num_partitions)


def _describe(call: NodeCall, topic: Topic) -> Any:
    living = {node.node_id for node in call.cluster.living_nodes}
    return call.new.MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(_describe_partition(call, partition, living) for partition in topic.partitions),
        topic_authorized_operations=_topic_operations(call, topic.name),
    )


def _topic_operations(call: NodeCall, name: str) -> int:
    if not getattr(call.request, "include_topic_authorized_operations", False):
        return NOT_ASKED_FOR
    return call.authorized_operations(ResourceType.TOPIC, name)


def _describe_partition(call: NodeCall, partition: Partition, living: set[int]) -> Any:
    return call.new.MetadataResponsePartition(
        error_code=ErrorCode.leader_not_available if partition.leader_id == NO_LEADER else ErrorCode.none,
        partition_index=partition.index,
        leader_id=partition.leader_id,
        leader_epoch=partition.log.leader_epoch,
        replica_nodes=tuple(partition.replicas),
        isr_nodes=tuple(node_id for node_id in partition.complete_replicas if node_id in living),
        offline_replicas=tuple(node_id for node_id in partition.replicas if node_id not in living),
    )


def _absent(call: NodeCall, name: str | None, topic_id: Any, error: ErrorCode) -> Any:
    # v10 and v11 have an id but no null name
    shown = "" if name is None and call.version < 12 else name
    return call.new.MetadataResponseTopic(error_code=error, name=shown, topic_id=topic_id, partitions=())


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    requested = call.request.topics or ()
    rows = tuple(_absent(call, topic.name, getattr(topic, "topic_id", None), error) for topic in requested)
    if error is ErrorCode.illegal_sasl_state:  # whoever has not logged in is told nothing about the cluster
        return call.new.response(
            throttle_time=NO_THROTTLE,
            brokers=(),
            cluster_id=None,
            controller_id=-1,
            topics=rows,
            error_code=error,
            cluster_authorized_operations=NOT_ASKED_FOR,
        )
    return _response(call, rows, error)
