"""CreateTopics (key 19), versions 2-7.

* v4 -1 for the default number of partitions and replicas (KIP-464); v5 flexible, answers what was created
  (KIP-525); v7 topic ids.
* Taken name 36; name that is not legal 17; no partitions 37; more replicas than nodes (or none) 38; both an
  assignment and counts 42; a name given twice 42.
* There is one replica of everything, on the leader, whatever was asked for; assignments only say how many
  partitions. Configs are kept, not obeyed.
* More than 10,000 partitions in one request 44 for all of it, as from Kafka's controller.
* ValidateOnly answers as if and creates nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.registry import NO_THROTTLE, Api, Call, register
from dualwrite.broker_emulator.api.topics import MAX_PARTITIONS_PER_REQUEST
from dualwrite.broker_emulator.cluster import Topic, is_legal_topic_name


async def handle(call: Call) -> Any:
    asked_for = sum(max(_partition_count(call, topic), 0) for topic in call.request.topics)
    if asked_for > MAX_PARTITIONS_PER_REQUEST:
        return refuse(call, ErrorCode.policy_violation)
    given = Counter(topic.name for topic in call.request.topics)
    rows = [_create(call, topic, given[topic.name] > 1) for topic in call.request.topics]
    return call.new.response(throttle_time=NO_THROTTLE, topics=tuple(rows))


def _create(call: Call, requested: Any, is_repeated: bool) -> Any:
    error, message = (ErrorCode.invalid_request, "named twice") if is_repeated else _check(call, requested)
    if error is not ErrorCode.none:
        return _row(call, requested, error, message)
    partitions = _partition_count(call, requested)
    if call.request.validate_only:
        return _row(call, requested, ErrorCode.none, None, partitions=partitions)
    configs = {config.name: config.value for config in requested.configs}
    topic = call.cluster.create_topic(requested.name, partitions, configs=configs)
    return _row(call, requested, ErrorCode.none, None, topic=topic, partitions=partitions)


def _check(call: Call, requested: Any) -> tuple[ErrorCode, str | None]:
    name, partitions, replicas = requested.name, requested.num_partitions, requested.replication_factor
    if not is_legal_topic_name(name):
        return ErrorCode.invalid_topic_exception, f"{name!r} is not a legal topic name"
    if name in call.cluster.topics:
        return ErrorCode.topic_already_exists, f"Topic '{name}' already exists."
    if requested.assignments and (partitions != -1 or replicas != -1):
        return ErrorCode.invalid_request, "an assignment goes with -1 partitions and -1 replicas"
    if partitions == 0 or partitions < -1:
        return ErrorCode.invalid_partitions, f"{partitions} partitions"
    if replicas == 0 or replicas < -1 or replicas > len(call.cluster.nodes):
        return ErrorCode.invalid_replication_factor, f"{replicas} replicas on {len(call.cluster.nodes)} nodes"
    return ErrorCode.none, None


def _partition_count(call: Call, requested: Any) -> int:
    if requested.assignments:
        return len(requested.assignments)
    if requested.num_partitions == -1:
        return call.cluster.config.num_partitions
    partitions: int = requested.num_partitions
    return partitions


def _row(
    call: Call,
    requested: Any,
    error: ErrorCode,
    message: str | None,
    *,
    topic: Topic | None = None,
    partitions: int = -1,
) -> Any:
    return call.new.CreatableTopicResult(
        name=requested.name,
        topic_id=None if topic is None else topic.topic_id,
        error_code=error,
        error_message=message,
        num_partitions=partitions,
        replication_factor=1 if error is ErrorCode.none else -1,
        configs=() if error is ErrorCode.none else None,
    )


def refuse(call: Call, error: ErrorCode) -> Any:
    rows = tuple(_row(call, topic, error, None) for topic in call.request.topics)
    return call.new.response(throttle_time=NO_THROTTLE, topics=rows)


register(Api(key=19, schema_name="create_topics", min_version=2, max_version=7, handle=handle, refuse=refuse))
