"""The groups of one partition of `__consumer_offsets` on the node that leads it: state, waiting requests and timers.

A thin shell: `membership` and `offsets` make the decisions about a classic group, which are stored and carried out
here. A group's state changes when its record is appended, and its members get their responses when the record is
replicated. Requests of consumer groups' members (KIP-848) are carried out by `consumer.service`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups import membership
from dualwrite.broker_emulator.groups.consumer.group import AnyGroup, ConsumerGroup
from dualwrite.broker_emulator.groups.consumer.records import records_between
from dualwrite.broker_emulator.groups.consumer.service import ConsumerGroups
from dualwrite.broker_emulator.groups.deadlines import Deadlines
from dualwrite.broker_emulator.groups.group import UNKNOWN_MEMBER_ID, Group, GroupState
from dualwrite.broker_emulator.groups.member_requests import (
    GroupDecision,
    JoinRequest,
    JoinResponse,
    LeavingMember,
    SyncRequest,
    SyncResponse,
    WaitingRequests,
    send_responses,
)
from dualwrite.broker_emulator.groups.rebalance import GroupSettings, Rebalance
from dualwrite.broker_emulator.groups.replay import ReplayedGroups
from dualwrite.broker_emulator.groups.shard_offsets import Records, ShardOffsets, TransactionOfOffsets
from dualwrite.broker_emulator.groups.share.service import ShareGroups
from dualwrite.broker_emulator.log.partition_log import AppendOrigin
from dualwrite.broker_emulator.log.reading import replay
from dualwrite.broker_emulator.log.record_batch import build_batch
from dualwrite.broker_emulator.log.results import APPEND_ERRORS
from dualwrite.broker_emulator.slices import Steps
from dualwrite.broker_emulator.topics.replication import wait_until_replicated

if TYPE_CHECKING:
    from dualwrite.broker_emulator.log.record import Record
    from dualwrite.broker_emulator.log.record_batch import BatchHeader
    from dualwrite.broker_emulator.share.state import ShareClusterView
    from dualwrite.broker_emulator.topics.topics import Partition

logger = logging.getLogger(__name__)


class GroupShard:
    """The groups of one partition."""

    def __init__(self, cluster: ShareClusterView, partition: Partition) -> None:
        """Replay the partition. Must run in the emulator's loop, because members' session timeouts start."""
        self.partition = partition
        self._cluster = cluster
        self._leader_epoch = partition.log.leader_epoch
        config = cluster.config
        self._logs_unused_groups = config.behaviours.unused_groups_are_logged
        """Whether a group without a generation so far has a record; the coordinator before KIP-848's wrote none."""
        self._settings = GroupSettings(config.group_initial_rebalance_delay_ms, config.group_max_size)
        self._joining: WaitingRequests[JoinResponse] = WaitingRequests()
        self._syncing: WaitingRequests[SyncResponse] = WaitingRequests()
        self.deadlines = Deadlines(cluster.clock, self._tick)
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_open = True
        self.consumer = ConsumerGroups(self, cluster)
        self.share = ShareGroups(self, cluster)
        replayed = ReplayedGroups()

        def apply(header: BatchHeader, record: Record) -> None:
            if not self.share.replay(header, record):
                replayed.apply(header, record)

        replay(partition.log, apply)
        self.groups = replayed.groups
        self.offsets = ShardOffsets(self, cluster, replayed.offsets)
        self.share.loaded()
        for group in list(self.groups.values()):
            if isinstance(group, ConsumerGroup):
                self.consumer.after_load(group)
            else:
                self._carry_out(membership.after_load(group, self._now_ms, self._settings))

    @property
    def _now_ms(self) -> int:
        return self._cluster.clock.now_ms()

    def halt(self) -> None:
        """Cancel all timers."""
        self.is_open = False
        self.share.halt()
        self.deadlines.cancel()

    def close(self) -> None:
        """End the shard, as the node no longer leads the partition: waiting requests get NOT_COORDINATOR."""
        self.halt()
        error = ErrorCode.not_coordinator
        send_responses([(future, JoinResponse(error, member_id)) for member_id, future in self._joining.take_all()])
        send_responses([(future, SyncResponse(error)) for _, future in self._syncing.take_all()])
        classic = (group for group in self.groups.values() if isinstance(group, Group))
        self.groups = {group.group_id: group.to(GroupState.DEAD, self._now_ms) for group in classic}

    def has_share_group(self, group_id: str) -> bool:
        """Return whether a share group has this id."""
        return group_id in self.share.groups

    # membership

    async def join(self, group_id: str, request: JoinRequest) -> JoinResponse:
        """Handle JoinGroup; waits as long as the rebalance does. Raises SupersededError."""
        group = self.groups.get(group_id)
        if group_id in self.share.groups:
            return JoinResponse(ErrorCode.inconsistent_group_protocol, UNKNOWN_MEMBER_ID)
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            try:
                return await self.consumer.join(group, request)
            except RefusedError as refused:
                return JoinResponse(refused.error, UNKNOWN_MEMBER_ID)
        if not isinstance(group, Group):
            if request.member_id != UNKNOWN_MEMBER_ID:
                return JoinResponse(ErrorCode.unknown_member_id, request.member_id)
            former, group = group, Group(group_id=group_id, state_timestamp_ms=self._now_ms)
            is_written = former is not None or self._logs_unused_groups
            error = self.append(records_between(former, group))[1] if is_written else ErrorCode.none
            if error is not ErrorCode.none:
                return JoinResponse(error, UNKNOWN_MEMBER_ID)
        decided = membership.join(group, request, self._now_ms, self._settings)
        if decided.response is not None:
            self._carry_out(decided.decision)
            return decided.response
        response = self._joining.add(group_id, decided.waits_as)
        self._carry_out(decided.decision)
        return await response

    async def sync(self, group_id: str, request: SyncRequest) -> SyncResponse:
        """Handle SyncGroup; waits for the leader's. Raises SupersededError."""
        group = self.groups.get(group_id)
        if group is None:
            return SyncResponse(ErrorCode.unknown_member_id)
        if isinstance(group, ConsumerGroup):
            try:
                return await self.consumer.sync(group, request)
            except RefusedError as refused:
                return SyncResponse(refused.error)
        decided = membership.sync(group, request, self._now_ms, self._settings)
        if decided.response is not None:
            self._carry_out(decided.decision)
            return decided.response
        response = self._syncing.add(group_id, request.member_id)
        self._carry_out(decided.decision)
        return await response

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> ErrorCode:
        """Handle Heartbeat."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        if isinstance(group, ConsumerGroup):
            try:
                return self.consumer.classic_heartbeat(group, member_id, group_instance_id, generation)
            except RefusedError as refused:
                return refused.error
        group, error = membership.heartbeat(group, member_id, group_instance_id, generation, self._now_ms)
        self.keep(group)
        return error

    def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Handle LeaveGroup; return an error for each member."""
        group = self.groups.get(group_id)
        if group is None:
            return [ErrorCode.unknown_member_id] * len(leaving)
        if isinstance(group, ConsumerGroup):
            return self.consumer.leave(group, leaving)
        decision, errors = membership.leave(group, leaving, self._now_ms, self._settings)
        self._carry_out(decision)
        return errors

    def rebalance(self, group: Group) -> None:
        """Start a rebalance of a classic group."""
        change = Rebalance(group, self._now_ms, self._settings)
        change.begin()
        self._carry_out(change.decision())

    def fail_waiting(self, group: Group, error: ErrorCode) -> None:
        """Send an error to the waiting requests of a group that is no longer classic."""
        names = group.members
        send_responses(self._joining.take(group.group_id, {name: JoinResponse(error, name) for name in names}))
        send_responses(self._syncing.take(group.group_id, dict.fromkeys(names, SyncResponse(error))))

    def _carry_out(self, decision: GroupDecision) -> None:
        group = decision.group
        error = self.append(records_between(group, group))[1] if decision.stores_group else ErrorCode.none
        if error is not ErrorCode.none:
            # If it is an empty group's record, its last generation is loaded again when the coordinator moves.
            logger.warning("record of group %r not stored: %s", decision.group.group_id, error.name)
            decision = decision if decision.if_refused is None else decision.if_refused(error)
        joined = self._joining.take(decision.group.group_id, decision.joined)
        synced = self._syncing.take(decision.group.group_id, decision.synced)
        if error is ErrorCode.none and decision.stores_group and not self.partition.log.is_replicated:
            self.start(self._respond_when_replicated(joined, synced))
        else:
            send_responses(joined)
            send_responses(synced)
        self.keep(decision.group)

    async def _respond_when_replicated(
        self,
        joined: list[tuple[asyncio.Future[JoinResponse], JoinResponse]],
        synced: list[tuple[asyncio.Future[SyncResponse], SyncResponse]],
    ) -> None:
        error = await self.replicated()
        if error is not ErrorCode.none:
            joined = [(future, JoinResponse(error, response.member_id)) for future, response in joined]
            synced = [(future, SyncResponse(error)) for future, _ in synced]
        send_responses(joined)
        send_responses(synced)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background, as long as the shard is open."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # time

    def keep(self, group: AnyGroup) -> None:
        """Keep a group's new state in memory and set a timer for its next deadline."""
        self.groups[group.group_id] = group
        if self.deadlines.has_passed(group.group_id, group.next_deadline_ms):
            self._tick(group.group_id)

    def _tick(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            self.consumer.tick(group)
        elif group is not None:
            self._carry_out(membership.tick(group, self._now_ms, self._settings))

    # removal

    def forget_topics(self, topics: Collection[str]) -> Steps[None]:
        """Delete the offsets and the share state of all groups in deleted topics."""
        if self.share.groups:
            self.start(self.share.forget_topics(frozenset(topics)))
        yield from self.offsets.forget_topics(topics)

    def forget(self, group: AnyGroup) -> None:
        """Drop a group whose tombstone is written."""
        if isinstance(group, Group):
            group.to(GroupState.DEAD, self._now_ms)  # the result is dropped; this checks the transition
        del self.groups[group.group_id]
        self.deadlines.forget(group.group_id)

    # the log

    def append(self, records: Records, transaction: TransactionOfOffsets | None = None) -> tuple[int, ErrorCode]:
        """Append one batch; return its first offset, and the error for the client."""
        now_ms = self._now_ms
        batch = build_batch(
            records,
            timestamp_ms=now_ms,
            producer_id=-1 if transaction is None else transaction.producer_id,
            producer_epoch=-1 if transaction is None else transaction.producer_epoch,
            transactional=transaction is not None,
        )
        result = self.partition.log.append(
            batch,
            now_ms=now_ms,
            guard=None if transaction is None else transaction.guard,
            origin=AppendOrigin.COORDINATOR,
        )
        return result.base_offset, APPEND_ERRORS.get(result.error, result.error)

    async def replicated(self) -> ErrorCode:
        """Wait until everything appended so far is replicated; return the error for the client."""
        if self.partition.log.is_replicated:
            return ErrorCode.none
        error = await wait_until_replicated(self.partition, self.partition.log.log_end_offset, self._leader_epoch)
        return APPEND_ERRORS.get(error, error)
