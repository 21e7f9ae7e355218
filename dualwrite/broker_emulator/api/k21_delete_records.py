"""DeleteRecords (key 21), versions 0-2.

Deletes the records of a partition below an offset (KIP-107). Whole segments are deleted from the disk; records in the
segment of the offset itself are no longer visible.

* -1 is the high watermark. An offset below the start of the log is no error; the response has the start of the log.
* Beyond the high watermark, and below -1: 1. Compaction only: 44. Internal topic: 17. Full disk: 56.
* Access: DELETE on the topics (29).
* Unknown partition 3; led by another node 6. With every error, the low watermark is -1.
* All replicas share one log, so the response need not wait, and the timeout has no effect.
* v2 flexible.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.api.topics import allowed_topic, led_partition
from dualwrite.broker_emulator.security.acl import AclOperation
from dualwrite.broker_emulator.slices import Pace, in_slices

_NO_OFFSET = -1


async def handle(call: NodeCall) -> Any:
    rows = []
    pace = Pace()
    for topic in call.request.topics:
        for requested in topic.partitions:
            await pace.keep()
            rows.append(await _delete(call, topic, requested))
    made = iter(rows)
    return await call.made(_response, call, lambda *_: next(made))


async def _delete(call: NodeCall, requested_in: Any, requested: Any) -> Any:
    index = requested.partition_index
    topic, error = allowed_topic(call, requested_in, AclOperation.DELETE)
    if topic is None:
        return _row(call, index, error)
    if topic.is_internal:
        return _row(call, index, ErrorCode.invalid_topic_exception)
    partition, error = led_partition(call, topic, index)
    if partition is None:
        return _row(call, index, error)
    error = await in_slices(partition.log.delete_records(requested.offset))
    return _row(call, index, error, partition.log.log_start_offset if error is ErrorCode.none else _NO_OFFSET)


def _row(call: NodeCall, index: int, error: ErrorCode, low_watermark: int = _NO_OFFSET) -> Any:
    return call.new.DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark, error_code=error)


def _response(call: NodeCall, row_of: Any) -> Any:
    return call.new.response(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            call.new.DeleteRecordsTopicResult(
                name=topic.name, partitions=tuple(row_of(topic, requested) for requested in topic.partitions)
            )
            for topic in call.request.topics
        ),
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, lambda topic, requested: _row(call, requested.partition_index, error))
