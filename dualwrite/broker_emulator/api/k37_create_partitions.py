"""CreatePartitions (key 37), versions 0-3.

Extends topics (KIP-195). Clients notice with their next Metadata request.

* The count is the new number of partitions; a count that is no increase is 37. Assignments name the nodes of each new
  partition; an invalid assignment, or a number of them that differs from the new partitions', is 39.
* Unknown topic 3; duplicate topic 42, in one row. More than 10,000 new partitions in one request 44.
* Internal topics 42 INVALID_REQUEST: ids and groups would belong to other partitions (Kafka allows it and breaks).
* Access: ALTER on the topic (29).
* ValidateOnly returns the same response and creates nothing. A failure of the disk is 56.
* v2 flexible. From v3 on, an exhausted quota of mutations is 89; before, the partitions are created and the client
  throttled (KIP-599).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.api.topics import MAX_PARTITIONS_PER_REQUEST, why_not_assignable
from dualwrite.broker_emulator.cluster.topics import Topic
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.quotas.enforcement import Mutations
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace


class _Outcome(NamedTuple):
    error: ErrorCode = ErrorCode.none
    message: str | None = None


async def handle(call: NodeCall) -> Any:
    given = await call.made(_given, call)
    if _additional(call) > MAX_PARTITIONS_PER_REQUEST:
        message = "Excessively large number of additional partitions per request."
        refused = _Outcome(ErrorCode.policy_violation, message)
        return await call.made(_response, call, [(name, refused) for name in given])
    repeated = _Outcome(ErrorCode.invalid_request, "Duplicate topic name.")
    mutations = call.cluster.controller_quotas.mutations(call, strict_since=3)
    rows = [(name, repeated) for name, times in given.items() if times > 1]
    pace = Pace()
    async with call.cluster.changes:
        for topic in call.request.topics:
            await pace.keep()
            if given[topic.name] == 1:
                rows.append((topic.name, await _create(call, topic, mutations)))
    return await call.made(_response, call, rows, mutations.throttle_time)


def _given(call: NodeCall) -> Counter[str]:
    """Return the number of times that the request names each topic."""
    return Counter(topic.name for topic in call.request.topics)


def _additional(call: NodeCall) -> int:
    """Return the number of partitions to add. A count that is no increase is refused, and subtracts nothing."""
    topics = call.cluster.topics
    return sum(
        max(topic.count - len(topics[topic.name].partitions), 0)
        for topic in call.request.topics
        if topic.name in topics
    )


async def _create(call: NodeCall, requested: Any, mutations: Mutations) -> _Outcome:
    if not call.is_allowed(AclOperation.ALTER, ResourceType.TOPIC, requested.name):
        return _Outcome(ErrorCode.topic_authorization_failed)
    topic = call.cluster.topics.get(requested.name)
    if topic is None:
        return _Outcome(ErrorCode.unknown_topic_or_partition)
    additional = requested.count - len(topic.partitions)
    outcome = _check(call, requested)
    if outcome.error is ErrorCode.none and not mutations.are_allowed(additional):
        outcome = _Outcome(ErrorCode.throttling_quota_exceeded)
    if outcome.error is not ErrorCode.none or call.request.validate_only:
        return outcome
    given = requested.assignments
    assignments = (
        call.cluster.assign_more(topic, additional) if given is None else [list(each.broker_ids) for each in given]
    )
    try:
        await call.cluster.changes.make(call.cluster.partition_creation(topic, assignments))
    except StorageError as problem:
        return _Outcome(ErrorCode.kafka_storage_error, str(problem))
    return _Outcome()


def _check(call: NodeCall, requested: Any) -> _Outcome:
    topic = call.cluster.topics[requested.name]
    existing = len(topic.partitions)
    if topic.is_internal:
        return _Outcome(ErrorCode.invalid_request, f"Partitions cannot be added to {topic.name}.")
    if requested.count == existing:
        return _Outcome(ErrorCode.invalid_partitions, f"Topic already has {existing} partition(s).")
    if requested.count < existing:
        message = (
            f"The topic {topic.name} currently has {existing} partition(s); {requested.count} would not be an increase."
        )
        return _Outcome(ErrorCode.invalid_partitions, message)
    additional = requested.count - existing
    if requested.assignments is not None and len(requested.assignments) != additional:
        message = (
            f"Attempted to add {additional} additional partition(s), but only {len(requested.assignments)} "
            "assignment(s) were specified."
        )
        return _Outcome(ErrorCode.invalid_replica_assignment, message)
    for index, assignment in enumerate(requested.assignments or (), start=existing):
        problem = _problem_of(call, topic, index, assignment.broker_ids)
        if problem is not None:
            return _Outcome(ErrorCode.invalid_replica_assignment, problem)
    return _Outcome()


def _problem_of(call: NodeCall, topic: Topic, index: int, replicas: tuple[int, ...]) -> str | None:
    problem = why_not_assignable(call, replicas, len(topic.partitions[0].replicas))
    if problem is None and not any(call.cluster.nodes[node_id].is_alive for node_id in replicas):
        return (
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown."
        )
    return problem


def _response(call: NodeCall, rows: Iterable[tuple[str, _Outcome]], throttle_time: timedelta = NO_THROTTLE) -> Any:
    results = tuple(
        call.new.CreatePartitionsTopicResult(name=name, error_code=outcome.error, error_message=outcome.message)
        for name, outcome in rows
    )
    return call.new.response(throttle_time=throttle_time, results=results)


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, ((topic.name, _Outcome(error)) for topic in call.request.topics))
