"""One consumer group's change in the making: the steps that decisions are made of, each held against the tables. Pure.

A change starts from a group, is taken through steps, and ends as the group it has become. Whoever stores that writes
the records in which the two differ.
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


class World(NamedTuple):
    """What a decision depends on besides the group and the request."""

    now_ms: int
    settings: ConsumerGroupSettings
    topics: Topics


@dataclass(slots=True)
class GroupChange:
    """A group as it is being changed."""

    group: ConsumerGroup
    world: World

    def become(self, group: ConsumerGroup) -> None:
        """Take one step. Raises InvalidStepError where the table of states does not allow it."""
        check_group_step(group.group_id, self.group.state, group.state)
        self.group = group

    def bump(self, group: ConsumerGroup) -> None:
        """Take a step that asks for a new target assignment."""
        self.become(
            replace(
                group,
                group_epoch=group.group_epoch + 1,
                metadata_hash=metadata_hash(group.subscribed_topics, self.world.topics),
                topics_version=self.world.topics.version,
            )
        )

    def look_at_topics(self) -> None:
        """Bump the group epoch if topics that members subscribe to came, went or got more partitions meanwhile."""
        group, topics = self.group, self.world.topics
        if group.topics_version == topics.version:
            return
        if metadata_hash(group.subscribed_topics, topics) != group.metadata_hash:
            self.bump(group)
        else:
            self.group = replace(group, topics_version=topics.version)

    # the target assignment

    def assign(self) -> None:
        """Make a new target assignment if one is due; `group.consumer.assignment.interval.ms` may put it off."""
        group, world = self.group, self.world
        if group.group_epoch <= group.assignment_epoch or not self._may_assign():
            return
        assignor = ASSIGNORS[group.assignor(world.settings.assignors[0])]
        subscribers = [self._subscriber(member) for member in group.members.values()]
        partitions: dict[uuid.UUID, int] = {}
        for name in sorted(group.subscribed_topics):
            topic = world.topics.get(name)
            if topic is not None:
                partitions[topic.topic_id] = topic.partitions
        self.become(
            replace(
                group,
                targets=assignor(subscribers, partitions),
                assignment_epoch=group.group_epoch,
                assignment_timestamp_ms=world.now_ms,
            )
        )

    def _may_assign(self) -> bool:
        last_ms, interval_ms = self.group.assignment_timestamp_ms, self.world.settings.assignment_interval_ms
        return last_ms == 0 or self.world.now_ms - last_ms >= interval_ms

    def _subscriber(self, member: ConsumerMember) -> Subscriber:
        found = (self.world.topics.get(name) for name in self.group.topics_of(member))
        topic_ids = frozenset(topic.topic_id for topic in found if topic is not None)
        return Subscriber(member.member_id, member.instance_id, topic_ids, self.group.target(member.member_id))

    # members

    def reconcile(self, member_id: str, owned: Assignment | None, *, subscribes_anew: bool) -> ConsumerMember:
        """Let a member go on towards the target; its time to give partitions up begins or ends."""
        before = self.group.members[member_id]
        after = reconcile(self.group, before, owned, self.world.topics, subscribes_anew=subscribes_anew)
        if after is not before:
            if not after.is_classic:
                after = self._with_rebalance_deadline(after)
            self.become(self.group.with_member(after))
        return after

    def _with_rebalance_deadline(self, member: ConsumerMember) -> ConsumerMember:
        must_revoke = member.state is MemberState.UNREVOKED_PARTITIONS
        deadline_ms = self.world.now_ms + member.rebalance_timeout_ms if must_revoke else None
        return replace(member, rebalance_deadline_ms=deadline_ms)

    def replace_static_member(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static instance came back under another id: it takes the place of its former self, and all it had."""
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
        self.become(replace(group, members={**members, member_id: new}, targets=targets))
        return new

    def remove(self, member_ids: Iterable[str]) -> None:
        """Members leave or are given up; the others get a new target with the next heartbeat."""
        group = self.group.without(member_ids)
        self.bump(group)
        if not group.members:  # there is nothing to assign to nobody
            self.group = replace(self.group, assignment_epoch=self.group.group_epoch, assignment_timestamp_ms=0)

    def update_member(self, member: ConsumerMember, *, bumps: bool) -> None:
        """A member is as it says now. Without a bump of its own there may be one because of the topics."""
        group = self.group.with_member(member).with_regexes_in_use()
        if bumps:
            self.bump(group)
        else:
            self.become(group)
            self.look_at_topics()
