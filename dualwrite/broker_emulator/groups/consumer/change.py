"""The steps of decisions about a consumer group, each checked by the tables of states. Pure.

A change starts from a group, goes through steps, and ends with the changed group. To store it, the records in which the
two groups differ are written (`records.records_between`).

Reconciliation moves a member from its current to its target assignment, revoking partitions first:
A member reaches the target's epoch when it has revoked all partitions that are not in its target. Until then no other
member gets those partitions, so that a partition never has two owners (KIP-848).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.consumer.assignors import ASSIGNORS, Subscriber
from dualwrite.broker_emulator.groups.consumer.group import (
    NOTHING,
    Assignment,
    ConsumerGroup,
    ConsumerGroupSettings,
    ConsumerMember,
)
from dualwrite.broker_emulator.groups.consumer.states import MemberState, check_group_step, check_member_step
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition, Topics, by_id_and_index, metadata_hash

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


class DecisionContext(NamedTuple):
    """The facts that a decision depends on besides the group and the request."""

    now_ms: int
    settings: ConsumerGroupSettings
    topics: Topics


@dataclass(slots=True)
class GroupChange:
    """A group while a decision changes it."""

    group: ConsumerGroup
    context: DecisionContext

    def step_to(self, group: ConsumerGroup) -> None:
        """Take one step. Raises InvalidStepError if the table of states does not allow it."""
        check_group_step(group.group_id, self.group.state, group.state)
        self.group = group

    def bump_epoch(self, group: ConsumerGroup) -> None:
        """Take a step that increments the group epoch, so that a new target assignment is due."""
        self.step_to(
            replace(
                group,
                group_epoch=group.group_epoch + 1,
                metadata_hash=metadata_hash(group.subscribed_topics, self.context.topics),
                topics_version=self.context.topics.version,
            )
        )

    def refresh_topics(self) -> None:
        """Bump the group epoch if subscribed topics were created, deleted or extended meanwhile."""
        group, topics = self.group, self.context.topics
        if group.topics_version == topics.version:
            return
        if metadata_hash(group.subscribed_topics, topics) != group.metadata_hash:
            self.bump_epoch(group)
        else:
            self.group = replace(group, topics_version=topics.version)

    # the target assignment

    def assign(self) -> None:
        """Make a new target assignment if one is due. `group.consumer.assignment.interval.ms` may delay it."""
        group, context = self.group, self.context
        if group.group_epoch <= group.assignment_epoch or not self._may_assign():
            return
        assignor = ASSIGNORS[group.assignor(context.settings.assignors[0])]
        subscribers = [self._subscriber(member) for member in group.members.values()]
        partitions: dict[uuid.UUID, int] = {}
        for name in sorted(group.subscribed_topics):
            topic = context.topics.get(name)
            if topic is not None:
                partitions[topic.topic_id] = topic.partitions
        self.step_to(
            replace(
                group,
                targets=assignor(subscribers, partitions),
                assignment_epoch=group.group_epoch,
                assignment_timestamp_ms=context.now_ms,
            )
        )

    def _may_assign(self) -> bool:
        last_ms, interval_ms = self.group.assignment_timestamp_ms, self.context.settings.assignment_interval_ms
        return last_ms == 0 or self.context.now_ms - last_ms >= interval_ms

    def _subscriber(self, member: ConsumerMember) -> Subscriber:
        found = (self.context.topics.get(name) for name in self.group.topics_of(member))
        topic_ids = frozenset(topic.topic_id for topic in found if topic is not None)
        return Subscriber(member.member_id, member.instance_id, topic_ids, self.group.target(member.member_id))

    # members

    def reconcile(self, member_id: str, owned: Assignment | None, *, resubscribes: bool) -> ConsumerMember:
        """Move a member towards the target; start or end its rebalance timeout for revoking partitions."""
        before = self.group.members[member_id]
        after = reconcile(self.group, before, owned, self.context.topics, resubscribes=resubscribes)
        if after is not before:
            if not after.is_classic:
                after = self._with_rebalance_deadline(after)
            self.step_to(self.group.with_member(after))
        return after

    def _with_rebalance_deadline(self, member: ConsumerMember) -> ConsumerMember:
        must_revoke = member.state is MemberState.UNREVOKED_PARTITIONS
        deadline_ms = self.context.now_ms + member.rebalance_timeout_ms if must_revoke else None
        return replace(member, rebalance_deadline_ms=deadline_ms)

    def replace_static_member(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Give a restarted static member its new id; it keeps its subscription and partitions."""
        group = self.group
        new = replace(
            old,
            member_id=member_id,
            member_epoch=0,
            previous_epoch=0,
            session_deadline_ms=None,
            rebalance_deadline_ms=None,
            join_deadline_ms=None,
            sync_deadline_ms=None,
        )
        members = {other: member for other, member in group.members.items() if other != old.member_id}
        targets = {other: target for other, target in group.targets.items() if other != old.member_id}
        targets[member_id] = group.target(old.member_id)
        self.step_to(replace(group, members={**members, member_id: new}, targets=targets))
        return new

    def remove(self, member_ids: Iterable[str]) -> None:
        """Remove members; the others get new targets with their next heartbeats."""
        group = self.group.without(member_ids)
        self.bump_epoch(group)
        if not group.members:  # an empty group has nothing to assign
            self.group = replace(self.group, assignment_epoch=self.group.group_epoch, assignment_timestamp_ms=0)

    def update_member(self, member: ConsumerMember, *, bumps: bool) -> None:
        """Update a member; bump the group epoch if `bumps`, or if subscribed topics changed."""
        group = self.group.with_member(member).with_regexes_in_use()
        if bumps:
            self.bump_epoch(group)
        else:
            self.step_to(group)
            self.refresh_topics()
