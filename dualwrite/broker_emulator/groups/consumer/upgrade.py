"""From a classic group to a consumer group, when the first member of the new protocol joins (KIP-848). Pure."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.consumer.change import World
from dualwrite.broker_emulator.groups.consumer.group import (
    Assignment,
    ClassicMetadata,
    ConsumerGroup,
    ConsumerMember,
    RefusedError,
)
from dualwrite.broker_emulator.groups.consumer.states import MemberState
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition, Topics, metadata_hash
from dualwrite.broker_emulator.groups.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    MalformedError,
    NamedPartitions,
    read_assignment,
    read_subscription,
)
from dualwrite.broker_emulator.groups.group import Group, Member


def to_consumer(group: Group, world: World) -> ConsumerGroup:
    """The consumer group of the classic members, as their last generation left them. Raises RefusedError (69)."""
    why = _why_not(group, world)
    if why is not None:
        raise _refused(group, why)
    try:
        members = [_consumer_member(group, member, world.topics) for member in group.members.values()]
    except MalformedError as error:
        raise _refused(group, "the embedded consumer protocol is malformed") from error
    topics = frozenset().union(*(member.subscribed_topics for member in members))
    return ConsumerGroup(
        group_id=group.group_id,
        group_epoch=group.generation,
        metadata_hash=metadata_hash(topics, world.topics),
        assignment_epoch=group.generation,
        members={member.member_id: member for member in members},
        targets={member.member_id: frozenset(member.assigned) for member in members},
        topics_version=world.topics.version,
    )


def _why_not(group: Group, world: World) -> str | None:
    if not world.settings.allows_upgrade:
        return "online upgrade is disabled"
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return "the group does not use the consumer embedded protocol"
    if len(group.members) > world.settings.max_size:
        return "the group size exceeds the consumer group maximum size"
    return None


def _refused(group: Group, why: str) -> RefusedError:
    message = f"Cannot upgrade classic group {group.group_id} to consumer group because {why}."
    return RefusedError(ErrorCode.group_id_not_found, message)


def _consumer_member(group: Group, member: Member, topics: Topics) -> ConsumerMember:
    """A member as its last assignment left it; where a rebalance is under way, it is made to join again."""
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
    """Partitions that clients name by their topic's name; those of topics that are gone are left out."""
    found = ((topics.get(name), index) for name, index in partitions)
    return frozenset(TopicIdPartition(topic.topic_id, index) for topic, index in found if topic is not None)
