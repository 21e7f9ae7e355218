"""DeleteTopics (key 20), versions 1-6.

* v4 flexible; v5 error messages; v6 by name or by id (KIP-516; unknown id 100, both or neither given 42).
* Access: DELETE on the topics, or on the cluster (29). Who may not DESCRIBE a topic either is not told the name of an
  id, nor whether there is a topic of that name.
* v5 refuses what a quota of mutations is used up for with 89; before, it is deleted and throttled (KIP-599).
* `delete.topic.enable=false` 73 (42 below v3). Unknown name 3. Internal topics are not deleted: 42 INVALID_REQUEST
  (Kafka allows it and breaks).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.registry import NO_THROTTLE, Call
from dualwrite.broker_emulator.cluster import Topic
from dualwrite.broker_emulator.log.segment import StorageError
from dualwrite.broker_emulator.quotas.enforcement import Mutations
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType


async def handle(call: Call) -> Any:
    if not call.cluster.config.delete_topic_enable:
        return refuse(call, ErrorCode.topic_deletion_disabled if call.version >= 3 else ErrorCode.invalid_request)
    mutations = call.cluster.controller_quotas.mutations(call, strict_since=5)
    rows = [_delete(call, name, topic_id, mutations) for name, topic_id in _requested(call)]
    return _response(call, rows, mutations.throttle_time)


def _requested(call: Call) -> list[tuple[str | None, Any]]:
    if call.version >= 6:
        return [(topic.name, topic.topic_id) for topic in call.request.topics]
    return [(name, None) for name in call.request.topic_names]


def _delete(call: Call, name: str | None, topic_id: Any, mutations: Mutations) -> Any:
    if (name is None) == (topic_id is None):
        return _row(call, name, topic_id, ErrorCode.invalid_request)
    topic, refusal = _by_id(call, topic_id) if name is None else _by_name(call, name)
    if topic is None:
        return refusal
    if topic.is_internal:
        return _row(call, name, topic_id, ErrorCode.invalid_request)
    if not mutations.are_allowed(len(topic.partitions)):
        return _row(call, topic.name, topic.topic_id, ErrorCode.throttling_quota_exceeded)
    try:
        call.cluster.delete_topic(topic.name)
    except StorageError as problem:
        return _row(call, topic.name, topic.topic_id, ErrorCode.kafka_storage_error, str(problem))
    return _row(call, topic.name, topic.topic_id, ErrorCode.none)


def _by_name(call: Call, name: str) -> tuple[Topic | None, Any]:
    """The topic to delete, or the answer where it is not deleted."""
    if not _may(call, AclOperation.DESCRIBE, name):
        return None, _row(call, name, None, ErrorCode.topic_authorization_failed)
    topic = call.cluster.topics.get(name)
    if topic is None:
        return None, _row(call, name, None, ErrorCode.unknown_topic_or_partition)
    if not _may(call, AclOperation.DELETE, name):
        return None, _row(call, name, None, ErrorCode.topic_authorization_failed)
    return topic, None


def _by_id(call: Call, topic_id: Any) -> tuple[Topic | None, Any]:
    topic = call.cluster.topic_by_id(topic_id)
    if topic is None:
        return None, _row(call, None, topic_id, ErrorCode.unknown_topic_id)
    if not _may(call, AclOperation.DELETE, topic.name):
        shown = topic.name if _may(call, AclOperation.DESCRIBE, topic.name) else None
        return None, _row(call, shown, topic_id, ErrorCode.topic_authorization_failed)
    return topic, None


def _may(call: Call, operation: AclOperation, name: str) -> bool:
    return call.is_allowed(AclOperation.DELETE, ResourceType.CLUSTER, is_logged=False) or call.is_allowed(
        operation, ResourceType.TOPIC, name
    )


def _row(call: Call, name: str | None, topic_id: Any, error: ErrorCode, message: str | None = None) -> Any:
    return call.new.DeletableTopicResult(name=name, topic_id=topic_id, error_code=error, error_message=message)


def _response(call: Call, rows: list[Any], throttle_time: timedelta = NO_THROTTLE) -> Any:
    return call.new.response(throttle_time=throttle_time, responses=tuple(rows))


def refuse(call: Call, error: ErrorCode) -> Any:
    return _response(call, [_row(call, name, topic_id, error) for name, topic_id in _requested(call)])
