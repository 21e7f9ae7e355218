"""Topics deleted, and the oldest records of partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.topics import allowed_topic, led_partition, named_partitions, topics_response
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.messages.codec import NO_THROTTLE
from dualwrite.broker_emulator.quotas.enforcement import Mutations
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace, in_slices
from dualwrite.broker_emulator.topics.topics import Topic

_NAMED_IN_BOTH_WAYS: Final = "The provided topic name maps to an ID that was already supplied."
_MESSAGES: Final = {
    ErrorCode.unknown_topic_or_partition: "This server does not host this topic-partition.",
    ErrorCode.unknown_topic_id: "This server does not host this topic ID.",
}


async def handle_delete_topics(call: NodeCall) -> Any:
    """Serve DeleteTopics (key 20), versions 1-6.

    * v4 flexible; v5 error messages; v6 by name or by id (KIP-516; unknown id 100, both or neither given 42).
    * A topic named twice, by name or by id, is not deleted: 42, in one row.
    * Access: DELETE on the topics, or on the cluster (29). Without DESCRIBE on a topic, the response reveals neither
      the name of an id nor whether a topic of that name exists.
    * From v5 on, an exhausted quota of mutations is 89; before, the topic is deleted and the client throttled
      (KIP-599).
    * `delete.topic.enable=false` 73 (42 below v3). Unknown name 3. Internal topics are not deleted: 42 INVALID_REQUEST
      (Kafka allows it and breaks).
    """
    if not call.cluster.config.delete_topic_enable:
        return await call.refused(ErrorCode.topic_deletion_disabled if call.version >= 3 else ErrorCode.invalid_request)
    mutations = call.cluster.controller_quotas.mutations(call, strict_since=5)
    requested = Counter(await call.made(_requested, call))
    rows = []
    pace = Pace()
    deleted: set[str] = set()
    async with call.cluster.changes:
        try:
            for named in requested:
                await pace.keep()
                rows.append(await _delete_topic(call, named, requested, mutations))
                if rows[-1] is not None and rows[-1].error_code is ErrorCode.none:
                    deleted.add(rows[-1].name)
        finally:
            await call.cluster.changes.make(call.cluster.offset_removal(deleted))
    return _delete_response(call, [row for row in rows if row is not None], mutations.throttle_time)


class _Named(NamedTuple):
    """A topic as a request names it."""

    name: str | None
    topic_id: Any


def _requested(call: NodeCall) -> list[_Named]:
    if call.version >= 6:
        return [_Named(topic.name, topic.topic_id) for topic in call.request.topics]
    return [_Named(name, None) for name in call.request.topic_names]


async def _delete_topic(call: NodeCall, named: _Named, requested: Mapping[_Named, int], mutations: Mutations) -> Any:
    """Delete a topic and return its row; None for the id of a topic that already has a row for its name."""
    name, topic_id = named
    problem = _why_unclear(named, requested[named])
    if problem is not None:
        return _delete_row(call, name, topic_id, ErrorCode.invalid_request, problem)
    topic, refusal = _by_id(call, topic_id) if name is None else _by_name(call, name)
    if topic is None:
        return refusal
    if _Named(topic.name, None) in requested and _Named(None, topic.topic_id) in requested:
        if name is None:
            return None
        return _delete_row(call, topic.name, topic.topic_id, ErrorCode.invalid_request, _NAMED_IN_BOTH_WAYS)
    if topic.is_internal:
        return _delete_row(call, name, topic_id, ErrorCode.invalid_request)
    if not mutations.are_allowed(len(topic.partitions)):
        return _delete_row(call, topic.name, topic.topic_id, ErrorCode.throttling_quota_exceeded)
    try:
        await call.cluster.changes.make(call.cluster.removal(topic.name))
    except StorageError as problem:
        return _delete_row(call, topic.name, topic.topic_id, ErrorCode.kafka_storage_error, str(problem))
    return _delete_row(call, topic.name, topic.topic_id, ErrorCode.none)


def _why_unclear(named: _Named, times: int) -> str | None:
    """Return the fault in the way the request names a topic, or None."""
    if named.name is None and named.topic_id is None:
        return "Neither topic name nor id were specified."
    if named.name is not None and named.topic_id is not None:
        return "You may not specify both topic name and topic id."
    if times > 1:
        return "Duplicate topic id." if named.name is None else "Duplicate topic name."
    return None


def _by_name(call: NodeCall, name: str) -> tuple[Topic | None, Any]:
    """Return the topic to delete, or None and the row of the refusal."""
    if not _may(call, AclOperation.DESCRIBE, name):
        return None, _delete_row(call, name, None, ErrorCode.topic_authorization_failed)
    topic = call.cluster.topics.get(name)
    if topic is None:
        return None, _delete_row(call, name, None, ErrorCode.unknown_topic_or_partition)
    if not _may(call, AclOperation.DELETE, name):
        return None, _delete_row(call, name, None, ErrorCode.topic_authorization_failed)
    return topic, None


def _by_id(call: NodeCall, topic_id: Any) -> tuple[Topic | None, Any]:
    topic = call.cluster.topic_by_id(topic_id)
    if topic is None:
        return None, _delete_row(call, None, topic_id, ErrorCode.unknown_topic_id)
    if not _may(call, AclOperation.DELETE, topic.name):
        shown = topic.name if _may(call, AclOperation.DESCRIBE, topic.name) else None
        return None, _delete_row(call, shown, topic_id, ErrorCode.topic_authorization_failed)
    return topic, None


def _may(call: NodeCall, operation: AclOperation, name: str) -> bool:
    return call.is_allowed(AclOperation.DELETE, ResourceType.CLUSTER, is_logged=False) or call.is_allowed(
        operation, ResourceType.TOPIC, name
    )


def _delete_row(call: NodeCall, name: str | None, topic_id: Any, error: ErrorCode, message: str | None = None) -> Any:
    message = message or _MESSAGES.get(error)
    return call.new.DeletableTopicResult(name=name, topic_id=topic_id, error_code=error, error_message=message)


def _delete_response(call: NodeCall, rows: list[Any], throttle_time: timedelta = NO_THROTTLE) -> Any:
    return call.new.response(throttle_time=throttle_time, responses=tuple(rows))


def refuse_delete_topics(call: NodeCall, error: ErrorCode) -> Any:
    return _delete_response(
        call, [_delete_row(call, name, topic_id, error) for name, topic_id in dict.fromkeys(_requested(call))]
    )


_NO_OFFSET = -1


async def handle_delete_records(call: NodeCall) -> Any:
    """Serve DeleteRecords (key 21), versions 0-2.

    Deletes the records of a partition below an offset (KIP-107). Whole segments are deleted from the disk; records in
    the segment of the offset itself are no longer visible.

    * -1 is the high watermark. An offset below the start of the log is no error; the response has the start of the log.
    * Beyond the high watermark, and below -1: 1. Compaction only: 44. Internal topic: 17. Full disk: 56.
    * Access: DELETE on the topics (29).
    * Unknown partition 3; led by another node 6. With every error, the low watermark is -1.
    * All replicas share one log, so the response need not wait, and the timeout has no effect.
    * v2 flexible.
    """
    rows = []
    pace = Pace()
    for topic, requested in named_partitions(call):
        await pace.keep()
        rows.append(await _delete_records(call, topic, requested))
    made = iter(rows)
    return await call.made(topics_response, call, "DeleteRecordsTopicResult", lambda *_: next(made))


async def _delete_records(call: NodeCall, requested_in: Any, requested: Any) -> Any:
    index = requested.partition_index
    topic, error = allowed_topic(call, requested_in, AclOperation.DELETE)
    if topic is None:
        return _records_row(call, index, error)
    if topic.is_internal:
        return _records_row(call, index, ErrorCode.invalid_topic_exception)
    partition, error = led_partition(call, topic, index)
    if partition is None:
        return _records_row(call, index, error)
    error = await in_slices(partition.log.delete_records(requested.offset))
    return _records_row(call, index, error, partition.log.log_start_offset if error is ErrorCode.none else _NO_OFFSET)


def _records_row(call: NodeCall, index: int, error: ErrorCode, low_watermark: int = _NO_OFFSET) -> Any:
    return call.new.DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark, error_code=error)


def refuse_delete_records(call: NodeCall, error: ErrorCode) -> Any:
    return topics_response(
        call, "DeleteRecordsTopicResult", lambda topic, row: _records_row(call, row.partition_index, error)
    )
