"""Reconciliation: move a member from its current to its target assignment, revoking partitions first. Pure.

A member reaches the target's epoch when it has revoked all partitions that are not in its target. Until then no other
member gets those partitions, so that a partition never has two owners (KIP-848).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.consumer.group import (
    NOTHING,
    Assignment,
    ConsumerGroup,
    ConsumerMember,
    RefusedError,
)
from dualwrite.broker_emulator.groups.consumer.states import MemberState, check_member_step
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition, Topics, by_id_and_index

_Epochs = Mapping[TopicIdPartition, int]


def reconcile(
    group: ConsumerGroup,
    member: ConsumerMember,
    owned: Assignment | None,
    topics: Topics,
    *,
    resubscribes: bool = False,
) -> ConsumerMember:
    """Return the member's next state; the same object if it does not change.

    `owned` are the partitions that the member reports (None: it does not report). With `resubscribes`, it revokes
    topics that it no longer subscribes to before there is a new target. Raises RefusedError (110) for a member in an
    unknown state, unless it owns nothing.
    """
    if not resubscribes and member.is_at(group.assignment_epoch):
        return member
    after = _next(group, member, owned, topics, resubscribes)
    check_member_step(member.member_id, member.state, after.state)
    return after


def _next(
    group: ConsumerGroup, member: ConsumerMember, owned: Assignment | None, topics: Topics, resubscribes: bool
) -> ConsumerMember:
    subscribed = _subscribed_ids(group, member, topics)
    if member.state is MemberState.UNKNOWN and owned != NOTHING:
        raise RefusedError(
            ErrorCode.fenced_member_epoch,
            "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin.",
        )
    at_target = member.state is MemberState.STABLE and member.member_epoch == group.assignment_epoch
    still_revokes = member.state is MemberState.UNREVOKED_PARTITIONS and _still_has(owned, member.revoking)
    if at_target or still_revokes:
        return _revoke_unsubscribed(member, owned, subscribed) if resubscribes else member
    return _towards_target(group, member, owned, subscribed)


def _subscribed_ids(group: ConsumerGroup, member: ConsumerMember, topics: Topics) -> frozenset[object]:
    found = (topics.get(name) for name in group.topics_of(member))
    return frozenset(topic.topic_id for topic in found if topic is not None)


def _still_has(owned: Assignment | None, revoked: _Epochs) -> bool:
    """Return whether a member may still own a partition that it has to revoke; True if it does not report."""
    return owned is None or any(name in revoked for name in owned)


def _revoke_unsubscribed(
    member: ConsumerMember, owned: Assignment | None, subscribed: frozenset[object]
) -> ConsumerMember:
    dropped = {name: epoch for name, epoch in member.assigned.items() if name.topic_id not in subscribed}
    if not dropped:
        return member
    kept = {name: epoch for name, epoch in member.assigned.items() if name not in dropped}
    revoking = {**member.revoking, **dropped}
    if _still_has(owned, revoking):
        return _at(member, member.member_epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    return _at(member, member.member_epoch, member.state, kept, member.revoking)


def _towards_target(
    group: ConsumerGroup, member: ConsumerMember, owned: Assignment | None, subscribed: frozenset[object]
) -> ConsumerMember:
    target = {name for name in group.target(member.member_id) if name.topic_id in subscribed}
    kept = {name: epoch for name, epoch in member.assigned.items() if name in target}
    revoked = {name: epoch for name, epoch in member.assigned.items() if name not in target}
    if revoked and _still_has(owned, revoked):
        return _at(member, member.member_epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoked)
    wanted = target - kept.keys()
    owners = group.owners() if wanted else {}
    # partitions that the member itself was revoking are free for it: no other member can have them
    free = {name for name in wanted if name not in owners or name in member.revoking}
    epoch = group.assignment_epoch
    assigned = {**kept, **dict.fromkeys(sorted(free, key=by_id_and_index), epoch)}
    return _at(member, epoch, MemberState.STABLE if free == wanted else MemberState.UNRELEASED_PARTITIONS, assigned, {})


def _at(member: ConsumerMember, epoch: int, state: MemberState, assigned: _Epochs, revoking: _Epochs) -> ConsumerMember:
    after = replace(
        member,
        member_epoch=epoch,
        previous_epoch=member.member_epoch,
        state=state,
        assigned=assigned,
        revoking=revoking,
    )
    return member if after == member else after
