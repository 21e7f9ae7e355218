"""Decisions about the members of a share group: they join, stay, leave, or time out. Pure.

The assignor `simple` shares a partition only if there are more members than partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.consumer.group import JOIN_EPOCH, Assignment, HeartbeatResponse
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition, Topics, metadata_hash
from dualwrite.broker_emulator.groups.share.group import ShareGroup, ShareMember
from dualwrite.broker_emulator.groups.share.partition_states import with_subscribed
from dualwrite.broker_emulator.share.states import check_group_step


class Subscriber(NamedTuple):
    """A member as the assignor sees it."""

    member_id: str
    topic_ids: frozenset[UUID]
    target: Assignment
    """The partitions that it has now."""


def assign_simply(members: Sequence[Subscriber], partitions: Assignment) -> dict[str, Assignment]:
    """Assign every partition to as few members as possible so that each member has one, evenly and with few moves.

    Members with the same subscription share its topics among them, independently of members with other subscriptions.
    """
    targets: dict[str, Assignment] = {}
    by_subscription: dict[frozenset[UUID], list[Subscriber]] = {}
    for member in members:
        by_subscription.setdefault(member.topic_ids, []).append(member)
    for topic_ids, alike in by_subscription.items():
        subscribed = sorted(name for name in partitions if name.topic_id in topic_ids)
        targets |= _share(alike, subscribed)
    return targets


def _share(members: Sequence[Subscriber], partitions: Sequence[TopicIdPartition]) -> dict[str, Assignment]:
    targets: dict[str, set[TopicIdPartition]] = {member.member_id: set() for member in members}
    if partitions:
        owners = -(-len(members) // len(partitions))
        _keep(members, partitions, owners, targets)
        _fill(partitions, owners, targets)
    return {member_id: frozenset(target) for member_id, target in targets.items()}


def _keep(
    members: Sequence[Subscriber],
    partitions: Sequence[TopicIdPartition],
    owners: int,
    targets: Mapping[str, set[TopicIdPartition]],
) -> None:
    """Let members keep their partitions, up to their fair part and up to `owners` members per partition."""
    part, more = divmod(owners * len(partitions), len(members))
    free = dict.fromkeys(partitions, owners)
    for member in members:
        limit = part + (more > 0)
        for name in sorted(member.target):
            if free.get(name) and len(targets[member.member_id]) < limit:
                targets[member.member_id].add(name)
                free[name] -= 1
        more -= len(targets[member.member_id]) > part


def _fill(partitions: Sequence[TopicIdPartition], owners: int, targets: Mapping[str, set[TopicIdPartition]]) -> None:
    """Give the remaining partitions to the members with the fewest."""
    for name in partitions:
        missing = owners - sum(name in target for target in targets.values())
        others = [target for target in targets.values() if name not in target]
        for target in sorted(others, key=len)[: max(missing, 0)]:
            target.add(name)


class ShareGroupSettings(NamedTuple):
    """The settings that decisions about a share group depend on."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    max_size: int


class ShareContext(NamedTuple):
    """The facts that a decision depends on besides the group and the request."""

    now_ms: int
    settings: ShareGroupSettings
    topics: Topics


class ShareHeartbeat(NamedTuple):
    """A heartbeat of a member."""

    member_id: str
    member_epoch: int
    rack_id: str | None
    subscribed_topics: frozenset[str] | None
    client_id: str
    client_host: str

    @property
    def joins(self) -> bool:
        """Whether the member joins."""
        return self.member_epoch == JOIN_EPOCH


class HeartbeatOutcome(NamedTuple):
    """The changed group, and the response."""

    group: ShareGroup
    response: HeartbeatResponse


def heartbeat(group: ShareGroup, request: ShareHeartbeat, context: ShareContext) -> HeartbeatOutcome:
    """Decide a heartbeat with which a member joins or stays. Raises RefusedError."""
    is_full = request.member_epoch == JOIN_EPOCH or request.subscribed_topics is not None
    before = _member(group, request, context)
    member = _updated(before, request, context)
    is_changed = before.member_id not in group.members or before.subscribed_topics != member.subscribed_topics
    known = group.group_epoch
    group = _step(group, group.with_member(member))
    group = _refreshed(group, context, bumps=is_changed)
    if group.group_epoch == known and _waits_for_partitions(group, context.topics):
        group = replace(group, group_epoch=known + 1)
    group = _assigned(group, context)
    after = _reconciled(group, member)
    response = HeartbeatResponse(
        member.member_id,
        after.member_epoch,
        context.settings.heartbeat_interval_ms,
        after.assigned if is_full or after.assigned != before.assigned else None,
    )
    return HeartbeatOutcome(with_subscribed(group.with_member(after), context.topics), response)


def _member(group: ShareGroup, request: ShareHeartbeat, context: ShareContext) -> ShareMember:
    if request.member_epoch != JOIN_EPOCH:
        member = group.known_member(request.member_id)
        _check_epoch(member, request.member_epoch)
        return member
    if request.member_id not in group.members and len(group.members) >= context.settings.max_size:
        raise RefusedError(
            ErrorCode.group_max_size_reached,
            f"The share group has reached its maximum capacity of {context.settings.max_size} members.",
        )
    return group.members.get(request.member_id) or ShareMember(member_id=request.member_id)


def _check_epoch(member: ShareMember, received: int) -> None:
    known = member.member_epoch
    if received in (known, member.previous_epoch) and received <= known:
        return
    raise RefusedError(
        ErrorCode.fenced_member_epoch,
        f"The share group member has a {'greater' if received > known else 'smaller'} member epoch ({received}) than "
        f"the one known by the group coordinator ({known}). The member must abandon all its partitions and rejoin.",
    )


def _updated(member: ShareMember, request: ShareHeartbeat, context: ShareContext) -> ShareMember:
    return replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        subscribed_topics=member.subscribed_topics if request.subscribed_topics is None else request.subscribed_topics,
        client_id=request.client_id,
        client_host=request.client_host,
        session_deadline_ms=context.now_ms + context.settings.session_timeout_ms,
    )


def _refreshed(group: ShareGroup, context: ShareContext, *, bumps: bool) -> ShareGroup:
    """Bump the group epoch if requested, or if subscribed topics changed."""
    topics = context.topics
    if not bumps and group.topics_version == topics.version:
        return group
    current = metadata_hash(group.subscribed_topics, topics)
    epoch = group.group_epoch + (bumps or current != group.metadata_hash)
    return replace(group, group_epoch=epoch, metadata_hash=current, topics_version=topics.version)


def _waits_for_partitions(group: ShareGroup, topics: Topics) -> bool:
    """Return whether there are partitions with state that are in no assignment yet."""
    if group.group_epoch != group.assignment_epoch:
        return False  # a new assignment is due anyway
    assigned: Assignment = frozenset().union(*group.targets.values())
    return not group.initialized_partitions(_topic_ids(group.subscribed_topics, topics)) <= assigned


def _topic_ids(names: frozenset[str], topics: Topics) -> frozenset[UUID]:
    found = (topics.get(name) for name in names)
    return frozenset(topic.topic_id for topic in found if topic is not None)


def _assigned(group: ShareGroup, context: ShareContext) -> ShareGroup:
    """Make a new target assignment if one is due. `share.assignment.interval.ms` may delay it."""
    last_ms = group.assignment_timestamp_ms
    is_early = last_ms != 0 and context.now_ms - last_ms < context.settings.assignment_interval_ms
    if group.group_epoch <= group.assignment_epoch or is_early:
        return group
    topics = context.topics
    subscribers = [
        Subscriber(member.member_id, _topic_ids(member.subscribed_topics, topics), group.target(member.member_id))
        for member in group.members.values()
    ]
    partitions = group.initialized_partitions(_topic_ids(group.subscribed_topics, topics))
    return replace(
        group,
        targets=assign_simply(subscribers, partitions),
        assignment_epoch=group.group_epoch,
        assignment_timestamp_ms=context.now_ms,
    )


def _reconciled(group: ShareGroup, member: ShareMember) -> ShareMember:
    """Move a member to its target at once: partitions are shared, so that no member has to revoke them first."""
    if member.member_epoch == group.assignment_epoch:
        return member
    return replace(
        member,
        member_epoch=group.assignment_epoch,
        previous_epoch=member.member_epoch,
        assigned=group.target(member.member_id),
    )


# --- leaving and time ------------------------------------------------------------------------------------------------


def leave(group: ShareGroup, member_id: str) -> ShareGroup:
    """Decide that a member leaves; the others get new targets with later heartbeats. Raises RefusedError (25)."""
    group.known_member(member_id)
    after = group.without(member_id)
    after = replace(after, group_epoch=group.group_epoch + 1)
    if not after.members:  # an empty group has nothing to assign
        epoch = after.group_epoch
        after = replace(after, metadata_hash=0, assignment_epoch=epoch, assignment_timestamp_ms=0)
    return _step(group, after)


def tick(group: ShareGroup, now_ms: int) -> ShareGroup:
    """Remove the members whose sessions have timed out."""
    for member in list(group.members.values()):
        if member.session_deadline_ms is not None and member.session_deadline_ms <= now_ms:
            group = leave(group, member.member_id)
    return group


def after_load(group: ShareGroup, context: ShareContext) -> ShareGroup:
    """Restart sessions after a new coordinator loaded the group."""
    deadline_ms = context.now_ms + context.settings.session_timeout_ms
    members = {
        member_id: replace(member, session_deadline_ms=deadline_ms) for member_id, member in group.members.items()
    }
    return replace(group, members=members)


def _step(before: ShareGroup, after: ShareGroup) -> ShareGroup:
    check_group_step(before.group_id, before.state, after.state)
    return after
