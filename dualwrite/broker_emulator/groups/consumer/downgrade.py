"""From a consumer group back to a classic one, when its last member of the new protocol goes (KIP-848). Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from dualwrite.broker_emulator.groups.consumer.change import World
from dualwrite.broker_emulator.groups.consumer.group import (
    Assignment,
    ConsumerGroup,
    ConsumerGroupSettings,
    ConsumerMember,
)
from dualwrite.broker_emulator.groups.consumer.topics import Topics
from dualwrite.broker_emulator.groups.consumer_protocol import encode_assignment, read_version
from dualwrite.broker_emulator.groups.group import Group, Member
from dualwrite.broker_emulator.groups.states import GroupState


class Downgrade(NamedTuple):
    """The group is a classic one from now on."""

    group: Group
    rebalances: bool
    """Whether its members have to join again, because somebody left or subscribes to something else."""


Outcome = ConsumerGroup | Downgrade
"""What becomes of a consumer group."""


def is_possible(group: ConsumerGroup, leaving: Collection[str], settings: ConsumerGroupSettings) -> bool:
    """Whether the group becomes a classic one when these members have left."""
    staying = [member for member_id, member in group.members.items() if member_id not in leaving]
    if not staying or not all(member.is_classic for member in staying):
        return False
    return settings.allows_downgrade and len(staying) <= settings.classic_max_size


def to_classic(group: ConsumerGroup, world: World, *, without: Collection[str] = ()) -> Group:
    """The classic group of the members that stay, each with the assignment that its target is."""
    members = [
        _classic_member(member, group.target(member_id), world)
        for member_id, member in group.members.items()
        if member_id not in without
    ]
    classic = Group(
        group_id=group.group_id,
        state=GroupState.STABLE,
        generation=group.group_epoch,
        protocol_type=group.protocol_type,
        leader=members[0].member_id,
        state_timestamp_ms=world.now_ms,
        members={member.member_id: member for member in members},
    )
    return classic.with_protocol(classic.selected_protocol())


def _classic_member(member: ConsumerMember, target: Assignment, world: World) -> Member:
    assert member.classic is not None, "only members of the classic protocol stay"
    protocols = member.classic.protocols
    return Member(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=protocols,
        assignment=assignment_bytes(target, world.topics, read_version(protocols[0].metadata)),
    ).alive_at(world.now_ms)


def assignment_bytes(assignment: Assignment, topics: Topics, version: int) -> bytes:
    """An assignment as consumers of the classic protocol read it; topics that are gone are left out."""
    by_name: dict[str, list[int]] = {}
    for topic_id, partition in sorted(assignment):
        topic = topics.by_id(topic_id)
        if topic is not None:
            by_name.setdefault(topic.name, []).append(partition)
    return encode_assignment(by_name, version)
