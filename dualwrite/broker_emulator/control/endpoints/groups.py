"""What the group coordinators know: groups and their members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dualwrite.broker_emulator.control.controlled import Controlled
from dualwrite.broker_emulator.control.endpoint import Endpoint
from dualwrite.broker_emulator.control.limits import Limit, first
from dualwrite.broker_emulator.groups.consumer_protocol import CONSUMER_PROTOCOL_TYPE, MalformedError, read_assignment
from dualwrite.broker_emulator.groups.group import Group, Member


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedPartition:
    """A partition that a member reads."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member of a group."""

    member_id: str
    group_instance_id: Annotated[str | None, "Of a static member (KIP-345)."]
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignment: Annotated[tuple[AssignedPartition, ...] | None, "Null where it is not that of a consumer."]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One group."""

    group: str
    state: Annotated[str, "By Kafka's name, such as Stable."]
    protocol_type: str | None
    protocol: str | None
    generation: int
    leader: Annotated[str | None, "The member that assigns."]
    members: tuple[MemberView, ...]
    coordinator: Annotated[int, "The node."]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """Groups, by id."""

    groups: tuple[GroupView, ...]
    total: Annotated[int, "How many there are, the limit aside."]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQuery:
    """Which groups."""

    group: Annotated[str | None, "This one only."] = None
    limit: Limit = 1000


def views(controlled: Controlled, query: GroupQuery) -> GroupList:
    """Groups as they are shown."""
    found = (group for group in controlled.operations.groups() if query.group in (None, group.group_id))
    shown, total = first(found, query.limit)
    return GroupList(groups=tuple(_view(controlled, group) for group in shown), total=total)


def _view(controlled: Controlled, group: Group) -> GroupView:
    coordinator = controlled.cluster.group_coordinator(group.group_id)
    return GroupView(
        group=group.group_id,
        state=group.state.value,
        protocol_type=group.protocol_type,
        protocol=group.protocol_name,
        generation=group.generation,
        leader=group.leader,
        members=tuple(_member_view(group, member) for member in group.members.values()),
        coordinator=-1 if coordinator is None else coordinator.node_id,
    )


def _member_view(group: Group, member: Member) -> MemberView:
    return MemberView(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        assignment=_assigned(member.assignment) if group.protocol_type == CONSUMER_PROTOCOL_TYPE else None,
    )


def _assigned(assignment: bytes) -> tuple[AssignedPartition, ...] | None:
    if not assignment:  # the member waits for it
        return ()
    try:
        partitions = read_assignment(assignment).partitions
    except MalformedError:
        return None
    return tuple(AssignedPartition(topic=topic, partition=partition) for topic, partition in sorted(partitions))


async def list_all(controlled: Controlled, query: GroupQuery) -> GroupList:
    return views(controlled, query)


ENDPOINTS = (Endpoint("GET", "/v1/groups", list_all, "Consumer groups with their members"),)
