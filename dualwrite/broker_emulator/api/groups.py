"""Groups and their offsets in requests: finding a group, reading offsets to commit, building the response."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.api.topics import allowed_topic, topic_reference
from dualwrite.broker_emulator.cluster.topics import TopicPartition
from dualwrite.broker_emulator.groups.consumer.group import Assignment, HeartbeatResponse
from dualwrite.broker_emulator.groups.consumer.topics import by_id_and_index
from dualwrite.broker_emulator.groups.records import CommittedOffset
from dualwrite.broker_emulator.groups.shard import GroupShard
from dualwrite.broker_emulator.security.acl import NOT_ASKED_FOR, AclOperation
from dualwrite.broker_emulator.slices import Pace

_MILLISECOND = timedelta(milliseconds=1)


def group_shard(call: NodeCall, group_id: str, *, allow_empty_id: bool = False) -> GroupShard | ErrorCode:
    """Return this node's shard of the group, or the error: 24 for the id "", 14 while loading, 16 on another node."""
    if group_id == "" and not allow_empty_id:
        return ErrorCode.invalid_group_id
    return call.node.groups.shard(group_id)


def milliseconds(duration: timedelta) -> int:
    """Return a duration in whole milliseconds."""
    return duration // _MILLISECOND


# --- groups with heartbeats (KIP-848, KIP-932) ------------------------------------------------------------------------


def refused_heartbeat(call: NodeCall, error: ErrorCode, message: str | None = None) -> Any:
    """Build the response to a refused heartbeat."""
    return call.new.response(
        throttle_time=NO_THROTTLE,
        error_code=error,
        error_message=message,
        member_id=None,
        member_epoch=0,
        heartbeat_interval=timedelta(0),
        assignment=None,
    )


def accepted_heartbeat(call: NodeCall, answer: HeartbeatResponse) -> Any:
    """Build the response to an accepted heartbeat."""
    return call.new.response(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=timedelta(milliseconds=answer.heartbeat_interval_ms),
        assignment=None if answer.assignment is None else _assignment(call, answer.assignment),
    )


def _assignment(call: NodeCall, assignment: Assignment) -> Any:
    by_topic: dict[uuid.UUID, list[int]] = {}
    for topic_id, index in sorted(assignment, key=by_id_and_index):
        by_topic.setdefault(topic_id, []).append(index)
    topics = tuple(
        call.new.TopicPartitions(topic_id=topic_id, partitions=tuple(indexes)) for topic_id, indexes in by_topic.items()
    )
    return call.new.Assignment(topic_partitions=topics)


def undescribed_group(call: NodeCall, group_id: str, error: ErrorCode, message: str | None = None) -> Any:
    """Build the part of a response for a group that is not described."""
    return call.new.DescribedGroup(
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
        authorized_operations=NOT_ASKED_FOR,
    )


# --- OffsetCommit and TxnOffsetCommit ---------------------------------------------------------------------------------


class OffsetsToCommit(NamedTuple):
    """The offsets of a request: those that can be stored, and the errors of the others.

    Topics that do not exist or may not be read are in neither; `offset_response` adds their errors.
    """

    valid: dict[TopicPartition, CommittedOffset]
    refused: dict[TopicPartition, ErrorCode]

    @property
    def concern_the_group(self) -> bool:
        """Whether the request involves the group, which it does not if no partition exists."""
        return bool(self.valid) or ErrorCode.offset_metadata_too_large in self.refused.values()

    def errors(self, error: ErrorCode) -> dict[TopicPartition, ErrorCode]:
        """Return the error of each partition, given the `error` of the group."""
        if error is ErrorCode.none:
            return {**self.refused, **dict.fromkeys(self.valid, error)}
        unknown = ErrorCode.unknown_topic_or_partition
        refused = {name: unknown if reason is unknown else error for name, reason in self.refused.items()}
        return {**refused, **dict.fromkeys(self.valid, error)}


async def offsets_to_commit(call: NodeCall) -> OffsetsToCommit:
    """Read the offsets of an OffsetCommit or TxnOffsetCommit request."""
    offsets = OffsetsToCommit({}, {})
    pace = Pace()
    for requested in call.request.topics:
        await pace.keep()
        topic, _ = allowed_topic(call, requested, AclOperation.READ)
        if topic is None:
            continue
        for partition in requested.partitions:
            await pace.keep()
            name = TopicPartition(topic.name, partition.partition_index)
            if not 0 <= name.partition < len(topic.partitions):
                offsets.refused[name] = ErrorCode.unknown_topic_or_partition
            elif len(partition.committed_metadata or "") > call.cluster.config.offset_metadata_max_bytes:
                offsets.refused[name] = ErrorCode.offset_metadata_too_large
            else:
                offsets.valid[name] = _committed_offset(call, name, partition)
    return offsets


def _committed_offset(call: NodeCall, name: TopicPartition, partition: Any) -> CommittedOffset:
    return call.node.groups.value(
        name,
        partition.committed_offset,
        getattr(partition, "committed_leader_epoch", -1),
        partition.committed_metadata,
    )


def offset_response(call: NodeCall, prefix: str, errors: ErrorCode | Mapping[TopicPartition, ErrorCode]) -> Any:
    """Build the response from the types named `prefix`..., with one error for all partitions or one for each.

    Partitions that do not exist or may not be read come first, and then those that the group was asked about: Kafka
    adds the coordinator's response to its own. A topic is named once, unless all partitions have one error.
    """
    new = vars(call.new)
    partition_type, topic_type = new[f"{prefix}ResponsePartition"], new[f"{prefix}ResponseTopic"]
    asked = [_Asked(call, requested, errors) for requested in call.request.topics]
    topics: dict[Any, tuple[Any, list[Any]]] = {}
    for is_known in (None,) if isinstance(errors, ErrorCode) else (False, True):
        for number, topic in enumerate(asked):
            rows = [partition_type(partition_index=index, error_code=code) for index, code in topic.rows(is_known)]
            if rows or (topic.is_unknown and not is_known):
                key = number if is_known is None else tuple(topic.reference.values())
                topics.setdefault(key, (topic.reference, []))[1].extend(rows)
    built = tuple(topic_type(**reference, partitions=tuple(rows)) for reference, rows in topics.values())
    return call.new.response(throttle_time=NO_THROTTLE, topics=built)


class _Asked:
    """A topic of the request, with the errors of its partitions."""

    __slots__ = ("_rows", "is_unknown", "reference")

    def __init__(self, call: NodeCall, requested: Any, errors: ErrorCode | Mapping[TopicPartition, ErrorCode]) -> None:
        topic, error = allowed_topic(call, requested, AclOperation.READ)
        self.reference = topic_reference(requested)
        self.is_unknown = topic is None
        """Whether the topic does not exist, or may not be read."""
        indexes = (partition.partition_index for partition in requested.partitions)
        if isinstance(errors, ErrorCode):
            self._rows = [(index, errors, True) for index in indexes]
        elif topic is None:
            self._rows = [(index, error, False) for index in indexes]
        else:
            found = ((index, errors.get(TopicPartition(topic.name, index), _UNKNOWN_PARTITION)) for index in indexes)
            self._rows = [(index, code, code is not _UNKNOWN_PARTITION) for index, code in found]

    def rows(self, is_known: bool | None) -> Iterator[tuple[int, ErrorCode]]:
        """Return the partitions that exist and may be read, or the others; all partitions if `is_known` is None."""
        return ((index, code) for index, code, exists in self._rows if is_known is None or exists is is_known)


_UNKNOWN_PARTITION = ErrorCode.unknown_topic_or_partition
