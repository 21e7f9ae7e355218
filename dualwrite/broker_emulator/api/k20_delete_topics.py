"""DeleteTopics (key 20), versions 1-6.

* v4 flexible; v5 error messages; v6 by name or by id (KIP-516; unknown id 100, both or neither given 42).
* Unknown name 3. Internal topics are not deleted: 42 INVALID_REQUEST (Kafka allows it and breaks).
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.registry import NO_THROTTLE, Api, Call, register
from dualwrite.broker_emulator.cluster import Topic


async def handle(call: Call) -> Any:
    return _response(call, [_delete(call, name, topic_id) for name, topic_id in _requested(call)])


def _requested(call: Call) -> list[tuple[str | None, Any]]:
    if call.version >= 6:
        return [(topic.name, topic.topic_id) for topic in call.request.topics]
    return [(name, None) for name in call.request.topic_names]


def _delete(call: Call, name: str | None, topic_id: Any) -> Any:
    topic, error = _find(call, name, topic_id)
    if topic is None:
        return _row(call, name, topic_id, error)
    call.cluster.delete_topic(topic.name)
    return _row(call, topic.name, topic.topic_id, ErrorCode.none)


def _find(call: Call, name: str | None, topic_id: Any) -> tuple[Topic | None, ErrorCode]:
    if (name is None) == (topic_id is None):
        return None, ErrorCode.invalid_request
    cluster = call.cluster
    topic = cluster.topic_by_id(topic_id) if name is None else cluster.topics.get(name)
    if topic is None:
        return None, ErrorCode.unknown_topic_id if name is None else ErrorCode.unknown_topic_or_partition
    return (None, ErrorCode.invalid_request) if topic.is_internal else (topic, ErrorCode.none)


def _row(call: Call, name: str | None, topic_id: Any, error: ErrorCode) -> Any:
    return call.new.DeletableTopicResult(name=name, topic_id=topic_id, error_code=error, error_message=None)


def _response(call: Call, rows: list[Any]) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, responses=tuple(rows))


def refuse(call: Call, error: ErrorCode) -> Any:
    return _response(call, [_row(call, name, topic_id, error) for name, topic_id in _requested(call)])


register(Api(key=20, schema_name="delete_topics", min_version=1, max_version=6, handle=handle, refuse=refuse))
