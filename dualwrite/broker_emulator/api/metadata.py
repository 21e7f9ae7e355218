"""Topics and their partitions as clients find them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.topics import MAX_PARTITIONS_PER_REQUEST, may_create_topic
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.security.acl import NOT_ASKED_FOR, AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace, mapped, selected
from dualwrite.broker_emulator.topics.topics import (
    METADATA_TOPIC,
    NO_LEADER,
    NamesAlike,
    Partition,
    Topic,
    is_legal_topic_name,
)

_IDS_VERSION = 12
"""The first version that serves topic ids; 10 and 11 only have the field."""


async def handle_metadata(call: NodeCall) -> Any:
    """Serve Metadata (key 3), versions 0-13.

    Living nodes, topics, partitions and leaders.

    * No topics means all of them: an empty list in v0, null from v1 on (where an empty list requests none).
    * v4+: AllowAutoTopicCreation; older versions always allow it. Creation needs `auto.create.topics.enable`. The
      request that creates a topic gets 3, as in Kafka, whose controller is still at work then; the next request finds
      the topic. `__cluster_metadata` is never created, nor is a name that differs from another only in '.' and '_'.
    * v10+: topic ids (KIP-516). v12 serves them, and ignores the names beside them; an unknown id is 100 and creates
      nothing. v10 and v11 refuse the whole request with 42 if a topic has an id or no name.
    * v12+: a topic that has neither name nor id is -1, for the whole request. A topic requested twice is returned once.
    * v9 flexible; v13 has a top-level error.
    * A partition without a living replica is 5, with leader -1. All living replicas are in sync, except those that a
      reassignment under way is adding.
    * Access: DESCRIBE on the topics (29, whether or not the topic exists), and CREATE on the topics that would be
      created, or on the cluster. If all topics are requested, forbidden ones are omitted. v8+ returns the operations
      allowed on the topics, up to v10 also those on the cluster (KIP-430).
    * Unknown topic 3, illegal name 17.
    * v13 is hidden by the profile kafka-3.9.
    """
    error = await _problem(call.request.topics or (), call.version)
    if error is not NO_ERROR:
        return _metadata_response(call, _refused(call, error), NO_ERROR)
    return _metadata_response(call, tuple(await _topics(call)), NO_ERROR)


async def _problem(topics: Sequence[Any], version: int) -> ErrorCode:
    """Return the error of all requested topics, or NO_ERROR."""
    if version < _IDS_VERSION:
        is_named = all(await mapped(lambda topic: topic.name is not None and not _id_of(topic), topics))
        return NO_ERROR if is_named else ErrorCode.invalid_request
    is_unnamed = any(await mapped(lambda topic: topic.name is None and not topic.topic_id, topics))
    return ErrorCode.unknown_server_error if is_unnamed else NO_ERROR


def _id_of(requested: Any) -> Any:
    """Return the requested topic id, or None if there is none or the version lacks the field."""
    return getattr(requested, "topic_id", None)


def _metadata_response(call: NodeCall, topics: tuple[Any, ...], error: ErrorCode) -> Any:
    new, cluster = call.new, call.cluster
    return new.response(
        brokers=tuple(
            new.MetadataResponseBroker(node_id=node.node_id, rack=None, **call.endpoint(node)._asdict())
            for node in cluster.living_nodes
        ),
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        topics=topics,
        error_code=error,
        cluster_authorized_operations=call.cluster_operations(),
    )


async def _topics(call: NodeCall) -> list[Any]:
    requested = call.request.topics
    if requested is None or (call.version == 0 and not requested):
        seen = await selected(lambda topic: _may_see(call, topic.name, False), call.cluster.topics.values())
        rows = await mapped(lambda topic: _describe(call, topic) if _exists(call, topic) else None, seen)
        return [row for row in rows if row is not None]
    by_id = dict.fromkeys(filter(None, await mapped(_id_of, requested)))
    if by_id:
        return await mapped(lambda topic_id: _topic_by_id(call, topic_id), by_id)
    may_create = MAX_PARTITIONS_PER_REQUEST // max(call.cluster.config.num_partitions, 1)
    names = dict.fromkeys(topic.name for topic in requested)
    missing = [name for name in names if name not in call.cluster.topics]
    would_create = bool(missing) and _would_create(call)
    alike = NamesAlike(call.cluster.topics if would_create else ())
    wanted = missing[:may_create] if would_create else []
    creatable = set(await selected(lambda name: name != METADATA_TOPIC and alike.topic_like(name) is None, wanted))
    if not creatable:
        return await mapped(lambda name: _topic_by_name(call, name, may_create=False), names)
    async with call.cluster.changes:
        return await mapped(lambda name: _topic_by_name(call, name, name in creatable), names)


def _exists(call: NodeCall, topic: Topic) -> bool:
    """Return whether the topic still exists."""
    return call.cluster.topics.get(topic.name) is topic


def _may_see(call: NodeCall, name: str, is_logged: bool = True) -> bool:
    return call.is_allowed(AclOperation.DESCRIBE, ResourceType.TOPIC, name, is_logged=is_logged)


def _topic_by_id(call: NodeCall, topic_id: Any) -> Any:
    topic = call.cluster.topic_by_id(topic_id)
    if topic is None:
        return _metadata_absent(call, None, topic_id, ErrorCode.unknown_topic_id)
    if not _may_see(call, topic.name):
        return _metadata_absent(call, None, topic_id, ErrorCode.topic_authorization_failed)
    return _describe(call, topic)


def _topic_by_name(call: NodeCall, name: str, may_create: bool) -> Any:
    topic = call.cluster.topics.get(name)
    if not _may_see(call, name) or (topic is None and _would_create(call) and not may_create_topic(call, name)):
        return _metadata_absent(call, name, None, ErrorCode.topic_authorization_failed)
    if topic is not None:
        return _describe(call, topic)
    if not is_legal_topic_name(name):
        return _metadata_absent(call, name, None, ErrorCode.invalid_topic_exception)
    if may_create:
        try:
            _create(call, name)
        except StorageError:
            return _metadata_absent(call, name, None, ErrorCode.kafka_storage_error)
    return _metadata_absent(call, name, None, ErrorCode.unknown_topic_or_partition)


def _would_create(call: NodeCall) -> bool:
    """Return whether the request creates missing topics."""
    is_requested: bool = getattr(call.request, "allow_auto_topic_creation", True)
    return call.cluster.config.auto_create_topics_enable and is_requested


def _create(call: NodeCall, name: str) -> None:
    """Create a missing topic, unless the request or the cluster does not allow it."""
    cluster = call.cluster
    if not _would_create(call):
        return
    if cluster.default_replication_factor <= len(cluster.nodes):
        cluster.create_topic(name, cluster.config.num_partitions)


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


def _metadata_absent(call: NodeCall, name: str | None, topic_id: Any, error: ErrorCode) -> Any:
    # v10 and v11 have an id but no null name
    shown = "" if name is None and call.version < 12 else name
    return call.new.MetadataResponseTopic(error_code=error, name=shown, topic_id=topic_id, partitions=())


def refuse_metadata(call: NodeCall, error: ErrorCode) -> Any:
    rows = _refused(call, error)
    if error is ErrorCode.illegal_sasl_state:  # Reveal nothing to unauthenticated clients.
        return call.new.response(
            brokers=(),
            cluster_id=None,
            controller_id=-1,
            topics=rows,
            error_code=error,
            cluster_authorized_operations=NOT_ASKED_FOR,
        )
    return _metadata_response(call, rows, error)


def _refused(call: NodeCall, error: ErrorCode) -> tuple[Any, ...]:
    """Return one error for each requested topic."""
    requested = call.request.topics or ()
    return tuple(_metadata_absent(call, topic.name or "", _id_of(topic), error) for topic in requested)


MAX_PARTITIONS_PER_PAGE = 2000
"""Kafka's default of `max.request.partition.size.limit`."""

_NO_OPERATIONS = -(2**31)


async def handle_describe_topic_partitions(call: NodeCall) -> Any:
    """Serve DescribeTopicPartitions (key 75), version 0.

    Topics and partitions page by page, with the replicas that may lead although they are not in sync (KIP-966).

    * Topics are ordered by name, without duplicates. No list means all topics that the client may describe.
    * A page has ResponsePartitionLimit partitions, at least 1 and at most `max.request.partition.size.limit` (2000);
      the cursor of the next page names the first partition after this one, whether or not it exists.
    * A cursor with a topic that is not requested, or with a partition below 0, is 42 for every topic.
    * Unknown topic 3, illegal name 17, not allowed (DESCRIBE) 29; if all topics are requested, forbidden ones are
      omitted.
    * The eligible leader replicas are always empty: every replica is in sync, or has nothing yet (a reassignment).
    """
    request = call.request
    names = await call.made(_names, request) or set(call.cluster.topics)
    cursor = request.cursor
    if cursor is not None:
        is_missing = bool(request.topics) and cursor.topic_name not in names
        if is_missing or cursor.partition_index < 0:
            return await call.refused(ErrorCode.invalid_request)
        names = {name for name in names if name >= cursor.topic_name}
    describable = set(
        await selected(lambda name: call.is_allowed(AclOperation.DESCRIBE, ResourceType.TOPIC, name), names)
    )
    page = _Page(call, max(min(request.response_partition_limit, MAX_PARTITIONS_PER_PAGE), 1))
    pace = Pace()
    for name in await call.made(sorted, describable):
        await pace.keep()
        is_first = cursor is not None and name == cursor.topic_name
        if not page.add(name, cursor.partition_index if is_first else 0):
            break
    hidden = await call.made(sorted, names - describable) if request.topics else []
    refused = await mapped(lambda name: _described_absent(call, name, ErrorCode.topic_authorization_failed), hidden)
    return call.new.response(topics=(*page.topics, *refused), next_cursor=page.next_cursor)


def _names(request: Any) -> set[str]:
    return {topic.name for topic in request.topics}


class _Page:
    """One page of the response while it is filled."""

    def __init__(self, call: NodeCall, limit: int) -> None:
        self.topics: list[Any] = []
        self.next_cursor: Any = None
        self._call = call
        self._left = limit

    def add(self, name: str, first: int) -> bool:
        """Add a topic from its partition `first` on; return whether there is room for another topic."""
        call = self._call
        if not self._left:
            self.next_cursor = call.new.Cursor(topic_name=name, partition_index=0)
            return False
        topic = call.cluster.topics.get(name)
        if topic is None:
            if call.request.topics:
                legal = is_legal_topic_name(name)
                error = ErrorCode.unknown_topic_or_partition if legal else ErrorCode.invalid_topic_exception
                self.topics.append(_described_absent(call, name, error))
            return True
        end = min(len(topic.partitions), first + self._left)
        partitions = topic.partitions[first:end]
        self._left -= len(partitions)
        self.topics.append(_topic(call, name, ErrorCode.none, topic.topic_id, topic.is_internal, partitions))
        if end < len(topic.partitions):
            self.next_cursor = call.new.Cursor(topic_name=name, partition_index=end)
        return self.next_cursor is None


def _described_absent(call: NodeCall, name: str, error: ErrorCode) -> Any:
    return _topic(call, name, error, None, False, [])


def _topic(
    call: NodeCall, name: str, error: ErrorCode, topic_id: Any, is_internal: bool, partitions: list[Partition]
) -> Any:
    living = {node.node_id for node in call.cluster.living_nodes}
    is_told = error not in (ErrorCode.topic_authorization_failed, ErrorCode.invalid_request)
    return call.new.DescribeTopicPartitionsResponseTopic(
        error_code=error,
        name=name,
        topic_id=topic_id,
        is_internal=is_internal,
        partitions=tuple(_partition(call, partition, living) for partition in partitions),
        topic_authorized_operations=call.authorized_operations(ResourceType.TOPIC, name) if is_told else _NO_OPERATIONS,
    )


def _partition(call: NodeCall, partition: Partition, living: set[int]) -> Any:
    def replicas_if(condition: Callable[[int], bool]) -> tuple[int, ...]:
        return tuple(node_id for node_id in partition.replicas if condition(node_id))

    return call.new.DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.none,  # unlike in Metadata, a missing leader is -1 without an error
        partition_index=partition.index,
        leader_id=partition.leader_id,
        leader_epoch=partition.log.leader_epoch,
        replica_nodes=tuple(partition.replicas),
        isr_nodes=replicas_if(lambda node_id: node_id in living and node_id not in partition.adding),
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=replicas_if(lambda node_id: node_id not in living),
    )


def refuse_describe_topic_partitions(call: NodeCall, error: ErrorCode) -> Any:
    rows = tuple(_described_absent(call, topic.name, error) for topic in call.request.topics)
    return call.new.response(topics=rows, next_cursor=None)
