"""CreateTopics (key 19), versions 2-7.

* v4 -1 for the default number of partitions and replicas (KIP-464); v5 flexible, returns partitions, replicas and
  settings (KIP-525); v7 topic ids.
* Existing name 36; illegal name 17, as is one that differs from another only in '.' and '_'; no partitions 37; more
  replicas than nodes (or none) 38; both an assignment and counts 42; duplicate name 42; an assignment that omits a
  partition, repeats a node or names an unknown one, or with a different number of replicas for some partition, 39.
  `__cluster_metadata` 42.
* Access: CREATE on the topics, or on the cluster (29). Without DESCRIBE_CONFIGS on a topic, the response omits these
  three (KIP-525).
* Replicas determine which nodes can lead: by default all of them (`default.replication.factor`).
* An unknown setting, or an invalid value, is 40. v5+ returns all settings of the topic.
* A failure of the disk is 56.
* More than 10,000 partitions in one request: 44 for all of it, as from Kafka's controller.
* From v6 on, an exhausted quota of mutations is 89; before, the topic is created and the client throttled (KIP-599).
* ValidateOnly returns the same response and creates nothing.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.configs import layers_of
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.api.topics import MAX_PARTITIONS_PER_REQUEST, why_not_assignable
from dualwrite.broker_emulator.cluster.topics import METADATA_TOPIC, NamesAlike, Topic, why_not_a_topic_name
from dualwrite.broker_emulator.configs.alteration import AlterationError, check_topic_configs
from dualwrite.broker_emulator.configs.description import topic_entries
from dualwrite.broker_emulator.configs.effective import topic_settings
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.quotas.enforcement import Mutations
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace, mapped

_CONFIGS_VERSION = 5


async def handle(call: NodeCall) -> Any:
    requested = sum(max(_partition_count(call, topic), 0) for topic in call.request.topics)
    if requested > MAX_PARTITIONS_PER_REQUEST:
        message = "Excessively large number of partitions per request."
        rows = await mapped(
            lambda topic: _row(call, topic, ErrorCode.policy_violation, message), await call.made(_named_once, call)
        )
        return call.new.response(throttle_time=NO_THROTTLE, topics=tuple(rows))
    mutations = call.cluster.controller_quotas.mutations(call, strict_since=6)
    named = await call.made(_named_once, call)
    given = await call.made(Counter, [topic.name for topic in call.request.topics])
    rows = []
    pace = Pace()
    async with call.cluster.changes:
        alike = NamesAlike(call.cluster.topics)
        for topic in named:
            await pace.keep()
            rows.append(await _create(call, topic, mutations, alike, given[topic.name] > 1))
    return call.new.response(throttle_time=mutations.throttle_time, topics=tuple(rows))


def _named_once(call: NodeCall) -> list[Any]:
    """Return the first row for each name."""
    return list({topic.name: topic for topic in reversed(call.request.topics)}.values())[::-1]


async def _create(call: NodeCall, requested: Any, mutations: Mutations, alike: NamesAlike, is_repeated: bool) -> Any:
    if is_repeated:
        return _row(call, requested, ErrorCode.invalid_request, "Duplicate topic name.")
    error, message = _check(call, requested, alike)
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


def _check(call: NodeCall, requested: Any, alike: NamesAlike) -> tuple[ErrorCode, str | None]:
    name, partitions, replicas = requested.name, requested.num_partitions, requested.replication_factor
    if not _may_create(call, name):
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


def _may_create(call: NodeCall, name: str) -> bool:
    return call.is_allowed(AclOperation.CREATE, ResourceType.CLUSTER, is_logged=False) or call.is_allowed(
        AclOperation.CREATE, ResourceType.TOPIC, name
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


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    rows = tuple(_row(call, topic, error, None) for topic in _named_once(call))
    return call.new.response(throttle_time=NO_THROTTLE, topics=rows)
