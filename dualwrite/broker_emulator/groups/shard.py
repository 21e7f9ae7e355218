"""The groups of one partition of `__consumer_offsets` on the node that leads it: state, waiting requests and timers.

A thin shell: `membership` and `offsets` make the decisions about a classic group, which are stored and carried out
here. A group's state changes when its record is appended, and its members get their responses when the record is
replicated. Requests of consumer groups' members (KIP-848) are carried out by `consumer.service`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.clock import Timer
from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.groups import membership
from dualwrite.broker_emulator.groups.consumer.group import AnyGroup, ConsumerGroup
from dualwrite.broker_emulator.groups.consumer.records import records_between
from dualwrite.broker_emulator.groups.consumer.service import ConsumerGroups
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition
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
from dualwrite.broker_emulator.groups.offsets import (
    MEMBER_EPOCH_VERSION,
    Committer,
    classic_commit_error,
    consumer_commit_error,
    consumer_fetch_error,
    delete_group_error,
    delete_offsets_error,
    is_expired,
    is_kept_alive_by_commit,
)
from dualwrite.broker_emulator.groups.rebalance import GroupSettings, Rebalance
from dualwrite.broker_emulator.groups.records import CommittedOffset, OffsetKey, encode_offset_key, encode_offset_value
from dualwrite.broker_emulator.groups.replay import ReplayedGroups
from dualwrite.broker_emulator.groups.share.service import ShareGroups
from dualwrite.broker_emulator.log.partition_log import AppendOrigin
from dualwrite.broker_emulator.log.reading import replay
from dualwrite.broker_emulator.log.record_batch import build_batch
from dualwrite.broker_emulator.log.results import APPEND_ERRORS
from dualwrite.broker_emulator.log.verification import VerificationGuard
from dualwrite.broker_emulator.slices import Steps
from dualwrite.broker_emulator.topics.replication import wait_until_replicated
from dualwrite.broker_emulator.topics.topics import TopicPartition

if TYPE_CHECKING:
    from dualwrite.broker_emulator.log.record import Record
    from dualwrite.broker_emulator.log.record_batch import BatchHeader
    from dualwrite.broker_emulator.share.state import ShareClusterView
    from dualwrite.broker_emulator.topics.topics import Partition

logger = logging.getLogger(__name__)

_Records = Sequence[tuple[bytes, bytes | None]]
_MS_PER_MINUTE = 60_000
_MOST_REMOVED = 2000
"""The number of offsets that one batch of tombstones removes."""


@dataclass(frozen=True, slots=True)
class TransactionOfOffsets:
    """The transaction in which offsets are committed."""

    producer_id: int
    producer_epoch: int
    guard: VerificationGuard | None


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
        self._has_tombstones_of_pending = config.behaviours.pending_offsets_have_tombstones
        self._keeps_unused_groups = config.behaviours.groups_outlast_their_offsets
        self._settings = GroupSettings(config.group_initial_rebalance_delay_ms, config.group_max_size)
        self._retention_ms = config.offsets_retention_minutes * _MS_PER_MINUTE
        self._joining: WaitingRequests[JoinResponse] = WaitingRequests()
        self._syncing: WaitingRequests[SyncResponse] = WaitingRequests()
        self._timers: dict[str, tuple[int, Timer]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_open = True
        self.consumer = ConsumerGroups(self, cluster)
        self.share = ShareGroups(self, cluster)
        replayed = ReplayedGroups()

        def apply(header: BatchHeader, record: Record) -> None:
            if not self.share.replay(header, record):
                replayed.apply(header, record)

        replay(partition.log, apply)
        self.groups, self.offsets = replayed.groups, replayed.offsets
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
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def close(self) -> None:
        """End the shard, as the node no longer leads the partition: waiting requests get NOT_COORDINATOR."""
        self.halt()
        error = ErrorCode.not_coordinator
        send_responses([(future, JoinResponse(error, member_id)) for member_id, future in self._joining.take_all()])
        send_responses([(future, SyncResponse(error)) for _, future in self._syncing.take_all()])
        classic = (group for group in self.groups.values() if isinstance(group, Group))
        self.groups = {group.group_id: group.to(GroupState.DEAD, self._now_ms) for group in classic}

    def has_other_group(self, group_id: str) -> bool:
        """Return whether a group other than a share group has this id."""
        return group_id in self.groups

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
        error = self._append_group(decision.group) if decision.stores_group else ErrorCode.none
        if error is not ErrorCode.none:
            # If it is an empty group's record, its last generation is loaded again when the coordinator moves.
            logger.warning("record of group %r not stored: %s", decision.group.group_id, error.name)
            decision = decision if decision.if_refused is None else decision.if_refused(error)
        joined = self._joining.take(decision.group.group_id, decision.joined)
        synced = self._syncing.take(decision.group.group_id, decision.synced)
        if error is ErrorCode.none and decision.stores_group and not self.is_replicated:
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
        due_ms = group.next_deadline_ms
        armed = self._timers.get(group.group_id)
        if due_ms is None or (armed is not None and armed[0] <= due_ms):
            return  # an early timer finds nothing due and is set again
        if armed is not None:
            armed[1].cancel()
            del self._timers[group.group_id]
        delay_ms = due_ms - self._now_ms
        if delay_ms <= 0:
            self._tick(group.group_id)
        else:
            timer = self._cluster.clock.call_later(delay_ms, lambda: self._timer_fired(group.group_id))
            self._timers[group.group_id] = (due_ms, timer)

    def _timer_fired(self, group_id: str) -> None:
        del self._timers[group_id]
        self._tick(group_id)

    def tick_later(self, group_id: str, delay_ms: int) -> None:
        """Check a group's deadlines again after `delay_ms`, but not earlier."""
        _, armed = self._timers.pop(group_id, (0, None))
        if armed is not None:
            armed.cancel()
        timer = self._cluster.clock.call_later(delay_ms, lambda: self._timer_fired(group_id))
        self._timers[group_id] = (self._now_ms + delay_ms, timer)

    def _tick(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            self.consumer.tick(group)
        elif group is not None:
            self._carry_out(membership.tick(group, self._now_ms, self._settings))

    # offsets

    async def commit(
        self,
        group_id: str,
        committer: Committer,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        version: int = MEMBER_EPOCH_VERSION,
    ) -> ErrorCode:
        """Commit offsets by OffsetCommit of `version`. An unknown group is created."""
        group = self.groups.get(group_id)
        error = self._commit_error(group_id, committer, offsets, transactional=False, version=version)
        if error is ErrorCode.none and not offsets:  # all of them were refused, which also creates the group
            self.ensure_group(group_id)
        if error is not ErrorCode.none or not offsets:
            return error
        if isinstance(group, Group) and is_kept_alive_by_commit(group, committer):
            self.keep(membership.sign_of_life(group, committer.member_id, self._now_ms))
        base_offset, error = self.append(_offset_records(group_id, offsets))
        if error is ErrorCode.none and not self.is_replicated:
            error = await self.replicated()
        if error is ErrorCode.none:
            self.ensure_group(group_id)
            for delta, (name, value) in enumerate(offsets.items()):
                self.offsets.commit(OffsetKey(group_id, *name), value, log_offset=base_offset + delta)
        return error

    async def commit_in_transaction(
        self,
        group_id: str,
        committer: Committer,
        offsets: Mapping[TopicPartition, CommittedOffset],
        transaction: TransactionOfOffsets,
    ) -> ErrorCode:
        """Make offsets pending under the transaction's producer id. An unknown group is created."""
        error = self._commit_error(group_id, committer, offsets, transactional=True, version=0)
        if error is ErrorCode.none and not offsets:
            self.ensure_group(group_id)
        if error is not ErrorCode.none or not offsets:
            return error
        if transaction.producer_epoch < 0:  # not verified, as open for every epoch: Kafka fails to build the batch
            return ErrorCode.unknown_server_error
        base_offset, error = self.append(_offset_records(group_id, offsets), transaction)
        if error is not ErrorCode.none:
            return error
        # Pending from now on, replicated or not: a request for stable offsets must not get the older offset.
        self.ensure_group(group_id)
        for delta, (name, value) in enumerate(offsets.items()):
            key = OffsetKey(group_id, *name)
            self.offsets.commit_pending(transaction.producer_id, key, value, log_offset=base_offset + delta)
        return ErrorCode.none if self.is_replicated else await self.replicated()

    def _commit_error(
        self,
        group_id: str,
        committer: Committer,
        offsets: Iterable[TopicPartition],
        *,
        transactional: bool,
        version: int,
    ) -> ErrorCode:
        group = self.groups.get(group_id)
        if group_id in self.share.groups:
            return ErrorCode.group_id_not_found
        if not isinstance(group, ConsumerGroup):
            return classic_commit_error(group, committer, transactional=transactional)
        topics = self._cluster.topics
        names = [TopicIdPartition(topics[name.topic].topic_id, name.partition) for name in offsets]
        return consumer_commit_error(group, committer, names, transactional=transactional, version=version)

    def fetch_error(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Check the membership that an OffsetFetch claims; classic groups return offsets to any client."""
        group = self.groups.get(group_id)
        return (
            consumer_fetch_error(group, member_id, member_epoch) if isinstance(group, ConsumerGroup) else ErrorCode.none
        )

    def ensure_group(self, group_id: str) -> None:
        """Create an empty group unless the id exists."""
        if group_id not in self.groups:
            self.groups[group_id] = Group(group_id=group_id, state_timestamp_ms=self._now_ms)

    # removal

    def delete_group(self, group_id: str) -> ErrorCode:
        """Delete a group and all its offsets (DeleteGroups)."""
        group = self.groups.get(group_id)
        error = delete_group_error(group)
        if error is ErrorCode.none and group is not None:
            keys = [OffsetKey(group_id, *name) for name in self.offsets.partitions(group_id)]
            error = self._remove(keys, [group])
        return error

    def delete_offsets_error(self, group_id: str) -> ErrorCode:
        """Check that offsets of the group can be deleted (OffsetDelete)."""
        return delete_offsets_error(self.groups.get(group_id))

    def delete_offsets(self, group_id: str, names: Iterable[TopicPartition]) -> ErrorCode:
        """Delete some offsets of a group; offsets that do not exist are ignored."""
        deleted = set(names)
        known = dict.fromkeys(self.offsets.partitions(group_id))
        keys = [OffsetKey(group_id, *name) for name in known if name in deleted]
        goes = not self._keeps_unused_groups and bool(deleted) and self._is_unused(group_id, without=deleted)
        return self._remove(keys, [self.groups[group_id]] if goes else [])

    def forget_topics(self, topics: Collection[str]) -> Steps[None]:
        """Delete the offsets and the share state of all groups in deleted topics."""
        if self.share.groups:
            self.start(self.share.forget_topics(frozenset(topics)))
        keys: list[OffsetKey] = []
        for group_id in list(self.offsets.groups()):
            keys += [OffsetKey(group_id, *name) for name in self.offsets.partitions(group_id) if name.topic in topics]
            yield
        for begin in range(0, len(keys), _MOST_REMOVED):
            self._remove(keys[begin : begin + _MOST_REMOVED], [])
            yield
        if not self._keeps_unused_groups:
            self._remove([], [group for name, group in self.groups.items() if self._is_unused(name)])

    def expire(self) -> None:
        """Delete offsets whose retention is over, and empty groups without offsets and open transactions."""
        keys: list[OffsetKey] = []
        emptied: list[AnyGroup] = []
        for group_id, group in self.groups.items():
            committed = self.offsets.all_committed(group_id)
            expired = {name for name, offset in committed.items() if self._is_expired(group, name, offset)}
            keys += [OffsetKey(group_id, *name) for name in committed if name in expired]
            is_expected = self._keeps_unused_groups and isinstance(group, Group) and bool(group.pending_members)
            if self._is_unused(group_id, without=expired) and not is_expected:
                emptied.append(group)
        self._remove(keys, emptied)

    def _is_unused(self, group_id: str, *, without: Collection[TopicPartition] = ()) -> bool:
        """Return whether a group has no members, no offsets but these, and no transaction with offsets of it."""
        has_others = any(name not in without for name in self.offsets.all_committed(group_id))
        return not has_others and not self.offsets.has_transaction(group_id) and self.groups[group_id].is_empty

    def _is_expired(self, group: AnyGroup, name: TopicPartition, offset: CommittedOffset) -> bool:
        if self.offsets.is_unstable(group.group_id, name):
            return False
        return is_expired(group, name.topic, offset, self._now_ms, self._retention_ms)

    def _remove(self, keys: Sequence[OffsetKey], groups: Sequence[AnyGroup]) -> ErrorCode:
        """Write tombstones for offsets and groups, and remove them."""
        records: list[tuple[bytes, bytes | None]] = [(encode_offset_key(key), None) for key in self._in_the_log(keys)]
        for group in groups:
            if self._logs_unused_groups or not isinstance(group, Group) or group.generation:
                records += records_between(group, None)
        base_offset, error = self.append(records) if records else (-1, ErrorCode.none)
        if error is ErrorCode.none:
            for delta, key in enumerate(keys):
                self.offsets.commit(key, None, log_offset=base_offset + delta)
            for group in groups:
                self._forget_group(group)
        return error

    def _in_the_log(self, keys: Sequence[OffsetKey]) -> Sequence[OffsetKey]:
        """Return the offsets whose removal is written."""
        if self._has_tombstones_of_pending:
            return keys
        return [key for key in keys if self.offsets.committed(key.group_id, TopicPartition(*key[1:])) is not None]

    def _forget_group(self, group: AnyGroup) -> None:
        if isinstance(group, Group):
            group.to(GroupState.DEAD, self._now_ms)  # the result is dropped; this checks the transition
        del self.groups[group.group_id]
        self.offsets.forget_transactions(group.group_id)
        _, timer = self._timers.pop(group.group_id, (0, None))
        if timer is not None:
            timer.cancel()

    # the log

    def _append_group(self, group: Group) -> ErrorCode:
        return self.append(records_between(group, group))[1]

    def append(self, records: _Records, transaction: TransactionOfOffsets | None = None) -> tuple[int, ErrorCode]:
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

    @property
    def is_replicated(self) -> bool:
        """Whether everything appended so far is replicated."""
        log = self.partition.log
        return log.high_watermark >= log.log_end_offset

    async def replicated(self) -> ErrorCode:
        """Wait until everything appended so far is replicated; return the error for the client."""
        error = await wait_until_replicated(self.partition, self.partition.log.log_end_offset, self._leader_epoch)
        return APPEND_ERRORS.get(error, error)


def _offset_records(group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> _Records:
    return [
        (encode_offset_key(OffsetKey(group_id, *name)), encode_offset_value(value)) for name, value in offsets.items()
    ]
