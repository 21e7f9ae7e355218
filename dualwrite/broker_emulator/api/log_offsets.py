"""Offsets in the log of a partition: by timestamp, and at the end of a leader epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.topics import (
    allowed_topic,
    check_leader_epoch,
    is_isolation_level,
    led_partition,
    named_partitions,
    requested_topic,
    topics_response,
)
from dualwrite.broker_emulator.log.offset_lookup import UNKNOWN_EPOCH, EpochEnd
from dualwrite.broker_emulator.log.record_batch import RecordTooLargeError
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Steps, in_slices, mapped_rows
from dualwrite.broker_emulator.topics.topics import Partition, Topic

_READ_COMMITTED = 1
_LATEST, _EARLIEST, _EARLIEST_LOCAL, _LATEST_TIERED, _EARLIEST_PENDING_UPLOAD = -1, -2, -4, -5, -6
_FIRST_VERSION = {_LATEST: 1, _EARLIEST: 1, -3: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9, _EARLIEST_PENDING_UPLOAD: 11}
"""The first version that supports each special timestamp."""


async def handle_list_offsets(call: NodeCall) -> Any:
    """Serve ListOffsets (key 2), versions 1-11.

    Offsets by timestamp, or of the two ends of a partition, from its leader.

    * Timestamp -1 latest (isolation 0: high watermark, 1: last stable offset), -2 earliest, -3 the offset of the
      largest timestamp (v7, KIP-734), -4 earliest local (v8, KIP-405: the same as earliest, because nothing is tiered
      here), -5 latest tiered (v9, KIP-1005: none). Other negative timestamps, and special ones in versions before
      theirs, are 35 UNSUPPORTED_VERSION, checked before the partition.
    * An isolation level other than 0 and 1 is -1 for the whole request, as in Kafka; in the profile kafka-3.9, for the
      partitions without another error.
    * A timestamp without an offset is (-1, -1), without an error.
    * A search that meets a compressed record larger than the current `max.decompressed.message.bytes` is 87.
    * The leader epoch of an offset is that of its batch (KIP-320); of the latest offset, the current one.
    * After an election, only the earliest offset is known until the earlier records are replicated: 78 (5 below v5).
    * Access: DESCRIBE on the topics (29).
    * v2 isolation level; v4 leader epochs (KIP-320); v6 flexible; v10 timeout.
    * v10 is hidden by the profile kafka-3.9.
    """
    if call.cluster.config.behaviours.isolation_level_checked_first and not _has_isolation_level(call):
        return await call.refused(ErrorCode.unknown_server_error)
    rows = iter(await in_slices(_offsets(call, named_partitions(call))))
    return await call.made(topics_response, call, "ListOffsetsTopicResponse", lambda *_: next(rows))


def _offsets(call: NodeCall, named: Iterable[tuple[Any, Any]]) -> Steps[list[Any]]:
    rows: list[Any] = []
    for topic, requested in named:
        rows.append((yield from _offset(call, topic, requested)))
        yield
    return rows


def _offset(call: NodeCall, requested_in: Any, requested: Any) -> Steps[Any]:
    index = requested.partition_index
    topic, error = allowed_topic(call, requested_in, AclOperation.DESCRIBE)
    timestamp = requested.timestamp
    if error is not ErrorCode.topic_authorization_failed and not _is_supported(call, timestamp):
        return _listed_row(call, index, ErrorCode.unsupported_version)
    if error is not ErrorCode.topic_authorization_failed and not _has_isolation_level(call):
        return _listed_row(call, index, ErrorCode.unknown_server_error)
    if topic is None:
        return _listed_row(call, index, error)
    partition, error = led_partition(call, topic, index)
    if partition is None:
        return _listed_row(call, index, error)
    error = check_leader_epoch(partition, requested)
    if error is not ErrorCode.none:
        return _listed_row(call, index, error)
    log = partition.log
    if timestamp not in (_EARLIEST, _EARLIEST_LOCAL) and log.high_watermark < log.leader_epoch_start_offset:
        is_known = call.version >= 5
        return _listed_row(call, index, ErrorCode.offset_not_available if is_known else ErrorCode.leader_not_available)
    try:
        offset, found_timestamp = yield from _find(call, partition, timestamp)
    except RecordTooLargeError:
        return _listed_row(call, index, ErrorCode.invalid_record)
    is_at_end = timestamp == _LATEST or offset < 0
    epoch = log.leader_epoch if is_at_end else log.leader_epoch_at(offset)
    return _listed_row(call, index, ErrorCode.none, offset, found_timestamp, epoch)


def _has_isolation_level(call: NodeCall) -> bool:
    return is_isolation_level(getattr(call.request, "isolation_level", 0))


def _is_supported(call: NodeCall, timestamp: int) -> bool:
    return timestamp >= 0 or call.version >= _FIRST_VERSION.get(timestamp, 99)


def _find(call: NodeCall, partition: Partition, timestamp: int) -> Steps[tuple[int, int]]:
    if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return -1, -1
    return (
        yield from partition.log.offset_for_timestamp(
            _EARLIEST if timestamp == _EARLIEST_LOCAL else timestamp,
            read_committed=getattr(call.request, "isolation_level", 0) == _READ_COMMITTED,
        )
    )


def _listed_row(
    call: NodeCall, index: int, error: ErrorCode, offset: int = -1, timestamp: int = -1, leader_epoch: int = -1
) -> Any:
    return call.new.ListOffsetsPartitionResponse(
        partition_index=index,
        error_code=error,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=leader_epoch if offset >= 0 else -1,
    )


def refuse_list_offsets(call: NodeCall, error: ErrorCode) -> Any:
    return topics_response(
        call, "ListOffsetsTopicResponse", lambda topic, row: _listed_row(call, row.partition_index, error)
    )


async def handle_offset_for_leader_epoch(call: NodeCall) -> Any:
    """Serve OffsetForLeaderEpoch (key 23), versions 2-4.

    The end of a leader epoch's records, so that a consumer notices that its position is in a lost part of the log
    (KIP-320).

    * The response has the newest epoch that is not newer than the requested one, and the offset after its last record.
      For the current epoch that is the log end; an unknown future epoch, or one below 0, gets (-1, -1), without an
      error.
    * v3 replica id, which has no effect here; v4 flexible.
    * Access: DESCRIBE on the topics (29), or CLUSTER_ACTION.
    * Unknown partition 3; led by another node 6; wrong current leader epoch 74 / 75; failed read from the disk 56.
    """
    rows = await mapped_rows(lambda pair: _end(call, *pair), named_partitions(call))
    return await call.made(topics_response, call, "OffsetForLeaderTopicResult", rows)


def _end(call: NodeCall, requested_in: Any, requested: Any) -> Any:
    topic, error = _allowed_topic(call, requested_in)
    if topic is None:
        return _epoch_row(call, requested.partition, error)
    partition, error = led_partition(call, topic, requested.partition)
    if partition is None:
        return _epoch_row(call, requested.partition, error)
    error = check_leader_epoch(partition, requested)
    if error is not ErrorCode.none:
        return _epoch_row(call, requested.partition, error)
    try:
        return _epoch_row(call, requested.partition, error, partition.log.end_of_epoch(requested.leader_epoch))
    except StorageError:
        return _epoch_row(call, requested.partition, ErrorCode.kafka_storage_error)


def _allowed_topic(call: NodeCall, requested: Any) -> tuple[Topic | None, ErrorCode]:
    if call.is_allowed(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, is_logged=False):
        return requested_topic(call, requested)
    return allowed_topic(call, requested, AclOperation.DESCRIBE)


def _epoch_row(call: NodeCall, index: int, error: ErrorCode, end: EpochEnd = UNKNOWN_EPOCH) -> Any:
    return call.new.EpochEndOffset(error_code=error, partition=index, **end._asdict())


def refuse_offset_for_leader_epoch(call: NodeCall, error: ErrorCode) -> Any:
    return topics_response(
        call, "OffsetForLeaderTopicResult", lambda topic, row: _epoch_row(call, row.partition, error)
    )
