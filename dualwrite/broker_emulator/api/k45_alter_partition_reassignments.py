"""AlterPartitionReassignments (key 45), versions 0-1.

Moves the replicas of partitions to other nodes, or cancels a reassignment (KIP-455). `cluster/replication.py` has the
rule for its completion.

* Null replicas cancel: 85 if no reassignment is under way. Invalid replicas are 39.
* Unknown topic or partition 3. A failure of the disk is 56.
* Access: ALTER on the cluster (31).
* v1: AllowReplicationFactorChange; if that is false, a different number of replicas is 38 (KIP-860).
* v1 is hidden by the profile kafka-3.9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.api.topics import why_not_assignable
from dualwrite.broker_emulator.cluster.replication import assignment_of, finished
from dualwrite.broker_emulator.cluster.topics import Partition
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped_rows

Outcome = tuple[ErrorCode, str | None]


async def handle(call: NodeCall) -> Any:
    if not call.is_allowed(AclOperation.ALTER, ResourceType.CLUSTER):
        return await call.refused(ErrorCode.cluster_authorization_failed)
    named = [(topic.name, requested) for topic in call.request.topics for requested in topic.partitions]
    return await call.made(_response, call, await mapped_rows(lambda pair: _alter(call, *pair), named))


def _alter(call: NodeCall, topic: str, requested: Any) -> Outcome:
    index = requested.partition_index
    if topic not in call.cluster.topics:
        return ErrorCode.unknown_topic_or_partition, f"Unable to find a topic named {topic}."
    partition = call.cluster.partition(topic, index)
    if partition is None:
        return ErrorCode.unknown_topic_or_partition, f"Unable to find partition {topic}:{index}."
    try:
        return _change(call, partition, requested.replicas)
    except StorageError as problem:
        return ErrorCode.kafka_storage_error, str(problem)


def _change(call: NodeCall, partition: Partition, target: tuple[int, ...] | None) -> Outcome:
    current = assignment_of(partition)
    if target is None:
        if not current.is_changing:
            return ErrorCode.no_reassignment_in_progress, None
        call.cluster.elections.cancel_reassignment(partition)
        return ErrorCode.none, None
    message = why_not_assignable(call, target)
    if message is not None:
        return ErrorCode.invalid_replica_assignment, message
    replicas = len(finished(current).replicas)
    if not getattr(call.request, "allow_replication_factor_change", True) and len(target) != replicas:
        message = f"The replication factor is changed from {replicas} to {len(target)}"
        return ErrorCode.invalid_replication_factor, message
    call.cluster.elections.reassign(partition, target)
    return ErrorCode.none, None


def _response(call: NodeCall, outcome: Callable[[Any, Any], Outcome], error: ErrorCode = ErrorCode.none) -> Any:
    new = call.new
    return new.response(
        throttle_time=NO_THROTTLE,
        allow_replication_factor_change=getattr(call.request, "allow_replication_factor_change", True),
        error_code=error,
        error_message=None,
        responses=tuple(
            new.ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(_row(call, partition, *outcome(topic, partition)) for partition in topic.partitions),
            )
            for topic in call.request.topics
        ),
    )


def _row(call: NodeCall, requested: Any, error: ErrorCode, message: str | None) -> Any:
    return call.new.ReassignablePartitionResponse(
        partition_index=requested.partition_index, error_code=error, error_message=message
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, lambda topic, partition: (error, None), error)


def refuse_partitions(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, lambda topic, partition: (error, None))
