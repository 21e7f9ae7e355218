"""Share groups in requests (KIP-932): their level, their acknowledgements, and the partitions that they name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.cluster.features import SHARE_VERSION, finalized_level
from dualwrite.broker_emulator.cluster.topics import Partition, Topic
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.share.led_partition import LeaderError, settings_of
from dualwrite.broker_emulator.share.sessions import SessionPartition
from dualwrite.broker_emulator.share.share_partition import AcknowledgeError, Acknowledgement
from dualwrite.broker_emulator.share.state import StateKey
from dualwrite.broker_emulator.share.states import AcknowledgeType
from dualwrite.broker_emulator.slices import Pace, mapped

MAX_MEMBER_ID_LENGTH = 36
UNKNOWN_PARTITION = "This server does not host this topic-partition."
FORBIDDEN_TOPIC = "Topic authorization failed."


def are_share_groups_on(call: NodeCall) -> bool:
    """Return whether the cluster has share groups: the level of the feature `share.version`."""
    return finalized_level(SHARE_VERSION, call.cluster.config) > 0


def is_member_id(member_id: str | None) -> bool:
    """Return whether members may have this id, which they create themselves."""
    return member_id is not None and 0 < len(member_id) <= MAX_MEMBER_ID_LENGTH


async def requested_acknowledgements(topics: Iterable[Any]) -> dict[SessionPartition, list[Acknowledgement]]:
    """Return the acknowledgements of a request by partition, without partitions that have none."""
    found: dict[SessionPartition, list[Acknowledgement]] = {}
    pace = Pace()
    for topic in topics:
        await pace.keep()
        for partition in topic.partitions:
            await pace.keep()
            rows = await mapped(_acknowledgement, partition.acknowledgement_batches)
            if rows:
                found.setdefault(SessionPartition(topic.topic_id, partition.partition_index), []).extend(rows)
    return found


def _acknowledgement(batch: Any) -> Acknowledgement:
    return Acknowledgement(batch.first_offset, batch.last_offset, tuple(batch.acknowledge_types))


def led_by_this_node(call: NodeCall, name: SessionPartition) -> tuple[Partition | None, ErrorCode]:
    """Return a partition of a session, or None and the error: 100, 29, 3, or 6 if another node leads it."""
    topic = call.cluster.topic_by_id(name.topic_id)
    if topic is None:
        return None, ErrorCode.unknown_topic_id
    if not call.is_allowed(AclOperation.READ, ResourceType.TOPIC, topic.name):
        return None, ErrorCode.topic_authorization_failed
    if not 0 <= name.partition < len(topic.partitions):
        return None, ErrorCode.unknown_topic_or_partition
    partition = topic.partitions[name.partition]
    if partition.leader_id != call.node.node_id:
        return None, ErrorCode.not_leader_or_follower
    return partition, NO_ERROR


async def acknowledge(
    call: NodeCall, name: SessionPartition, acknowledgements: Sequence[Acknowledgement]
) -> tuple[ErrorCode, str | None]:
    """Carry out acknowledgements of one partition; return the error, and a message about it."""
    request = call.request
    if not await _are_valid(acknowledgements, allows_renewal=_allows_renewal(call)):
        return ErrorCode.invalid_request, None
    partition, error = led_by_this_node(call, name)
    if partition is None:
        return error, None
    key = StateKey(request.group_id, *name)
    leader = call.node.share_leader
    try:
        await leader.share_partition(key, partition).acknowledge(request.member_id, acknowledgements)
    except AcknowledgeError as refused:
        return refused.error, refused.message
    except LeaderError as failed:
        leader.forget(key)
        return failed.error, None
    return NO_ERROR, None


def _allows_renewal(call: NodeCall) -> bool:
    is_asked = getattr(call.request, "is_renew_ack", False)
    return is_asked and settings_of(call.cluster, call.request.group_id).allows_renewal


async def _are_valid(acknowledgements: Sequence[Acknowledgement], *, allows_renewal: bool) -> bool:
    """Check acknowledgements by themselves: their order, the number of types, and the types."""
    newest = AcknowledgeType.RENEW if allows_renewal else AcknowledgeType.REJECT
    end = 0
    pace = Pace()
    for first, last, types in acknowledgements:
        await pace.keep()
        if not end <= first <= last or len(types) not in (1, last - first + 1):
            return False
        if min(types) < AcknowledgeType.GAP or max(types) > newest:
            return False
        end = last
    return True


def lock_duration_ms(call: NodeCall) -> int:
    """Return how long the group's members keep the records that they acquire."""
    return settings_of(call.cluster, call.request.group_id).lock_duration_ms


def leader_of(call: NodeCall, name: SessionPartition) -> tuple[int, int]:
    """Return the leader of a partition and its epoch."""
    topic: Topic | None = call.cluster.topic_by_id(name.topic_id)
    assert topic is not None
    partition = topic.partitions[name.partition]
    return partition.leader_id, partition.log.leader_epoch


def node_endpoints(call: NodeCall, node_ids: Iterable[int]) -> tuple[Any, ...]:
    """Return the addresses of leaders."""
    nodes = (call.cluster.nodes[node_id] for node_id in sorted(set(node_ids)) if node_id in call.cluster.nodes)
    return tuple(
        call.new.NodeEndpoint(node_id=node.node_id, rack=None, **call.endpoint(node)._asdict()) for node in nodes
    )


def refused_records(call: NodeCall, error: ErrorCode) -> Any:
    """Build the response to a refused ShareFetch or ShareAcknowledge."""
    return call.new.response(
        throttle_time=NO_THROTTLE,
        error_code=error,
        error_message=None,
        acquisition_lock_timeout=timedelta(0),
        responses=(),
        node_endpoints=(),
    )


def offsets_changed(call: NodeCall, error: ErrorCode, message: str | None, rows: list[Any]) -> Any:
    """Build the response to a request that alters or deletes offsets of a share group."""
    return call.new.response(throttle_time=NO_THROTTLE, error_code=error, error_message=message, responses=tuple(rows))


def refused_offsets(call: NodeCall, error: ErrorCode) -> Any:
    """Build the response to such a request that was refused."""
    return offsets_changed(call, error, None, [])
