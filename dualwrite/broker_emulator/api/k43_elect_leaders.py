"""ElectLeaders (key 43), versions 0-2.

Makes the first replica the leader again (KIP-183), or any living replica of a partition without a leader (KIP-460).

* No list means all partitions; the response then omits those that need no election.
* Preferred (0): the first replica leads already 84; it is down, or not in sync, 80.
* Unclean (1, from v1 on): the partition has a leader 84; no replica is alive 83. All replicas share one log here, so an
  unclean election loses nothing.
* Another type of election 42, for the whole request. Unknown topic or partition 3.
* Access: ALTER on the cluster (31).
* v1 top-level error and the type of election; v2 flexible.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.cluster.topics import NO_LEADER, Partition
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped, mapped_rows


class ElectionType(IntEnum):
    """The replicas that may be elected."""

    PREFERRED = 0
    UNCLEAN = 1


Outcome = tuple[ErrorCode, str | None]
Rows = list[tuple[str, list[tuple[int, Outcome]]]]

_NOT_NEEDED = (ErrorCode.election_not_needed, "Leader election not needed for topic partition.")


async def handle(call: NodeCall) -> Any:
    if not call.is_allowed(AclOperation.ALTER, ResourceType.CLUSTER):
        return await call.refused(ErrorCode.cluster_authorization_failed)
    kind = getattr(call.request, "election_type", ElectionType.PREFERRED)
    if kind not in tuple(ElectionType):
        wrong = (ErrorCode.invalid_request, f"Unknown election type {kind}")
        rows = await call.made(_requested, call, lambda topic, index: wrong)
        return await call.made(_response, call, rows, ErrorCode.invalid_request)
    if call.request.topic_partitions is None:
        return await call.made(_response, call, await _elect_all(call, kind))
    named = [(requested.topic, index) for requested in call.request.topic_partitions for index in requested.partitions]
    rows = await call.made(_requested, call, await mapped_rows(lambda pair: _elect(call, *pair, kind), named))
    return await call.made(_response, call, rows)


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


def _response(call: NodeCall, rows: Rows, error: ErrorCode = ErrorCode.none) -> Any:
    new = call.new
    return new.response(
        throttle_time=NO_THROTTLE,
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


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, _requested(call, lambda topic, index: (error, None)), error)
