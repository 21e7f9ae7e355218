"""DescribeTopicPartitions (key 75), version 0.

Topics and partitions page by page, with the replicas that may lead although they are not in sync (KIP-966).

* Topics are ordered by name, without duplicates. No list means all topics that the client may describe.
* A page has ResponsePartitionLimit partitions, at least 1 and at most `max.request.partition.size.limit` (2000); the
  cursor of the next page names the first partition after this one, whether or not it exists.
* A cursor with a topic that is not requested, or with a partition below 0, is 42 for every topic.
* Unknown topic 3, illegal name 17, not allowed (DESCRIBE) 29; if all topics are requested, forbidden ones are omitted.
* The eligible leader replicas are always empty: every replica is in sync, or has nothing yet (a reassignment).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.cluster.topics import Partition, is_legal_topic_name
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace, mapped, selected

MAX_PARTITIONS_PER_PAGE = 2000
"""Kafka's default of `max.request.partition.size.limit`."""

_NO_OPERATIONS = -(2**31)


async def handle(call: NodeCall) -> Any:
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
    refused = await mapped(lambda name: _absent(call, name, ErrorCode.topic_authorization_failed), hidden)
    return _response(call, (*page.topics, *refused), page.next_cursor)


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
                self.topics.append(_absent(call, name, error))
            return True
        end = min(len(topic.partitions), first + self._left)
        partitions = topic.partitions[first:end]
        self._left -= len(partitions)
        self.topics.append(_topic(call, name, ErrorCode.none, topic.topic_id, topic.is_internal, partitions))
        if end < len(topic.partitions):
            self.next_cursor = call.new.Cursor(topic_name=name, partition_index=end)
        return self.next_cursor is None


def _absent(call: NodeCall, name: str, error: ErrorCode) -> Any:
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


def _response(call: NodeCall, topics: tuple[Any, ...], next_cursor: Any) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, topics=topics, next_cursor=next_cursor)


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, tuple(_absent(call, topic.name, error) for topic in call.request.topics), None)
