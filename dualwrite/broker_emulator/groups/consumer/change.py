"""The steps of decisions about a consumer group, each checked by the tables of states. Pure.

A change starts from a group, goes through steps, and ends with the changed group. To store it, the records in which the
two groups differ are written (`records.records_between`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from dualwrite.broker_emulator.groups.consumer.assignors import ASSIGNORS, Subscriber
from dualwrite.broker_emulator.groups.consumer.group import (
    Assignment,
    ConsumerGroup,
    ConsumerGroupSettings,
    ConsumerMember,
)
from dualwrite.broker_emulator.groups.consumer.reconciliation import reconcile
from dualwrite.broker_emulator.groups.consumer.states import MemberState, check_group_step
from dualwrite.broker_emulator.groups.consumer.topics import Topics, metadata_hash


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
