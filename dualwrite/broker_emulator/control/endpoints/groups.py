"""The state of the group coordinators: groups, their members, and their committed offsets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Literal

from dualwrite.broker_emulator.control.endpoint import ControlledEmulator, Endpoint
from dualwrite.broker_emulator.control.errors import not_found
from dualwrite.broker_emulator.control.shapes import Limit, first
from dualwrite.broker_emulator.groups.consumer.group import AnyGroup, ConsumerGroup, ConsumerMember
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition
from dualwrite.broker_emulator.groups.consumer_protocol import CONSUMER_PROTOCOL_TYPE, MalformedError, read_assignment
from dualwrite.broker_emulator.groups.group import Group, Member
from dualwrite.broker_emulator.groups.shard import GroupShard
from dualwrite.broker_emulator.text import did_you_mean
from dualwrite.broker_emulator.topics.topics import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedPartition:
    """A partition that is assigned to a member."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member of a group."""

    member_id: str
    group_instance_id: Annotated[str | None, "Only of a static member (KIP-345)."]
    client_id: str
    client_host: str
    session_timeout_ms: Annotated[int | None, "Null where the group's timeout applies (KIP-848)."]
    rebalance_timeout_ms: int
    epoch: Annotated[int | None, "The member epoch (KIP-848)."]
    state: Annotated[str | None, "The member state (KIP-848)."]
    assignment: Annotated[tuple[AssignedPartition, ...] | None, "Null if it is not a consumer's assignment."]
    revoking: Annotated[tuple[AssignedPartition, ...], "The partitions that it has to give up (KIP-848)."]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One group."""

    group: str
    type: Annotated[Literal["classic", "consumer"], "The protocol; consumer means KIP-848."]
    state: Annotated[str, "By Kafka's name, such as Stable."]
    protocol_type: str | None
    protocol: Annotated[str | None, "The assignor."]
    epoch: Annotated[int, "The generation of a classic group, or the group epoch."]
    assignment_epoch: Annotated[int | None, "The group epoch of the target assignment (KIP-848)."]
    leader: Annotated[str | None, "The member that assigns partitions, in a classic group."]
    members: tuple[MemberView, ...]
    coordinator: Annotated[int | None, "The node."]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """Groups, by id."""

    groups: tuple[GroupView, ...]
    total: Annotated[int, "How many there are in all, regardless of the limit."]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQuery:
    """Selects groups."""

    group: Annotated[str | None, "Only this group; 404 if it is unknown."] = None
    limit: Limit = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPath:
    """A group by its id."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetView:
    """A group's committed offset of a partition."""

    topic: str
    partition: int
    offset: Annotated[int | None, "Null if there is only a pending one."]
    leader_epoch: int | None
    metadata: str | None
    is_pending: Annotated[bool, "Whether an open transaction holds another offset (KIP-447)."]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetList:
    """A group's offsets, by partition."""

    offsets: tuple[OffsetView, ...]


def views(controlled: ControlledEmulator, query: GroupQuery) -> GroupList:
    """Return the view of the selected groups."""
    found = (group for group in controlled.operations.groups() if query.group in (None, group.group_id))
    shown, total = first(found, query.limit)
    return GroupList(groups=tuple(_view(controlled, group) for group in shown), total=total)


def _view(controlled: ControlledEmulator, group: AnyGroup) -> GroupView:
    node = controlled.cluster.group_coordinator(group.group_id)
    coordinator = None if node is None else node.node_id
    if isinstance(group, ConsumerGroup):
        return _consumer_view(controlled, group, coordinator)
    return _classic_view(group, coordinator)


def _classic_view(group: Group, coordinator: int | None) -> GroupView:
    return GroupView(
        group=group.group_id,
        type="classic",
        state=group.state.value,
        protocol_type=group.protocol_type,
        protocol=group.protocol_name,
        epoch=group.generation,
        assignment_epoch=None,
        leader=group.leader,
        members=tuple(_classic_member(group, member) for member in group.members.values()),
        coordinator=coordinator,
    )


def _classic_member(group: Group, member: Member) -> MemberView:
    return MemberView(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        epoch=None,
        state=None,
        assignment=_assigned(member.assignment) if group.protocol_type == CONSUMER_PROTOCOL_TYPE else None,
        revoking=(),
    )


def _assigned(assignment: bytes) -> tuple[AssignedPartition, ...] | None:
    if not assignment:  # not assigned yet
        return ()
    try:
        partitions = read_assignment(assignment).partitions
    except MalformedError:
        return None
    return tuple(AssignedPartition(topic=topic, partition=partition) for topic, partition in sorted(partitions))


def _consumer_view(controlled: ControlledEmulator, group: ConsumerGroup, coordinator: int | None) -> GroupView:
    assignors = sorted({member.server_assignor for member in group.members.values() if member.server_assignor})
    return GroupView(
        group=group.group_id,
        type="consumer",
        state=group.state.value,
        protocol_type=group.protocol_type,
        protocol=", ".join(assignors) or None,
        epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        leader=None,
        members=tuple(_consumer_member(controlled, member) for member in group.members.values()),
        coordinator=coordinator,
    )


def _consumer_member(controlled: ControlledEmulator, member: ConsumerMember) -> MemberView:
    return MemberView(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=None if member.classic is None else member.classic.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        epoch=member.member_epoch,
        state=member.state.name.lower(),
        assignment=_named(controlled, member.assigned),
        revoking=_named(controlled, member.revoking),
    )


def _named(controlled: ControlledEmulator, partitions: Iterable[TopicIdPartition]) -> tuple[AssignedPartition, ...]:
    topics = ((controlled.cluster.topic_by_id(topic_id), partition) for topic_id, partition in partitions)
    named = sorted((topic.name, partition) for topic, partition in topics if topic is not None)
    return tuple(AssignedPartition(topic=topic, partition=partition) for topic, partition in named)


async def list_all(controlled: ControlledEmulator, query: GroupQuery) -> GroupList:
    found = views(controlled, query)
    if query.group is not None and not found.total:
        raise _unknown(controlled, query.group)
    return found


def _unknown(controlled: ControlledEmulator, group: str) -> Exception:
    known = [each.group_id for each in controlled.operations.groups()][:100]
    return not_found(f"no living coordinator knows the group {group!r}{did_you_mean(group, known)}", known)


async def offsets(controlled: ControlledEmulator, path: GroupPath) -> OffsetList:
    node = controlled.cluster.group_coordinator(path.group)
    shard = None if node is None else node.groups.shard(path.group)
    if not isinstance(shard, GroupShard) or path.group not in shard.groups:
        raise _unknown(controlled, path.group)
    names = sorted(set(shard.offsets.table.partitions(path.group)))
    return OffsetList(offsets=tuple(_offset(shard, path.group, name) for name in names))


def _offset(shard: GroupShard, group: str, name: TopicPartition) -> OffsetView:
    committed = shard.offsets.table.committed(group, name)
    return OffsetView(
        topic=name.topic,
        partition=name.partition,
        offset=None if committed is None else committed.offset,
        leader_epoch=None if committed is None or committed.leader_epoch < 0 else committed.leader_epoch,
        metadata=None if committed is None else committed.metadata,
        is_pending=shard.offsets.table.is_unstable(group, name),
    )


ENDPOINTS = (
    Endpoint("GET", "/v1/groups", list_all, "Groups with their members", (HTTPStatus.NOT_FOUND,)),
    Endpoint("GET", "/v1/groups/{group}/offsets", offsets, "The committed offsets of a group", (HTTPStatus.NOT_FOUND,)),
)
