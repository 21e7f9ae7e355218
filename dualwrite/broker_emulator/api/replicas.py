"""The replicas of partitions: leader elections, and reassignments (KIP-455)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.topics import named_partitions, why_not_assignable
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace, mapped, mapped_rows
from dualwrite.broker_emulator.topics.replication import assignment_of, finished
from dualwrite.broker_emulator.topics.topics import NO_LEADER, Partition


class ElectionType(IntEnum):
    """The replicas that may be elected."""

    PREFERRED = 0
    UNCLEAN = 1


Outcome = tuple[ErrorCode, str | None]
Rows = list[tuple[str, list[tuple[int, Outcome]]]]

_NOT_NEEDED = (ErrorCode.election_not_needed, "Leader election not needed for topic partition.")


async def handle_elect_leaders(call: NodeCall) -> Any:
    """Serve ElectLeaders (key 43), versions 0-2.

    Makes the first replica the leader again (KIP-183), or any living replica of a partition without a leader (KIP-460).

    * No list means all partitions; the response then omits those that need no election.
    * Preferred (0): the first replica leads already 84; it is down, or not in sync, 80.
    * Unclean (1, from v1 on): the partition has a leader 84; no replica is alive 83. All replicas share one log here,
      so an unclean election loses nothing.
    * Another type of election 42, for the whole request. Unknown topic or partition 3.
    * Access: ALTER on the cluster (31).
    * v1 top-level error and the type of election; v2 flexible.
    """
    call.require(AclOperation.ALTER, ResourceType.CLUSTER)
    kind = getattr(call.request, "election_type", ElectionType.PREFERRED)
    if kind not in tuple(ElectionType):
        wrong = (ErrorCode.invalid_request, f"Unknown election type {kind}")
        rows = await call.made(_requested, call, lambda topic, index: wrong)
        return await call.made(_elected_response, call, rows, ErrorCode.invalid_request)
    if call.request.topic_partitions is None:
        return await call.made(_elected_response, call, await _elect_all(call, kind))
    named = [(requested.topic, index) for requested in call.request.topic_partitions for index in requested.partitions]
    rows = await call.made(_requested, call, await mapped_rows(lambda pair: _elect(call, *pair, kind), named))
    return await call.made(_elected_response, call, rows)


def _requested(call: NodeCall, outcome: Callable[[str, int], Outcome]) -> Rows:
    return [
        (requested.topic, [(index, outcome(requested.topic, index)) for index in requested.partitions])
        for requested in call.request.topic_partitions or ()
    ]


async def _elect_all(call: NodeCall, kind: int) -> Rows:
    topics = list(call.cluster.topics.values())
    partitions = [partition for topic in topics for partition in topic.partitions]
    outcomes = await mapped(lambda partition: _elect_one(call, partition, kind), partitions)
    rows: dict[str, list[tuple[int, Outcome]]] = {topic.name: [] for topic in topics}
    for partition, outcome in zip(partitions, outcomes, strict=True):
        if outcome != _NOT_NEEDED:
            rows[partition.topic.name].append((partition.index, outcome))
    return list(rows.items())


def _elect(call: NodeCall, topic: str, index: int, kind: int) -> Outcome:
    if topic not in call.cluster.topics:
        return ErrorCode.unknown_topic_or_partition, f"No such topic as {topic}"
    partition = call.cluster.partition(topic, index)
    if partition is None:
        return ErrorCode.unknown_topic_or_partition, f"No such partition as {topic}-{index}"
    return _elect_one(call, partition, kind)


def _elect_one(call: NodeCall, partition: Partition, kind: int) -> Outcome:
    living = {node.node_id for node in call.cluster.living_nodes}
    if kind == ElectionType.PREFERRED:
        preferred = partition.replicas[0]
        if partition.leader_id == preferred:
            return _NOT_NEEDED
        if preferred not in living or preferred in partition.adding:
            return ErrorCode.preferred_leader_not_available, "The preferred leader was not available."
        return _lead(call, partition, preferred)
    if partition.leader_id != NO_LEADER:
        return _NOT_NEEDED
    candidate = next((node_id for node_id in partition.replicas if node_id in living), None)
    if candidate is None:
        return ErrorCode.eligible_leaders_not_available, "Eligible topic partition leaders are not available."
    return _lead(call, partition, candidate)


def _lead(call: NodeCall, partition: Partition, node_id: int) -> Outcome:
    try:
        call.cluster.elections.make_leader(partition, node_id)
    except StorageError as problem:
        return ErrorCode.kafka_storage_error, str(problem)
    return ErrorCode.none, None


def _elected_response(call: NodeCall, rows: Rows, error: ErrorCode = ErrorCode.none) -> Any:
    new = call.new
    return new.response(
        error_code=error,
        replica_election_results=tuple(
            new.ReplicaElectionResult(
                topic=topic,
                partition_result=tuple(
                    new.PartitionResult(partition_id=index, error_code=code, error_message=message)
                    for index, (code, message) in results
                ),
            )
            for topic, results in rows
        ),
    )


def refuse_elect_leaders(call: NodeCall, error: ErrorCode) -> Any:
    return _elected_response(call, _requested(call, lambda topic, index: (error, None)), error)


async def handle_alter_partition_reassignments(call: NodeCall) -> Any:
    """Serve AlterPartitionReassignments (key 45), versions 0-1.

    Moves the replicas of partitions to other nodes, or cancels a reassignment (KIP-455). `topics/replication.py` has
    the rule for its completion.

    * Null replicas cancel: 85 if no reassignment is under way. Invalid replicas are 39.
    * Unknown topic or partition 3. A failure of the disk is 56.
    * Access: ALTER on the cluster (31).
    * v1: AllowReplicationFactorChange; if that is false, a different number of replicas is 38 (KIP-860).
    * v1 is hidden by the profile kafka-3.9.
    """
    call.require(AclOperation.ALTER, ResourceType.CLUSTER)
    outcomes = await mapped_rows(lambda pair: _alter(call, *pair), named_partitions(call))
    return await call.made(_reassigned_response, call, outcomes)


def _alter(call: NodeCall, requested_in: Any, requested: Any) -> Outcome:
    topic, index = requested_in.name, requested.partition_index
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


def _reassigned_response(
    call: NodeCall, outcome: Callable[[Any, Any], Outcome], error: ErrorCode = ErrorCode.none
) -> Any:
    new = call.new
    return new.response(
        allow_replication_factor_change=getattr(call.request, "allow_replication_factor_change", True),
        error_code=error,
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


def refuse_alter_partition_reassignments(call: NodeCall, error: ErrorCode) -> Any:
    return _reassigned_response(call, lambda topic, partition: (error, None), error)


def refuse_alter_partition_reassignments_partitions(call: NodeCall, error: ErrorCode) -> Any:
    return _reassigned_response(call, lambda topic, partition: (error, None))


async def handle_list_partition_reassignments(call: NodeCall) -> Any:
    """Serve ListPartitionReassignments (key 46), version 0.

    The reassignments under way (KIP-455): here only those whose new replicas are held back (`topics/replication.py`).

    * No list means all partitions. Unknown partitions, and those without a reassignment, are omitted.
    * Access: DESCRIBE on the cluster (31).
    """
    call.require(AclOperation.DESCRIBE, ResourceType.CLUSTER)
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
    return call.new.response(error_code=ErrorCode.none, topics=topics)


def _requested_partitions(call: NodeCall) -> Iterator[Partition]:
    if call.request.topics is None:
        yield from list(call.cluster.partitions())
        return
    for topic in call.request.topics:
        for index in topic.partition_indexes:
            partition = call.cluster.partition(topic.name, index)
            if partition is not None:
                yield partition


def refuse_list_partition_reassignments(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error, topics=())
