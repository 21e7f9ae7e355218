"""Online migration (KIP-848): from a classic group to a consumer group and back. Pure.

A classic group is upgraded when the first member of the new protocol joins, and a consumer group is downgraded when the
last such member leaves.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.consumer.change import DecisionContext
from dualwrite.broker_emulator.groups.consumer.group import (
    Assignment,
    ClassicMetadata,
    ConsumerGroup,
    ConsumerGroupSettings,
    ConsumerMember,
)
from dualwrite.broker_emulator.groups.consumer.states import MemberState
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition, Topics, metadata_hash
from dualwrite.broker_emulator.groups.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    MalformedError,
    NamedPartitions,
    encode_assignment,
    read_assignment,
    read_subscription,
    read_version,
)
from dualwrite.broker_emulator.groups.group import Group, GroupState, Member

# --- upgrade ---------------------------------------------------------------------------------------------------------


def to_consumer(group: Group, context: DecisionContext) -> ConsumerGroup:
    """Convert a classic group, with its members as of their last generation. Raises RefusedError (69)."""
    why = _why_not(group, context)
    if why is not None:
        raise _refused(group, why)
    try:
        members = [_consumer_member(group, member, context.topics) for member in group.members.values()]
    except MalformedError as error:
        raise _refused(group, "the embedded consumer protocol is malformed") from error
    topics = frozenset().union(*(member.subscribed_topics for member in members))
    return ConsumerGroup(
        group_id=group.group_id,
        group_epoch=group.generation,
        metadata_hash=metadata_hash(topics, context.topics),
        assignment_epoch=group.generation,
        members={member.member_id: member for member in members},
        targets={member.member_id: frozenset(member.assigned) for member in members},
        topics_version=context.topics.version,
    )


def _why_not(group: Group, context: DecisionContext) -> str | None:
    if not context.settings.allows_upgrade:
        return "online upgrade is disabled"
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return "the group does not use the consumer embedded protocol"
    if len(group.members) > context.settings.max_size:
        return "the group size exceeds the consumer group maximum size"
    return None


def _refused(group: Group, why: str) -> RefusedError:
    message = f"Cannot upgrade classic group {group.group_id} to consumer group because {why}."
    return RefusedError(ErrorCode.group_id_not_found, message)


def _consumer_member(group: Group, member: Member, topics: Topics) -> ConsumerMember:
    """Convert a member with its last assignment. During a rebalance, it will have to rejoin."""
    name = group.protocol_name or member.protocols[0].name
    subscription = read_subscription(member.metadata(name))
    assigned: Assignment = frozenset()
    if member.assignment:
        assignment = read_assignment(member.assignment)
        if assignment.user_data:
            raise _refused(
                group,
                "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
                "assignor before re-attempting the upgrade",
            )
        assigned = by_topic_id(assignment.partitions, topics)
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        subscribed_topics=subscription.topics,
        classic=ClassicMetadata(member.session_timeout_ms, member.protocols),
        member_epoch=group.generation,
        previous_epoch=group.generation,
        state=MemberState.STABLE,
        assigned=dict.fromkeys(sorted(assigned), group.generation),
        session_deadline_ms=member.session_deadline_ms,
    )


def by_topic_id(partitions: NamedPartitions, topics: Topics) -> Assignment:
    """Convert partitions with topic names to topic ids, without those of deleted topics."""
    found = ((topics.get(name), index) for name, index in partitions)
    return frozenset(TopicIdPartition(topic.topic_id, index) for topic, index in found if topic is not None)


# --- downgrade -------------------------------------------------------------------------------------------------------


class Downgrade(NamedTuple):
    """The group becomes a classic group."""

    group: Group
    rebalances: bool
    """Whether its members have to rejoin, because a member left or changed its subscription."""


Outcome = ConsumerGroup | Downgrade
"""A changed consumer group, or the classic group that it becomes."""


def can_downgrade(group: ConsumerGroup, leaving: Collection[str], settings: ConsumerGroupSettings) -> bool:
    """Return whether the group becomes a classic group when these members leave."""
    staying = [member for member_id, member in group.members.items() if member_id not in leaving]
    if not staying or not all(member.is_classic for member in staying):
        return False
    return settings.allows_downgrade and len(staying) <= settings.classic_max_size


def to_classic(group: ConsumerGroup, context: DecisionContext, *, without: Collection[str] = ()) -> Group:
    """Convert to a classic group of the remaining members, each with its target as its assignment."""
    members = [
        _classic_member(member, group.target(member_id), context)
        for member_id, member in group.members.items()
        if member_id not in without
    ]
    classic = Group(
        group_id=group.group_id,
        state=GroupState.STABLE,
        generation=group.group_epoch,
        protocol_type=group.protocol_type,
        leader=members[0].member_id,
        state_timestamp_ms=context.now_ms,
        members={member.member_id: member for member in members},
    )
    return classic.with_protocol(classic.selected_protocol())


def _classic_member(member: ConsumerMember, target: Assignment, context: DecisionContext) -> Member:
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
        assignment=assignment_bytes(target, context.topics, read_version(protocols[0].metadata)),
    ).alive_at(context.now_ms)


def assignment_bytes(assignment: Assignment, topics: Topics, version: int) -> bytes:
    """Encode an assignment for consumers of the classic protocol, without deleted topics."""
    by_name: dict[str, list[int]] = {}
    for topic_id, partition in sorted(assignment):
        topic = topics.by_id(topic_id)
        if topic is not None:
            by_name.setdefault(topic.name, []).append(partition)
    return encode_assignment(by_name, version)
