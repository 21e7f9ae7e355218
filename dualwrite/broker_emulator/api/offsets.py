"""What OffsetCommit and TxnOffsetCommit share: reading the offsets of a request and building its response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.registry import NO_THROTTLE, Call
from dualwrite.broker_emulator.api.topics import allowed_topic, topic_reference
from dualwrite.broker_emulator.cluster.topic_partition import TopicPartition
from dualwrite.broker_emulator.groups.records import CommittedOffset
from dualwrite.broker_emulator.security.acl import AclOperation


class OffsetsToCommit(NamedTuple):
    """The offsets of a request: those that can be stored, and why the others cannot.

    Topics that are not there, or may not be read, are in neither; the response says so of its own accord.
    """

    valid: dict[TopicPartition, CommittedOffset]
    refused: dict[TopicPartition, ErrorCode]

    @property
    def concern_the_group(self) -> bool:
        """Whether the group is asked at all: not if there is no partition that exists."""
        return bool(self.valid) or ErrorCode.offset_metadata_too_large in self.refused.values()

    def answers(self, error: ErrorCode) -> dict[TopicPartition, ErrorCode]:
        """What each is answered, with `error` from the group."""
        if error is ErrorCode.none:
            return {**self.refused, **dict.fromkeys(self.valid, error)}
        unknown = ErrorCode.unknown_topic_or_partition
        refused = {name: unknown if reason is unknown else error for name, reason in self.refused.items()}
        return {**refused, **dict.fromkeys(self.valid, error)}


def offsets_to_commit(call: Call) -> OffsetsToCommit:
    """The offsets of an OffsetCommit or TxnOffsetCommit."""
    offsets = OffsetsToCommit({}, {})
    for requested in call.request.topics:
        topic, _ = allowed_topic(call, requested, AclOperation.READ)
        if topic is None:
            continue
        for partition in requested.partitions:
            name = TopicPartition(topic.name, partition.partition_index)
            if not 0 <= name.partition < len(topic.partitions):
                offsets.refused[name] = ErrorCode.unknown_topic_or_partition
            elif len(partition.committed_metadata or "") > call.cluster.config.offset_metadata_max_bytes:
                offsets.refused[name] = ErrorCode.offset_metadata_too_large
            else:
                offsets.valid[name] = _committed_offset(call, name, partition)
    return offsets


def _committed_offset(call: Call, name: TopicPartition, partition: Any) -> CommittedOffset:
    return call.node.groups.value(
        name,
        partition.committed_offset,
        getattr(partition, "committed_leader_epoch", -1),
        partition.committed_metadata,
    )


def offset_response(call: Call, prefix: str, errors: ErrorCode | Mapping[TopicPartition, ErrorCode]) -> Any:
    """The response of the API whose types are called `prefix`..., with one error for all partitions or one for each."""
    new = vars(call.new)
    partition_type = new[f"{prefix}ResponsePartition"]
    return call.new.response(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            new[f"{prefix}ResponseTopic"](
                **topic_reference(requested),
                partitions=tuple(
                    partition_type(
                        partition_index=partition.partition_index,
                        error_code=_error(call, requested, partition.partition_index, errors),
                    )
                    for partition in requested.partitions
                ),
            )
            for requested in call.request.topics
        ),
    )


def _error(call: Call, requested: Any, index: int, errors: ErrorCode | Mapping[TopicPartition, ErrorCode]) -> ErrorCode:
    if isinstance(errors, ErrorCode):
        return errors
    topic, error = allowed_topic(call, requested, AclOperation.READ)
    return error if topic is None else errors[TopicPartition(topic.name, index)]
