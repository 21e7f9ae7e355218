"""The share groups of one partition of `__consumer_offsets`: store decisions and carry them out. A thin shell.

The log belongs to the shard of all groups. A group changes when its records are appended, and the member gets its
response when they are replicated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.configs.effective import broker_value
from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups.consumer.group import JOIN_EPOCH, AnyGroup, HeartbeatResponse
from dualwrite.broker_emulator.groups.consumer.service import ATTEMPTS, RETRY_MS, ClusterTopics, LogOfShard, Turns
from dualwrite.broker_emulator.groups.deadlines import Deadlines
from dualwrite.broker_emulator.groups.share import membership, partition_states
from dualwrite.broker_emulator.groups.share.group import ShareGroup, StateTopic
from dualwrite.broker_emulator.groups.share.membership import ShareContext, ShareGroupSettings, ShareHeartbeat
from dualwrite.broker_emulator.groups.share.records import KeyValue, records_between, replay_record
from dualwrite.broker_emulator.share.state import NO_OFFSET, StateError, StateKey, inconsistency
from dualwrite.broker_emulator.share.states import ShareGroupState, check_group_step
from dualwrite.broker_emulator.slices import Pace, mapped

if TYPE_CHECKING:
    from dualwrite.broker_emulator.log.record import Record
    from dualwrite.broker_emulator.log.record_batch import BatchHeader
    from dualwrite.broker_emulator.share.state import ShareClusterView
    from dualwrite.broker_emulator.topics.topics import Topic

logger = logging.getLogger(__name__)

T = TypeVar("T")
Decide: TypeAlias = Callable[[], tuple[ShareGroup, T]]
"""Returns the new group, and the other result of the decision. It may run in a thread."""

_SOON_MS = 1
"""Delay of the timer of a deadline that has passed."""

_MANY = 1000
"""The number of topics and partitions of a group beyond which a decision runs in a thread."""


class Shard(LogOfShard, Protocol):
    """The shard that the groups belong to (`groups.shard.GroupShard`), as far as share groups need it."""

    groups: dict[str, AnyGroup]
    """The groups of other types."""


class AlteredOffset(NamedTuple):
    """A partition, and its new start offset."""

    topic: Topic
    partition: int
    start_offset: int


class ShareGroups:
    """Handles requests about share groups. Every method may raise RefusedError with the error to send."""

    def __init__(self, shard: Shard, cluster: ShareClusterView) -> None:
        self.groups: dict[str, ShareGroup] = {}
        self._shard = shard
        self._cluster = cluster
        self._topics = ClusterTopics(cluster)
        self._turns = Turns()
        self._deadlines = Deadlines(cluster.clock, self._tick)
        self._initializing: set[str] = set()
        self._altering: Counter[str] = Counter()

    # loading

    def replay(self, header: BatchHeader, record: Record) -> bool:
        """Apply one record of the log; return whether it belongs to a share group."""
        return replay_record(self.groups, header, record)

    def loaded(self) -> None:
        """Start sessions, and finish the work of an earlier coordinator, once all records are applied."""
        for group in list(self.groups.values()):
            self._keep(membership.after_load(group, self.context(group.group_id)))
            self._begin_initializing(group.group_id)

    def halt(self) -> None:
        """Cancel all timers."""
        self._deadlines.cancel()

    # members

    def context(self, group_id: str) -> ShareContext:
        """Return the current facts for decisions about a group."""
        return ShareContext(self._cluster.clock.now_ms(), settings_of(self._cluster, group_id), self._topics)

    async def heartbeat(self, group_id: str, request: ShareHeartbeat) -> HeartbeatResponse:
        """Handle ShareGroupHeartbeat."""
        if request.member_epoch < JOIN_EPOCH:
            before = self.groups.get(group_id)
            await self._store(before, membership.leave(self.known(group_id), request.member_id))
            return HeartbeatResponse(request.member_id, request.member_epoch)
        is_long = group_id in self._turns or _is_long(self.groups.get(group_id), request)

        def prepare() -> Decide[HeartbeatResponse]:
            group, context = self._joinable(group_id, joins=request.joins), self.context(group_id)
            if is_long:
                context = context._replace(topics=self._topics.fixed())
            return lambda: membership.heartbeat(group, request, context)

        async with self._turns.of(group_id) if is_long else nullcontext():
            response = await self._decided(group_id, prepare, is_long=is_long)
        self._begin_initializing(group_id)
        return response

    async def _decided(self, group_id: str, prepare: Callable[[], Decide[T]], *, is_long: bool) -> T:
        """Store a decision, and return its other result. A long decision runs in a thread, again if the group changed.

        `prepare` runs in the loop, gathers the facts that the decision depends on, and may raise RefusedError.
        """
        for _ in range(ATTEMPTS if is_long else 0):
            decide, before = prepare(), self.groups.get(group_id)
            (after, answer), records = await asyncio.to_thread(_with_records, before, decide)
            if not self._shard.is_open:
                raise RefusedError(ErrorCode.not_coordinator, "This is not the correct coordinator.")
            if self.groups.get(group_id) is before and group_id not in self._shard.groups:
                await self._store(before, after, records)
                return answer
        after, answer = prepare()()
        await self._store(self.groups.get(group_id), after)
        return answer

    async def _changed(self, group_id: str, change: Callable[[ShareGroup], ShareGroup], named: int) -> None:
        """Store a group as `change` returns it. `named` is the number of topics that it names."""

        def prepare() -> Decide[None]:
            group = self._open_group(group_id)
            return lambda: (change(group), None)

        await self._decided(group_id, prepare, is_long=self._has_many(group_id, named))

    def _has_many(self, group_id: str, named: int) -> bool:
        """Return whether the named topics and the group's topics with state (one record) are many."""
        group = self.groups.get(group_id)
        known = () if group is None else (group.initializing, group.initialized, group.deleting)
        return named + sum(map(len, known)) > _MANY

    def known(self, group_id: str) -> ShareGroup:
        """Return a share group. Raises RefusedError (69) if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            is_other = group_id in self._shard.groups
            message = f"Group {group_id} is not a share group." if is_other else f"Group {group_id} not found."
            raise RefusedError(ErrorCode.group_id_not_found, message)
        return group

    def _joinable(self, group_id: str, *, joins: bool) -> ShareGroup:
        group = self.groups.get(group_id)
        if group is not None:
            return group
        if group_id in self._shard.groups:
            raise RefusedError(ErrorCode.group_id_not_found, f"Group {group_id} is not a share group.")
        if not joins:
            raise RefusedError(ErrorCode.group_id_not_found, f"Share group {group_id} not found.")
        return ShareGroup(group_id=group_id)

    # the state of partitions

    def _begin_initializing(self, group_id: str) -> None:
        """Initialize the state of subscribed partitions in the background, in one task per group."""
        group = self.groups.get(group_id)
        if group is not None and group.initializing and group_id not in self._initializing:
            self._initializing.add(group_id)
            self._shard.start(self._initialize(group_id))

    async def _initialize(self, group_id: str) -> None:
        try:
            group = self.known(group_id)
            done: dict[UUID, StateTopic] = {}
            pace = Pace()
            for topic_id, topic in group.initializing.items():
                for index in sorted(topic.partitions):
                    await pace.keep()
                    if self._altering[group_id]:
                        return  # AlterShareGroupOffsets initializes with other offsets, and then begins this again
                    if topic_id in self._open_group(group_id).initializing:  # else it has been deleted
                        key = StateKey(group_id, topic_id, index)
                        await self._cluster.share_states.initialize(key, group.group_epoch, NO_OFFSET)
                done[topic_id] = topic
            if self._shard.is_open and group_id in self.groups:
                await self._changed(group_id, lambda now: partition_states.with_initialized(now, done), len(done))
        except (StateError, RefusedError) as error:  # the next heartbeat tries again
            logger.warning("share state of group %r not initialized: %s", group_id, error)
        finally:
            self._initializing.discard(group_id)

    async def alter_offsets(self, group_id: str, altered: Iterable[AlteredOffset]) -> None:
        """Let a group without members continue at other offsets; an unknown group is created."""
        _check_empty(self._joinable(group_id, joins=True))
        offsets: dict[Topic, dict[int, int]] = {}
        pace = Pace()
        for topic, index, start_offset in altered:
            await pace.keep()
            problem = inconsistency(start_offset, 0, ())
            if problem is not None:
                raise RefusedError(ErrorCode.invalid_request, problem)
            offsets.setdefault(topic, {})[index] = start_offset
        if not offsets:
            return
        topics = await mapped(lambda topic: StateTopic(topic.name, frozenset(offsets[topic])), offsets)
        done = {topic.topic_id: initialized for topic, initialized in zip(offsets, topics, strict=True)}

        def prepare() -> Decide[int]:
            group = self._joinable(group_id, joins=True)
            _check_empty(group)
            return lambda: (partition_states.with_initializing(group, done), group.group_epoch)

        self._altering[group_id] += 1
        try:
            group_epoch = await self._decided(group_id, prepare, is_long=self._has_many(group_id, len(done)))
            await self._initialize_at(group_id, group_epoch, offsets)
            await self._changed(group_id, lambda now: partition_states.with_initialized(now, done), len(done))
        finally:
            self._altering -= Counter((group_id,))
        self._begin_initializing(group_id)

    async def _initialize_at(self, group_id: str, group_epoch: int, offsets: Mapping[Topic, Mapping[int, int]]) -> None:
        """Give partitions a new state with these start offsets."""
        pace = Pace()
        for topic, indexes in offsets.items():
            for index, start_offset in indexes.items():
                await pace.keep()
                if topic.topic_id in self._open_group(group_id).initializing:  # else it has been deleted
                    key = StateKey(group_id, topic.topic_id, index)
                    await self._state(self._cluster.share_states.initialize(key, group_epoch, start_offset))

    async def delete_offsets(self, group_id: str, topics: Sequence[Topic]) -> None:
        """Delete the state of a group without members in some topics."""
        _check_empty(self.known(group_id))
        await self._delete_state(group_id, {topic.topic_id for topic in topics}, of_empty_group=True)

    async def _delete_state(self, group_id: str, topic_ids: Collection[UUID], *, of_empty_group: bool) -> None:
        """Delete a group's state in those of these topics that have any, marking them as deleting meanwhile.

        State that is marked already is deleted again: the mark may be of a coordinator that has died.
        """
        group = self.known(group_id)
        if {**group.initializing, **group.initialized, **group.deleting}.keys().isdisjoint(topic_ids):
            return
        found = await mapped(self._cluster.topic_by_id, topic_ids)
        counts = {topic.topic_id: len(topic.partitions) for topic in found if topic is not None}

        def prepare() -> Decide[Mapping[UUID, StateTopic]]:
            group = self._open_group(group_id)
            if of_empty_group:
                _check_empty(group)
            return lambda: partition_states.with_marks(group, topic_ids, counts)

        having = await self._decided(group_id, prepare, is_long=self._has_many(group_id, len(topic_ids)))
        pace = Pace()
        for topic_id, topic in having.items():
            for index in sorted(topic.partitions):
                await pace.keep()
                if topic_id in self._open_group(group_id).deleting:  # else it is being initialized again
                    await self._state(self._cluster.share_states.delete(StateKey(group_id, topic_id, index)))
        await self._changed(group_id, lambda now: partition_states.without_marks(now, having), len(having))

    def _open_group(self, group_id: str) -> ShareGroup:
        """Return a group as it is now. Raises RefusedError if it is gone, or has another coordinator (16)."""
        if not self._shard.is_open:
            raise RefusedError(ErrorCode.not_coordinator, f"Group {group_id} has another coordinator.")
        return self.known(group_id)

    async def delete_group(self, group_id: str) -> ErrorCode:
        """Delete a group without members, with the state of its partitions (DeleteGroups)."""
        try:
            group = self.known(group_id)
            _check_empty(group)
            topics = {**group.initialized, **group.initializing, **group.deleting}
            await self._delete_state(group_id, topics, of_empty_group=True)
            group = self._open_group(group_id)
            _check_empty(group)  # a member may have joined meanwhile
            check_group_step(group_id, group.state, ShareGroupState.DEAD)
            await self._store(group, None)
        except RefusedError as refused:
            return refused.error
        return ErrorCode.none

    async def forget_topics(self, names: Collection[str]) -> None:
        """Delete the state of all groups in deleted topics with these names."""
        pace = Pace()
        for group_id in list(self.groups):
            await pace.keep()
            group = self.groups.get(group_id)
            if group is None:
                continue
            known = {topic_id: topic.name for topic_id, topic in {**group.initialized, **group.initializing}.items()}
            gone = [
                topic_id
                for topic_id, name in {**known, **group.deleting}.items()
                if name in names and self._cluster.topic_by_id(topic_id) is None
            ]
            try:
                await self._delete_state(group_id, gone, of_empty_group=False)
            except RefusedError as refused:
                logger.warning("share state of group %r not deleted: %s", group_id, refused.message)

    async def _state(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except StateError as error:
            raise RefusedError(error.error, str(error)) from error

    # time

    def _keep(self, group: ShareGroup) -> None:
        """Keep a group's new state in memory and set a timer for its next deadline."""
        self.groups[group.group_id] = group
        if self._deadlines.has_passed(group.group_id, group.next_deadline_ms):
            self._deadlines.set(group.group_id, _SOON_MS)

    def _tick(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if group is None or not self._shard.is_open:
            return
        after = membership.tick(group, self._cluster.clock.now_ms())
        if self._append(group, after) is not ErrorCode.none:
            self._deadlines.set(group_id, RETRY_MS)

    # storing

    async def _store(
        self, before: ShareGroup | None, after: ShareGroup | None, records: Sequence[KeyValue] | None = None
    ) -> None:
        """Store a change. `records`, if given, are the records that turn `before` into `after`."""
        error = self._append(before, after, records)
        if error is ErrorCode.none:
            error = await self._shard.replicated()
        if error is not ErrorCode.none:
            raise RefusedError(error, f"The group's records could not be stored: {error.name}.")

    def _append(
        self, before: ShareGroup | None, after: ShareGroup | None, records: Sequence[KeyValue] | None = None
    ) -> ErrorCode:
        if records is None:
            records = records_between(before, after)
        error = self._shard.append(records)[1] if records else ErrorCode.none
        if error is not ErrorCode.none:
            return error
        if after is not None:
            self._keep(after)
        elif before is not None:
            self.groups.pop(before.group_id, None)
            self._deadlines.forget(before.group_id)
        return ErrorCode.none


def _is_long(group: ShareGroup | None, request: ShareHeartbeat) -> bool:
    """Return whether a decision about the group and the request would keep the event loop for long."""
    named = len(request.subscribed_topics or ())
    if group is not None:
        named += sum(len(member.subscribed_topics) for member in group.members.values())
        named += sum(map(len, group.targets.values()))
    return named > _MANY


def _with_records(before: ShareGroup | None, decide: Decide[T]) -> tuple[tuple[ShareGroup, T], list[KeyValue]]:
    after, answer = decide()
    return (after, answer), records_between(before, after)


def settings_of(cluster: ShareClusterView, group_id: str) -> ShareGroupSettings:
    """Return the settings for one group: its own (GROUP configs), else the brokers'."""
    values = cluster.group_config(group_id)
    return ShareGroupSettings(
        session_timeout_ms=int(values["share.session.timeout.ms"]),
        heartbeat_interval_ms=int(values["share.heartbeat.interval.ms"]),
        assignment_interval_ms=int(values["share.assignment.interval.ms"]),
        max_size=int(broker_value(cluster.config, "group.share.max.size") or 0),
    )


def _check_empty(group: ShareGroup) -> None:
    if group.members:
        raise RefusedError(ErrorCode.non_empty_group, "The group is not empty.")
