"""Groups and their offsets in requests: finding a group, reading offsets to commit, building the response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.api.topics import allowed_topic, topic_reference
from dualwrite.broker_emulator.cluster.topics import TopicPartition
from dualwrite.broker_emulator.groups.records import CommittedOffset
from dualwrite.broker_emulator.groups.shard import GroupShard
from dualwrite.broker_emulator.security.acl import AclOperation
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


# --- OffsetCommit and TxnOffsetCommit ---------------------------------------------------------------------------------


class OffsetsToCommit(NamedTuple):
    """The offsets of a request: those that can be stored, and the errors of the others.

    Topics that do not exist or may not be read are in neither; `offset_response` adds their errors.
    """

    valid: dict[TopicPartition, CommittedOffset]
    refused: dict[TopicPartition, ErrorCode]

    @property
    def concern_the_group(self) -> bool:
        """Whether the group is involved at all: not if no partition exists."""
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
    """Build the response from the types named `prefix`..., with one error for all partitions or one for each."""
    new = vars(call.new)
    partition_type = new[f"{prefix}ResponsePartition"]
    topics = []
    for requested in call.request.topics:
        error_of = _errors_of_topic(call, requested, errors)
        rows = tuple(
            partition_type(partition_index=index, error_code=error_of(index))
            for index in (partition.partition_index for partition in requested.partitions)
        )
        if not rows and not _is_unknown(call, requested):
            continue  # of a known topic, Kafka answers for the partitions, if any; of an unknown one, for the topic
        topics.append(new[f"{prefix}ResponseTopic"](**topic_reference(requested), partitions=rows))
    return call.new.response(throttle_time=NO_THROTTLE, topics=tuple(topics))


def _is_unknown(call: NodeCall, requested: Any) -> bool:
    """Return whether the topic does not exist, or may not be read."""
    return allowed_topic(call, requested, AclOperation.READ)[0] is None


def _errors_of_topic(
    call: NodeCall, requested: Any, errors: ErrorCode | Mapping[TopicPartition, ErrorCode]
) -> Callable[[int], ErrorCode]:
    if isinstance(errors, ErrorCode):
        return lambda _: errors
    topic, error = allowed_topic(call, requested, AclOperation.READ)
    if topic is None:
        return lambda _: error
    name = topic.name
    return lambda index: errors.get(TopicPartition(name, index), ErrorCode.unknown_topic_or_partition)
