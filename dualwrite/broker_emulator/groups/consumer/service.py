"""The consumer groups of one partition of `__consumer_offsets`: decisions stored and carried out. A thin shell.

Groups, timers and the log are the shard's, which keeps classic groups too. A group is changed when its records are
appended, and the member is answered when they are replicated.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.configs.altered import ConfigResource
from dualwrite.broker_emulator.groups.answers import JoinAnswer, JoinRequest, SyncAnswer
from dualwrite.broker_emulator.groups.consumer import classic_members, leaving
from dualwrite.broker_emulator.groups.consumer.change import World
from dualwrite.broker_emulator.groups.consumer.differences import AnyGroup, records_between
from dualwrite.broker_emulator.groups.consumer.downgrade import Downgrade, Outcome
from dualwrite.broker_emulator.groups.consumer.group import (
    JOIN_EPOCH,
    ConsumerGroup,
    ConsumerGroupSettings,
    RefusedError,
    new_member_id,
)
from dualwrite.broker_emulator.groups.consumer.heartbeat import HeartbeatAnswer, HeartbeatRequest, heartbeat
from dualwrite.broker_emulator.groups.consumer.regular_expressions import resolve
from dualwrite.broker_emulator.groups.consumer.resolution import resolved
from dualwrite.broker_emulator.groups.consumer.topics import KnownTopic
from dualwrite.broker_emulator.groups.consumer.upgrade import to_consumer
from dualwrite.broker_emulator.groups.group import Group
from dualwrite.broker_emulator.groups.membership import LeavingMember, SyncRequest

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.topics import ClusterView, Topic
    from dualwrite.broker_emulator.groups.shard import GroupShard

logger = logging.getLogger(__name__)

RETRY_MS = 500
"""When something that was due is tried again, after its records could not be appended."""


class ClusterTopics:
    """The topics that the cluster has at this moment."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

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
    """Answers what members of consumer groups ask. Every method raises RefusedError with the answer's error."""

    def __init__(self, shard: GroupShard, cluster: ClusterView) -> None:
        self._shard = shard
        self._cluster = cluster
        self._topics = ClusterTopics(cluster)

    def world(self, group_id: str) -> World:
        """What decisions about a group depend on now."""
        return World(self._cluster.clock.now_ms(), settings_of(self._cluster, group_id), self._topics)

    # members of the new protocol

    async def heartbeat(
        self, group_id: str, request: HeartbeatRequest, is_visible: Callable[[str], bool]
    ) -> HeartbeatAnswer:
        """ConsumerGroupHeartbeat. Regular expressions match the topics that are visible to who asks."""
        before = self._shard.groups.get(group_id)
        world = self.world(group_id)
        if request.member_epoch < JOIN_EPOCH:
            decision = leaving.leave(consumer_group(before, group_id), request, world)
        else:
            group = _joinable(before, group_id, world) if request.member_epoch == JOIN_EPOCH else None
            decision = heartbeat(group or _known_group(before, group_id), request, world)
        await self._become(before, decision.outcome)
        if decision.resolves:
            asyncio.get_running_loop().call_soon(self._resolve, group_id, decision.resolves, is_visible)
        return decision.answer

    def _resolve(self, group_id: str, expressions: frozenset[str], is_visible: Callable[[str], bool]) -> None:
        """Find the topics of regular expressions, after the member that brought them was answered."""
        group = self._shard.groups.get(group_id)
        if not isinstance(group, ConsumerGroup) or not self._shard.is_open:
            return
        world = self.world(group_id)
        found = resolve(expressions, self._topics, world.now_ms, is_visible)
        error = self._store(group, resolved(group, found, world))
        if error is not ErrorCode.none:
            logger.warning("regular expressions of group %r not stored: %s", group_id, error.name)

    # members of the classic protocol

    async def join(self, group: ConsumerGroup, request: JoinRequest) -> JoinAnswer:
        """JoinGroup."""
        named = request._replace(new_member_id=new_member_id())
        decision = classic_members.join(group, named, self.world(group.group_id))
        await self._become(group, decision.outcome)
        return decision.answer

    async def sync(self, group: ConsumerGroup, request: SyncRequest) -> SyncAnswer:
        """SyncGroup."""
        after, answer = classic_members.sync(group, request, self.world(group.group_id))
        await self._become(group, after)
        return answer

    def classic_heartbeat(
        self, group: ConsumerGroup, member_id: str, group_instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Heartbeat."""
        world = self.world(group.group_id)
        after, error = classic_members.heartbeat(group, member_id, group_instance_id, generation, world)
        self._shard.keep(after)
        return error

    def leave(self, group: ConsumerGroup, members: Sequence[LeavingMember]) -> list[ErrorCode]:
        """LeaveGroup, an error for each member."""
        outcome, errors = classic_members.leave(group, members, self.world(group.group_id))
        error = self._store(group, outcome)
        return errors if error is ErrorCode.none else [error] * len(members)

    # time

    def after_load(self, group: ConsumerGroup) -> None:
        """The group was read from the log."""
        self._shard.keep(leaving.after_load(group, self.world(group.group_id)))

    def tick(self, group: ConsumerGroup) -> None:
        """Something of the group is due."""
        outcome = leaving.tick(group, self.world(group.group_id))
        error = self._store(group, outcome)
        if error is not ErrorCode.none:
            logger.warning("late members of group %r not removed: %s", group.group_id, error.name)
            self._shard.tick_later(group.group_id, RETRY_MS)

    # storing

    async def _become(self, before: AnyGroup | None, outcome: Outcome) -> None:
        error = self._store(before, outcome)
        if error is ErrorCode.none and not self._shard.is_replicated:
            error = await self._shard.replicated()
        if error is not ErrorCode.none:
            raise RefusedError(error, f"The group's records could not be stored: {error.name}.")

    def _store(self, before: AnyGroup | None, outcome: Outcome) -> ErrorCode:
        after = outcome.group if isinstance(outcome, Downgrade) else outcome
        records = records_between(before, after) if after is not before else []
        error = self._shard.append(records)[1] if records else ErrorCode.none
        if error is not ErrorCode.none:
            return error
        if isinstance(before, Group):
            self._shard.send_away(before, ErrorCode.rebalance_in_progress)
        self._shard.keep(after)
        if isinstance(outcome, Downgrade) and outcome.rebalances:
            self._shard.rebalance(outcome.group)
        return ErrorCode.none


def settings_of(cluster: ClusterView, group_id: str) -> ConsumerGroupSettings:
    """The settings for one group: its own (GROUP configs), else those of the brokers."""
    config = cluster.config
    policy = config.group_consumer_migration_policy.lower()
    settings = ConsumerGroupSettings(
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
    """The group, where it is a consumer group. Raises RefusedError (69)."""
    if group is None:
        raise RefusedError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")
    if not isinstance(group, ConsumerGroup):
        raise RefusedError(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")
    return group


def _known_group(group: AnyGroup | None, group_id: str) -> ConsumerGroup:
    if group is None:
        raise RefusedError(ErrorCode.group_id_not_found, f"Consumer group {group_id} not found.")
    return consumer_group(group, group_id)


def _joinable(group: AnyGroup | None, group_id: str, world: World) -> ConsumerGroup:
    """The group that a member joins: a new one in place of none or of an empty classic one, or a converted one."""
    if isinstance(group, ConsumerGroup):
        return group
    if group is None or group.is_empty:
        return ConsumerGroup(group_id=group_id)
    return to_consumer(group, world)
