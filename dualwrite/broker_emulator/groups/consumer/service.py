"""The consumer groups of one partition of `__consumer_offsets`: store decisions and carry them out. A thin shell.

Groups, timers and the log belong to the shard, which has the classic groups too. A group changes when its records are
appended, and the member gets its response when they are replicated.

Decisions about groups with thousands of topics or partitions would hold up the event loop.
A group is one immutable value, so a thread can decide about it while the loop serves other requests. The decision is
only kept if the group is still the same afterwards. Heartbeats of such a group wait for each other. Changes that cannot
wait, such as the removal of a late member, come in between, and the decision is made again.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.configs.alteration import ConfigResource
from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.consumer import classic_members, membership
from dualwrite.broker_emulator.groups.consumer.change import DecisionContext
from dualwrite.broker_emulator.groups.consumer.group import (
    JOIN_EPOCH,
    AnyGroup,
    ConsumerGroup,
    ConsumerGroupSettings,
    HeartbeatResponse,
    new_member_id,
)
from dualwrite.broker_emulator.groups.consumer.membership import (
    HeartbeatDecision,
    HeartbeatRequest,
    heartbeat,
)
from dualwrite.broker_emulator.groups.consumer.migration import Downgrade, Outcome, to_consumer
from dualwrite.broker_emulator.groups.consumer.records import KeyValue, records_between
from dualwrite.broker_emulator.groups.consumer.regular_expressions import resolve, resolved
from dualwrite.broker_emulator.groups.consumer.topics import FixedTopics, KnownTopic
from dualwrite.broker_emulator.groups.deadlines import Deadlines
from dualwrite.broker_emulator.groups.group import Group
from dualwrite.broker_emulator.groups.member_requests import (
    JoinRequest,
    JoinResponse,
    LeavingMember,
    SyncRequest,
    SyncResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker_emulator.topics.topics import ClusterView, Topic


ATTEMPTS: Final = 3
"""The number of attempts in a thread before a decision about an ever-changing group is made in one piece."""

_MANY: Final = 1000


def is_long(group: AnyGroup | None, named: int) -> bool:
    """Return whether a decision about a group and a request with this many topics or partitions takes long."""
    if named > _MANY:
        return True
    if not isinstance(group, ConsumerGroup):
        return False
    matched = sum(len(found.topics) for found in group.regular_expressions.values())
    subscribed = sum(len(member.subscribed_topics) for member in group.members.values())
    return matched + subscribed + sum(map(len, group.targets.values())) > _MANY


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Turns:
    """Makes the requests of one group wait for each other, while any of them takes long."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    def __contains__(self, group_id: str) -> bool:
        """Return whether requests of a group have to wait now."""
        return group_id in self._turns

    @asynccontextmanager
    async def of(self, group_id: str) -> AsyncIterator[None]:
        """Wait for the turn of a request."""
        turn = self._turns.setdefault(group_id, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[group_id]


logger = logging.getLogger(__name__)

RETRY_MS = 500
"""Delay before a retry when the records of passed deadlines could not be appended."""


class LogOfShard(Protocol):
    """The shard that groups belong to (`shard.GroupShard`), as far as groups of each kind need it."""

    is_open: bool

    async def replicated(self) -> ErrorCode:
        """Wait until everything appended so far is replicated; return the error for the client."""

    def append(self, records: Sequence[tuple[bytes, bytes | None]]) -> tuple[int, ErrorCode]:
        """Append one batch; return its first offset, and the error for the client."""

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background, as long as the shard is open."""


class Shard(LogOfShard, Protocol):
    """The same shard, as far as consumer groups need it."""

    groups: dict[str, AnyGroup]
    deadlines: Deadlines

    def has_share_group(self, group_id: str) -> bool:
        """Return whether a share group has this id."""

    def keep(self, group: AnyGroup) -> None:
        """Keep a group's new state in memory and set a timer for its next deadline."""

    def fail_waiting(self, group: Group, error: ErrorCode) -> None:
        """Send an error to the waiting requests of a group that is no longer classic."""

    def rebalance(self, group: Group) -> None:
        """Start a rebalance of a classic group."""


class ClusterTopics:
    """The current topics of the cluster."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._fixed = FixedTopics(())

    def fixed(self) -> FixedTopics:
        """Return a snapshot of the topics, for a decision in a thread."""
        if self._fixed.version != self.version:
            known = map(_known, self._cluster.topics.values())
            self._fixed = FixedTopics((topic for topic in known if topic is not None), self.version)
        return self._fixed

    @property
    def version(self) -> int:
        return self._cluster.topics_version

    def get(self, name: str) -> KnownTopic | None:
        return _known(self._cluster.topics.get(name))

    def by_id(self, topic_id: uuid.UUID) -> KnownTopic | None:
        return _known(self._cluster.topic_by_id(topic_id))

    def names(self) -> Iterable[str]:
        return self._cluster.topics


def _known(topic: Topic | None) -> KnownTopic | None:
    return None if topic is None else KnownTopic(topic.name, topic.topic_id, len(topic.partitions))


class ConsumerGroups:
    """Handles the requests of consumer groups' members. Every method may raise RefusedError with the error to send."""

    def __init__(self, shard: Shard, cluster: ClusterView) -> None:
        self._shard = shard
        self._cluster = cluster
        self._topics = ClusterTopics(cluster)
        self._turns = Turns()

    def context(self, group_id: str) -> DecisionContext:
        """Return the current facts for decisions about a group."""
        return DecisionContext(self._cluster.clock.now_ms(), settings_of(self._cluster, group_id), self._topics)

    # members of the new protocol

    async def heartbeat(
        self, group_id: str, request: HeartbeatRequest, is_visible: Callable[[str], bool]
    ) -> HeartbeatResponse:
        """Handle ConsumerGroupHeartbeat. Regular expressions match the topics that are visible to the client."""
        named = len(request.subscribed_topics or ()) + len(request.owned or ())
        if group_id in self._turns or is_long(self._shard.groups.get(group_id), named):
            async with self._turns.of(group_id):
                decision, error = await self._decide_in_thread(group_id, request)
        else:
            decision, error = self._decide_now(group_id, request)
        await self._replicate(error)
        if decision.resolves:
            self._shard.start(self._resolve(group_id, decision.resolves, is_visible))
        return decision.response

    def _decide_now(self, group_id: str, request: HeartbeatRequest) -> tuple[HeartbeatDecision, ErrorCode]:
        before = self._before(group_id)
        decision = _decide(group_id, before, request, self.context(group_id))
        return decision, self._store(before, decision.outcome)

    async def _decide_in_thread(self, group_id: str, request: HeartbeatRequest) -> tuple[HeartbeatDecision, ErrorCode]:
        """Decide in a thread, again if the group changed meanwhile, and store the decision."""
        for _ in range(ATTEMPTS):
            before = self._before(group_id)
            context = self.context(group_id)._replace(topics=self._topics.fixed())
            decision, records = await asyncio.to_thread(_decide_with_records, group_id, before, request, context)
            if self._before(group_id) is before:
                return decision, self._store(before, decision.outcome, records)
        return self._decide_now(group_id, request)

    def _before(self, group_id: str) -> AnyGroup | None:
        """Return the group, or None. Raises RefusedError if it is a share group, or if the shard has closed."""
        if not self._shard.is_open:
            raise RefusedError(ErrorCode.not_coordinator, "This is not the correct coordinator.")
        if self._shard.has_share_group(group_id):
            raise RefusedError(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")
        return self._shard.groups.get(group_id)

    async def _resolve(self, group_id: str, expressions: frozenset[str], is_visible: Callable[[str], bool]) -> None:
        """Resolve regular expressions, after the response to the member that sent them."""
        found = await resolve(expressions, self._topics, self.context(group_id).now_ms, is_visible)
        group = self._shard.groups.get(group_id)
        if not isinstance(group, ConsumerGroup) or not self._shard.is_open:
            return
        error = self._store(group, resolved(group, found, self.context(group_id)))
        if error is not ErrorCode.none:
            logger.warning("regular expressions of group %r not stored: %s", group_id, error.name)

    # members of the classic protocol

    async def join(self, group: ConsumerGroup, request: JoinRequest) -> JoinResponse:
        """Handle JoinGroup."""
        named = request._replace(new_member_id=new_member_id())
        decision = classic_members.join(group, named, self.context(group.group_id))
        await self._store_and_replicate(group, decision.outcome)
        return decision.response

    async def sync(self, group: ConsumerGroup, request: SyncRequest) -> SyncResponse:
        """Handle SyncGroup."""
        after, response = classic_members.sync(group, request, self.context(group.group_id))
        await self._store_and_replicate(group, after)
        return response

    def classic_heartbeat(
        self, group: ConsumerGroup, member_id: str, group_instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Handle Heartbeat."""
        context = self.context(group.group_id)
        after, error = classic_members.heartbeat(group, member_id, group_instance_id, generation, context)
        self._shard.keep(after)
        return error

    def leave(self, group: ConsumerGroup, members: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Handle LeaveGroup; return an error for each member."""
        outcome, errors = classic_members.leave(group, members, self.context(group.group_id))
        error = self._store(group, outcome)
        return errors if error is ErrorCode.none else [error] * len(members)

    # time

    def after_load(self, group: ConsumerGroup) -> None:
        """Start the timers of a group loaded from the log."""
        self._shard.keep(membership.after_load(group, self.context(group.group_id)))

    def tick(self, group: ConsumerGroup) -> None:
        """Remove members whose deadlines have passed."""
        outcome = membership.tick(group, self.context(group.group_id))
        error = self._store(group, outcome)
        if error is not ErrorCode.none:
            logger.warning("late members of group %r not removed: %s", group.group_id, error.name)
            self._shard.deadlines.set(group.group_id, RETRY_MS)

    # storing

    async def _store_and_replicate(self, before: AnyGroup | None, outcome: Outcome) -> None:
        await self._replicate(self._store(before, outcome))

    async def _replicate(self, error: ErrorCode) -> None:
        """Wait until the stored decision is replicated. Raises RefusedError with the error if it was not stored."""
        if error is ErrorCode.none:
            error = await self._shard.replicated()
        if error is not ErrorCode.none:
            raise RefusedError(error, f"The group's records could not be stored: {error.name}.")

    def _store(self, before: AnyGroup | None, outcome: Outcome, records: Sequence[KeyValue] | None = None) -> ErrorCode:
        after = _group_after(outcome)
        if records is None:
            records = _records(before, outcome)
        error = self._shard.append(records)[1] if records else ErrorCode.none
        if error is not ErrorCode.none:
            return error
        if isinstance(before, Group):
            self._shard.fail_waiting(before, ErrorCode.rebalance_in_progress)
        self._shard.keep(after)
        if isinstance(outcome, Downgrade) and outcome.rebalances:
            self._shard.rebalance(outcome.group)
        return ErrorCode.none


def _group_after(outcome: Outcome) -> AnyGroup:
    return outcome.group if isinstance(outcome, Downgrade) else outcome


def _records(before: AnyGroup | None, outcome: Outcome) -> Sequence[KeyValue]:
    after = _group_after(outcome)
    return records_between(before, after) if after is not before else []


def _decide(
    group_id: str, before: AnyGroup | None, request: HeartbeatRequest, context: DecisionContext
) -> HeartbeatDecision:
    if request.member_epoch < JOIN_EPOCH:
        return membership.leave(consumer_group(before, group_id), request, context)
    group = _joinable(before, group_id, context) if request.member_epoch == JOIN_EPOCH else None
    return heartbeat(group or _known_group(before, group_id), request, context)


def _decide_with_records(
    group_id: str, before: AnyGroup | None, request: HeartbeatRequest, context: DecisionContext
) -> tuple[HeartbeatDecision, Sequence[KeyValue]]:
    decision = _decide(group_id, before, request, context)
    return decision, _records(before, decision.outcome)


def settings_of(cluster: ClusterView, group_id: str) -> ConsumerGroupSettings:
    """Return the settings for one group: its own (GROUP configs), else the brokers'."""
    config = cluster.config
    policy = config.group_consumer_migration_policy.lower()
    settings = ConsumerGroupSettings(
        refuses_malformed=config.behaviours.malformed_subscriptions_are_refused,
        session_timeout_ms=config.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        assignment_interval_ms=config.group_consumer_assignment_interval_ms,
        max_size=config.group_consumer_max_size,
        regex_refresh_interval_ms=config.group_consumer_regex_refresh_interval_ms,
        allows_upgrade=policy in ("bidirectional", "upgrade"),
        allows_downgrade=policy in ("bidirectional", "downgrade"),
        assignors=config.group_consumer_assignors,
        classic_max_size=config.group_max_size,
    )
    own = cluster.altered_configs.of(ConfigResource.GROUP, group_id)
    return settings._replace(
        session_timeout_ms=int(own.get("consumer.session.timeout.ms", settings.session_timeout_ms)),
        heartbeat_interval_ms=int(own.get("consumer.heartbeat.interval.ms", settings.heartbeat_interval_ms)),
        assignment_interval_ms=int(own.get("consumer.assignment.interval.ms", settings.assignment_interval_ms)),
    )


def consumer_group(group: AnyGroup | None, group_id: str) -> ConsumerGroup:
    """Return the group if it is a consumer group. Raises RefusedError (69) otherwise."""
    if group is None:
        raise RefusedError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
    if not isinstance(group, ConsumerGroup):
        raise RefusedError(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")
    return group


def _known_group(group: AnyGroup | None, group_id: str) -> ConsumerGroup:
    if group is None:
        raise RefusedError(ErrorCode.group_id_not_found, f"Consumer group {group_id} not found.")
    return consumer_group(group, group_id)


def _joinable(group: AnyGroup | None, group_id: str, context: DecisionContext) -> ConsumerGroup:
    """Return the group that a member joins: itself, converted, or new if there was none or an empty classic one."""
    if isinstance(group, ConsumerGroup):
        return group
    if group is None or group.is_empty:
        return ConsumerGroup(group_id=group_id)
    return to_consumer(group, context)
