"""ListPartitionReassignments (key 46), version 0.

The reassignments under way (KIP-455): here only those whose new replicas are held back (`cluster/replication.py`).

* No list means all partitions. Unknown partitions, and those without a reassignment, are omitted.
* Access: DESCRIBE on the cluster (31).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.cluster.replication import assignment_of
from dualwrite.broker_emulator.cluster.topics import Partition
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace


async def handle(call: NodeCall) -> Any:
    if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.CLUSTER):
        return await call.refused(ErrorCode.cluster_authorization_failed)
    by_topic: dict[str, list[Any]] = {}
    pace = Pace()
    for partition in _requested_partitions(call):
        await pace.keep()
        assignment = assignment_of(partition)
        if assignment.is_changing:
            by_topic.setdefault(partition.topic.name, []).append(
                call.new.OngoingPartitionReassignment(
                    partition_index=partition.index,
                    replicas=assignment.replicas,
                    adding_replicas=assignment.adding,
                    removing_replicas=assignment.removing,
                )
            )
    topics = tuple(
        call.new.OngoingTopicReassignment(name=name, partitions=tuple(rows)) for name, rows in by_topic.items()
    )
    return _response(call, ErrorCode.none, topics)


def _requested_partitions(call: NodeCall) -> Iterator[Partition]:
    if call.request.topics is None:
        yield from list(call.cluster.partitions())
        return
    for topic in call.request.topics:
        for index in topic.partition_indexes:
            partition = call.cluster.partition(topic.name, index)
            if partition is not None:
                yield partition


def _response(call: NodeCall, error: ErrorCode, topics: tuple[Any, ...]) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, error_code=error, error_message=None, topics=topics)


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, error, ())
