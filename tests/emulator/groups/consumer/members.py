"""Members of a consumer group for tests of pure decisions: a group, a clock, topics, and members that behave."""

from __future__ import annotations

import asyncio
import struct
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.consumer import classic_members, membership
from dualwrite.broker_emulator.groups.consumer.change import DecisionContext
from dualwrite.broker_emulator.groups.consumer.group import (
    NOTHING,
    AnyGroup,
    Assignment,
    ConsumerGroup,
    ConsumerGroupSettings,
    ConsumerMember,
    HeartbeatResponse,
)
from dualwrite.broker_emulator.groups.consumer.membership import (
    HeartbeatDecision,
    HeartbeatRequest,
    heartbeat,
)
from dualwrite.broker_emulator.groups.consumer.migration import Downgrade, Outcome
from dualwrite.broker_emulator.groups.consumer.records import records_between
from dualwrite.broker_emulator.groups.consumer.regular_expressions import resolve, resolved
from dualwrite.broker_emulator.groups.consumer.topics import FixedTopics, KnownTopic, TopicIdPartition
from dualwrite.broker_emulator.groups.group import Protocol
from dualwrite.broker_emulator.groups.member_requests import JoinRequest, JoinResponse, SyncRequest, SyncResponse

SETTINGS = ConsumerGroupSettings(
    session_timeout_ms=45_000,
    heartbeat_interval_ms=5_000,
    max_size=1_000,
    assignment_interval_ms=0,
    regex_refresh_interval_ms=600_000,
    allows_upgrade=True,
    allows_downgrade=True,
    assignors=("uniform", "range"),
    classic_max_size=1_000,
)
REBALANCE_MS = 10_000
CLASSIC_SESSION_MS = 20_000


def topic_id(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, name)


def partitions(topic: str, *indexes: int) -> Assignment:
    return frozenset(TopicIdPartition(topic_id(topic), index) for index in indexes)


@dataclass
class Coordinator:
    """One group in a context of its own. Every change is written down and has to be read back as the same group."""

    counts: dict[str, int] = field(default_factory=lambda: {"a": 4, "b": 3})
    settings: ConsumerGroupSettings = SETTINGS
    now_ms: int = 1_000_000
    version: int = 1
    group: AnyGroup | None = None
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)

    @property
    def context(self) -> DecisionContext:
        topics = [KnownTopic(name, topic_id(name), count) for name, count in self.counts.items()]
        return DecisionContext(self.now_ms, self.settings, FixedTopics(topics, self.version))

    def change_topic(self, name: str, count: int | None) -> None:
        """Create, extend or (None) delete a topic."""
        if count is None:
            del self.counts[name]
        else:
            self.counts[name] = count
        self.version += 1

    @property
    def consumers(self) -> ConsumerGroup:
        assert isinstance(self.group, ConsumerGroup)
        return self.group

    def member(self, member_id: str) -> ConsumerMember:
        return self.consumers.members[member_id]

    def step_to(self, outcome: Outcome) -> None:
        after = outcome.group if isinstance(outcome, Downgrade) else outcome
        self.log += records_between(self.group, after)
        self.group = after

    def heartbeat(self, member_id: str, epoch: int, **values: Any) -> HeartbeatResponse:
        """Send a heartbeat; joining (epoch 0) subscribes to topic "a" unless `values` say otherwise.

        Raises RefusedError.
        """
        if epoch == 0:
            joining = {"rebalance_timeout_ms": REBALANCE_MS, "subscribed_topics": frozenset("a"), "owned": NOTHING}
            values = {**joining, **values}
        request = HeartbeatRequest(member_id, epoch, **values)
        group = self.group if isinstance(self.group, ConsumerGroup) else ConsumerGroup(group_id="g")
        decide = membership.leave if epoch < 0 else heartbeat
        decision: HeartbeatDecision = decide(group, request, self.context)
        self.step_to(decision.outcome)
        if decision.resolves:
            found = asyncio.run(resolve(decision.resolves, self.context.topics, self.now_ms, lambda _: True))
            self.step_to(resolved(self.consumers, found, self.context))
        return decision.response

    def tried(self, member_id: str, epoch: int, **values: Any) -> HeartbeatResponse | int:
        """Send a heartbeat; return the response, or the error if it is refused and nothing has changed."""
        before = self.group
        try:
            return self.heartbeat(member_id, epoch, **values)
        except RefusedError as refused:
            self.group = before
            return int(refused.error)

    def join(self, member_id: str, topics: frozenset[str], owned: frozenset[tuple[str, int]]) -> JoinResponse | int:
        """JoinGroup of a member of the classic protocol, or the error that it is refused with."""
        metadata = subscription(topics, owned)
        request = JoinRequest(
            member_id=member_id,
            group_instance_id=None,
            client_id="classic",
            client_host="/127.0.0.1",
            rebalance_timeout_ms=REBALANCE_MS,
            session_timeout_ms=CLASSIC_SESSION_MS,
            protocol_type="consumer",
            protocols=(Protocol("range", metadata),),
            new_member_id="unused",
            requires_known_member_id=True,
            can_skip_assignment=True,
        )
        try:
            decision = classic_members.join(self.consumers, request, self.context)
        except RefusedError as refused:
            return int(refused.error)
        self.step_to(decision.outcome)
        return decision.response

    def sync(self, member_id: str, generation: int) -> SyncResponse | int:
        """SyncGroup of a member of the classic protocol."""
        request = SyncRequest(member_id, None, generation, "consumer", "range", {})
        try:
            after, response = classic_members.sync(self.consumers, request, self.context)
        except RefusedError as refused:
            return int(refused.error)
        self.step_to(after)
        return response

    def classic_heartbeat(self, member_id: str, generation: int) -> int:
        try:
            after, error = classic_members.heartbeat(self.consumers, member_id, None, generation, self.context)
        except RefusedError as refused:
            return int(refused.error)
        self.step_to(after)
        return int(error)

    def pass_time(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        if isinstance(self.group, ConsumerGroup):
            self.step_to(membership.tick(self.group, self.context))

    def settle(self, *member_ids: str) -> None:
        """Let members follow their responses until the group stops changing."""
        while True:
            before = self.consumers
            for member_id in member_ids or tuple(before.members):
                member = self.member(member_id)
                self.heartbeat(member_id, member.member_epoch, owned=frozenset(member.assigned))
            after = self.consumers
            is_settled = [m.current for m in after.members.values()] == [m.current for m in before.members.values()]
            if is_settled and after.group_epoch == before.group_epoch:
                return


def subscription(topics: frozenset[str], owned: frozenset[tuple[str, int]]) -> bytes:
    """Return the metadata with which a consumer of the classic protocol joins."""

    def name(topic: str) -> bytes:
        return struct.pack(">h", len(topic)) + topic.encode()

    has = b"".join(name(topic) + struct.pack(">ii", 1, index) for topic, index in sorted(owned))
    head = struct.pack(">hi", 1, len(topics)) + b"".join(name(topic) for topic in sorted(topics))
    return head + struct.pack(">ii", -1, len(owned)) + has


def without_deadlines(group: ConsumerGroup) -> ConsumerGroup:
    """Return the part of a group that its records hold."""
    members = {
        member_id: replace(
            member,
            session_deadline_ms=None,
            rebalance_deadline_ms=None,
            join_deadline_ms=None,
            sync_deadline_ms=None,
        )
        for member_id, member in sorted(group.members.items())
    }
    return replace(group, members=members, topics_version=-1, is_resolving=False)
