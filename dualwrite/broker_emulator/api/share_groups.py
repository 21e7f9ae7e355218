"""Share groups (KIP-932): their members, and the checks that requests about their records share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import (
    HIDDEN_TOPICS,
    accepted_heartbeat,
    described_assignment,
    described_groups,
    group_shard,
    may_describe_all,
    refuse_group_descriptions,
    refused_heartbeat,
    require_descriptions,
    undescribed_group,
)
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.topics import allowed_topic, led_partition
from dualwrite.broker_emulator.cluster.features import SHARE_VERSION, finalized_level
from dualwrite.broker_emulator.error_codes import NO_ERROR, RefusedError
from dualwrite.broker_emulator.groups.consumer.group import JOIN_EPOCH, LEAVE_EPOCH
from dualwrite.broker_emulator.groups.share.group import ASSIGNOR, ShareMember
from dualwrite.broker_emulator.groups.share.membership import ShareHeartbeat
from dualwrite.broker_emulator.security.acl import NOT_ASKED_FOR, AclOperation, ResourceType
from dualwrite.broker_emulator.share.leader import SessionPartition
from dualwrite.broker_emulator.share.led_partition import LeaderError, settings_of
from dualwrite.broker_emulator.share.share_partition import AcknowledgeError, Acknowledgement
from dualwrite.broker_emulator.share.state import StateKey
from dualwrite.broker_emulator.share.states import AcknowledgeType
from dualwrite.broker_emulator.slices import Pace, at_once, mapped
from dualwrite.broker_emulator.topics.topics import Partition, Topic

MAX_MEMBER_ID_LENGTH = 36
UNKNOWN_PARTITION = "This server does not host this topic-partition."
FORBIDDEN_TOPIC = "Topic authorization failed."


def are_share_groups_on(call: NodeCall) -> bool:
    """Return whether the cluster has share groups: the level of the feature `share.version`."""
    return finalized_level(SHARE_VERSION, call.cluster.config) > 0


def require_share_group(call: NodeCall, operation: AclOperation, group_id: str | None) -> None:
    """Raise RefusedError if the cluster has no share groups (35), or the client may not do this with the group (30)."""
    if not are_share_groups_on(call):
        raise RefusedError(ErrorCode.unsupported_version)
    call.require(operation, ResourceType.GROUP, group_id or "")


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
    topic, error = allowed_topic(call, name, AclOperation.READ)
    return (None, error) if topic is None else led_partition(call, topic, name.partition)


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
        error_code=error,
        acquisition_lock_timeout=timedelta(0),
        responses=(),
        node_endpoints=(),
    )


def offsets_changed(call: NodeCall, error: ErrorCode, message: str | None, rows: list[Any]) -> Any:
    """Build the response to a request that alters or deletes offsets of a share group."""
    return call.new.response(error_code=error, error_message=message, responses=tuple(rows))


def refused_offsets(call: NodeCall, error: ErrorCode) -> Any:
    """Build the response to such a request that was refused."""
    return offsets_changed(call, error, None, [])


async def handle_share_group_heartbeat(call: NodeCall) -> Any:
    """Serve ShareGroupHeartbeat (key 76), versions 1-1.

    The only request of a member of a share group (KIP-932): it joins (epoch 0), keeps its session alive, subscribes,
    and leaves (-1). The member creates its own id.

    * An invalid request, and the empty group id, is 42.
    * Access: READ on the group (30), DESCRIBE on the topics in the request (29).
    * Group of another node 16; while loading 14; unknown group, or one of another type 69; unknown member 25; wrong
      epoch 110; `group.share.max.size` reached 81.
    * At level 0 of the feature `share.version` everything is 35.
    """
    request = call.request
    require_share_group(call, AclOperation.READ, request.group_id)
    await require_descriptions(call, request.subscribed_topic_names or ())
    try:
        _check(request)
        shard = group_shard(call, request.group_id)
        answer = await shard.share.heartbeat(request.group_id, _heartbeat(call))
    except RefusedError as refused:
        return refuse_share_group_heartbeat(call, refused.error, refused.message or None)
    return accepted_heartbeat(call, answer)


def _check(request: Any) -> None:
    """Check the request by itself, in Kafka's order. Raises RefusedError."""
    if not is_member_id(request.member_id):
        raise RefusedError(ErrorCode.invalid_request, "")
    if not request.group_id.strip():
        raise _invalid("GroupId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        raise _invalid("RackId can't be empty.")
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        raise _invalid("SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.invalid_request, message)


def _heartbeat(call: NodeCall) -> ShareHeartbeat:
    request = call.request
    names = request.subscribed_topic_names
    return ShareHeartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        subscribed_topics=None if names is None else frozenset(names),
        client_id=call.client_id or "",
        client_host=f"/{call.client_host}",
    )


refuse_share_group_heartbeat = refused_heartbeat


async def handle_share_group_describe(call: NodeCall) -> Any:
    """Serve ShareGroupDescribe (key 77), versions 1-1.

    Share groups with their epochs and the assignments of their members (KIP-932).

    * The empty group id 24; an unknown group, or one of another type 69, with a message; group of another node 16;
      while loading 14.
    * Access: DESCRIBE on the group (30) and on every topic in an assignment of its members (29).
    * At level 0 of the feature `share.version` everything is 35.
    """
    return described_groups(call, await mapped(lambda group_id: _describe(call, group_id), call.request.group_ids))


def _describe(call: NodeCall, group_id: str) -> Any:
    try:
        require_share_group(call, AclOperation.DESCRIBE, group_id)
        group = group_shard(call, group_id).share.known(group_id)
    except RefusedError as refused:
        return undescribed_group(call, group_id, refused.error, refused.message)
    if not may_describe_all(call, {name.topic_id for member in group.members.values() for name in member.assigned}):
        return undescribed_group(call, group_id, ErrorCode.topic_authorization_failed, HIDDEN_TOPICS)
    is_asked = call.request.include_authorized_operations
    return call.new.DescribedGroup(
        error_code=ErrorCode.none,
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=ASSIGNOR,
        members=tuple(_member(call, member) for member in group.members.values()),
        authorized_operations=call.authorized_operations(ResourceType.GROUP, group_id) if is_asked else NOT_ASKED_FOR,
    )


def _member(call: NodeCall, member: ShareMember) -> Any:
    return call.new.Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.subscribed_topics)),
        assignment=at_once(described_assignment(call, member.assigned)),
    )


refuse_share_group_describe = refuse_group_descriptions
