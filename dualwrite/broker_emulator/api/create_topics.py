"""Topics created, and partitions added to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.configs import layers_of
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.topics import MAX_PARTITIONS_PER_REQUEST, may_create_topic, why_not_assignable
from dualwrite.broker_emulator.configs.alteration import AlterationError, check_topic_configs
from dualwrite.broker_emulator.configs.description import topic_entries
from dualwrite.broker_emulator.configs.effective import topic_settings
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.messages.codec import NO_THROTTLE
from dualwrite.broker_emulator.quotas.enforcement import Mutations
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace, mapped
from dualwrite.broker_emulator.topics.topics import METADATA_TOPIC, NamesAlike, Topic, why_not_a_topic_name

_CONFIGS_VERSION = 5


async def handle_create_topics(call: NodeCall) -> Any:
    """Serve CreateTopics (key 19), versions 2-7.

    * v4 -1 for the default number of partitions and replicas (KIP-464); v5 flexible, returns partitions, replicas and
      settings (KIP-525); v7 topic ids.
    * Existing name 36; illegal name 17, as is one that differs from another only in '.' and '_'; no partitions 37; more
      replicas than nodes (or none) 38; both an assignment and counts 42; duplicate name 42; an assignment that omits a
      partition, repeats a node or names an unknown one, or with a different number of replicas for some partition, 39.
      `__cluster_metadata` 42.
    * Access: CREATE on the topics, or on the cluster (29). Without DESCRIBE_CONFIGS on a topic, the response omits
      these three (KIP-525).
    * Replicas determine which nodes can lead: by default all of them (`default.replication.factor`).
    * An unknown setting, or an invalid value, is 40. v5+ returns all settings of the topic.
    * A failure of the disk is 56.
    * More than 10,000 partitions in one request: 44 for all of it, as from Kafka's controller.
    * From v6 on, an exhausted quota of mutations is 89; before, the topic is created and the client throttled
      (KIP-599).
    * ValidateOnly returns the same response and creates nothing.
    """
    counts = await mapped(lambda topic: max(_partition_count(call, topic), 0), call.request.topics)
    if sum(counts) > MAX_PARTITIONS_PER_REQUEST:
        message = "Excessively large number of partitions per request."
        rows = await mapped(
            lambda topic: _row(call, topic, ErrorCode.policy_violation, message), await call.made(_named_once, call)
        )
        return call.new.response(topics=tuple(rows))
    mutations = call.cluster.controller_quotas.mutations(call, strict_since=6)
    named = await call.made(_named_once, call)
    given = await call.made(Counter, [topic.name for topic in call.request.topics])
    rows = []
    pace = Pace()
    async with call.cluster.changes:
        alike = NamesAlike(call.cluster.topics)
        for topic in named:
            await pace.keep()
            rows.append(await _create_topic(call, topic, mutations, alike, given[topic.name] > 1))
    return call.new.response(throttle_time=mutations.throttle_time, topics=tuple(rows))


def _named_once(call: NodeCall) -> list[Any]:
    """Return the first row for each name."""
    return list({topic.name: topic for topic in reversed(call.request.topics)}.values())[::-1]


async def _create_topic(
    call: NodeCall, requested: Any, mutations: Mutations, alike: NamesAlike, is_repeated: bool
) -> Any:
    if is_repeated:
        return _row(call, requested, ErrorCode.invalid_request, "Duplicate topic name.")
    error, message = _check_topic(call, requested, alike)
    if error is not ErrorCode.none:
        return _row(call, requested, error, message)
    partitions, replicas = _partition_count(call, requested), _replication_factor(call, requested)
    if not mutations.are_allowed(partitions):
        return _row(call, requested, ErrorCode.throttling_quota_exceeded, None)
    if call.request.validate_only:
        return _row(call, requested, ErrorCode.none, None, partitions=partitions, replicas=replicas)
    try:
        topic = await call.cluster.changes.make(
            call.cluster.topic_creation(
                requested.name,
                partitions,
                configs=_configs(requested),
                replication_factor=replicas,
                assignments=_assignments(requested) or None,
            )
        )
    except StorageError as problem:
        return _row(call, requested, ErrorCode.kafka_storage_error, str(problem))
    return _row(call, requested, ErrorCode.none, None, topic=topic, partitions=partitions, replicas=replicas)


def _check_topic(call: NodeCall, requested: Any, alike: NamesAlike) -> tuple[ErrorCode, str | None]:
    name, partitions, replicas = requested.name, requested.num_partitions, requested.replication_factor
    if not may_create_topic(call, name):
        return ErrorCode.topic_authorization_failed, "Authorization failed."
    problem = why_not_a_topic_name(name)
    if problem is not None:
        return ErrorCode.invalid_topic_exception, problem
    if name == METADATA_TOPIC:
        return ErrorCode.invalid_request, f"Creation of internal topic {name} is prohibited."
    other = alike.topic_like(name)
    if other is not None and name not in call.cluster.topics:
        return ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {other}"
    if name in call.cluster.topics:
        return ErrorCode.topic_already_exists, f"Topic '{name}' already exists."
    for what, count in (("numPartitions", partitions), ("replication factor", replicas)):
        if requested.assignments and count != -1:
            problem = f"A manual partition assignment was specified, but {what} was not set to -1."
            return ErrorCode.invalid_request, problem
    if partitions == 0 or partitions < -1:
        return ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
    problem = _why_not_so_many_replicas(call, requested)
    if problem is not None:
        return ErrorCode.invalid_replication_factor, problem
    try:
        check_topic_configs(_configs(requested), topic_settings(call.cluster.config.behaviours.settings))
    except AlterationError as refused:
        return refused.error, refused.message
    return _check_assignments(call, requested)


def _why_not_so_many_replicas(call: NodeCall, requested: Any) -> str | None:
    replicas, nodes = requested.replication_factor, len(call.cluster.nodes)
    if replicas == 0 or replicas < -1:
        return "Replication factor must be larger than 0, or -1 to use the default value."
    if replicas == -1 and not requested.assignments:
        replicas = call.cluster.default_replication_factor
    if replicas <= nodes:
        return None
    return (
        f"Unable to replicate the partition {replicas} time(s): The target replication factor of {replicas} cannot be "
        f"reached because only {nodes} broker(s) are registered or some brokers have all their log directories "
        "cordoned."
    )


def _configs(requested: Any) -> dict[str, str | None]:
    return {config.name: config.value for config in requested.configs}


def _check_assignments(call: NodeCall, requested: Any) -> tuple[ErrorCode, str | None]:
    invalid = ErrorCode.invalid_replica_assignment
    indexes = sorted(assignment.partition_index for assignment in requested.assignments)
    twice = next((index for index, following in pairwise(indexes) if index == following), None)
    if twice is not None:
        return invalid, f"Found multiple manual partition assignments for partition {twice}"
    if indexes != list(range(len(indexes))):
        return invalid, "partitions should be a consecutive 0-based integer sequence"
    assignments = _assignments(requested)
    for replicas in assignments:
        problem = why_not_assignable(call, replicas, len(assignments[0]))
        if problem is not None:
            return invalid, problem
    return ErrorCode.none, None


def _assignments(requested: Any) -> list[tuple[int, ...]]:
    """Return the nodes of each partition, or an empty list if the request assigns none."""
    given = sorted(requested.assignments, key=lambda assignment: assignment.partition_index)
    return [tuple(assignment.broker_ids) for assignment in given]


def _replication_factor(call: NodeCall, requested: Any) -> int:
    if requested.assignments:
        return len(requested.assignments[0].broker_ids)
    if requested.replication_factor == -1:
        return call.cluster.default_replication_factor
    replicas: int = requested.replication_factor
    return replicas


def _partition_count(call: NodeCall, requested: Any) -> int:
    if requested.assignments:
        return len(requested.assignments)
    if requested.num_partitions == -1:
        return call.cluster.config.num_partitions
    partitions: int = requested.num_partitions
    return partitions


def _row(
    call: NodeCall,
    requested: Any,
    error: ErrorCode,
    message: str | None,
    *,
    topic: Topic | None = None,
    partitions: int = -1,
    replicas: int = -1,
) -> Any:
    is_shown = error is not ErrorCode.none or call.is_allowed(
        AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, requested.name, is_logged=False
    )
    return call.new.CreatableTopicResult(
        name=requested.name,
        topic_id=None if topic is None else topic.topic_id,
        error_code=error,
        error_message=message,
        topic_config_error_code=0 if is_shown else int(ErrorCode.topic_authorization_failed),
        num_partitions=partitions if is_shown else -1,
        replication_factor=replicas if is_shown else -1,
        configs=_config_rows(call, requested) if is_shown and error is ErrorCode.none else () if is_shown else None,
    )


def _config_rows(call: NodeCall, requested: Any) -> tuple[Any, ...]:
    """Return all settings of the new topic, ordered by name; versions below 5 do not have them."""
    if call.version < _CONFIGS_VERSION:
        return ()
    settings = topic_settings(call.cluster.config.behaviours.settings)
    entries = topic_entries(settings, _configs(requested), layers_of(call, call.node))
    return tuple(
        call.new.CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.is_read_only,
            config_source=entry.source,
            is_sensitive=entry.is_sensitive,
        )
        for entry in sorted(entries)
    )


def refuse_create_topics(call: NodeCall, error: ErrorCode) -> Any:
    rows = tuple(_row(call, topic, error, None) for topic in _named_once(call))
    return call.new.response(topics=rows)


class _Outcome(NamedTuple):
    error: ErrorCode = ErrorCode.none
    message: str | None = None


async def handle_create_partitions(call: NodeCall) -> Any:
    """Serve CreatePartitions (key 37), versions 0-3.

    Extends topics (KIP-195). Clients notice with their next Metadata request.

    * The count is the new number of partitions; a count that is no increase is 37. Assignments name the nodes of each
      new partition; an invalid assignment, or a number of them that differs from the new partitions', is 39.
    * Unknown topic 3; duplicate topic 42, in one row. More than 10,000 new partitions in one request 44.
    * Internal topics 42 INVALID_REQUEST: ids and groups would belong to other partitions (Kafka allows it and breaks).
    * Access: ALTER on the topic (29).
    * ValidateOnly returns the same response and creates nothing. A failure of the disk is 56.
    * v2 flexible. From v3 on, an exhausted quota of mutations is 89; before, the partitions are created and the client
      throttled (KIP-599).
    """
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
                rows.append((topic.name, await _add_partitions(call, topic, mutations)))
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


async def _add_partitions(call: NodeCall, requested: Any, mutations: Mutations) -> _Outcome:
    if not call.is_allowed(AclOperation.ALTER, ResourceType.TOPIC, requested.name):
        return _Outcome(ErrorCode.topic_authorization_failed)
    topic = call.cluster.topics.get(requested.name)
    if topic is None:
        return _Outcome(ErrorCode.unknown_topic_or_partition)
    additional = requested.count - len(topic.partitions)
    outcome = _check_growth(call, requested)
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


def _check_growth(call: NodeCall, requested: Any) -> _Outcome:
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


def refuse_create_partitions(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, ((topic.name, _Outcome(error)) for topic in call.request.topics))
