"""The committed offsets of one shard: commit them, check who may, delete them, and expire them with their groups.

A shell as `shard.py` is: `offsets` makes the decisions, which are stored and carried out here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups import membership
from dualwrite.broker_emulator.groups.consumer.group import AnyGroup, ConsumerGroup
from dualwrite.broker_emulator.groups.consumer.records import records_between
from dualwrite.broker_emulator.groups.consumer.service import Shard as ShardOfGroups
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition
from dualwrite.broker_emulator.groups.group import Group
from dualwrite.broker_emulator.groups.offsets import (
    MEMBER_EPOCH_VERSION,
    Committer,
    OffsetTable,
    classic_commit_error,
    consumer_commit_error,
    delete_group_error,
    is_expired,
    is_kept_alive_by_commit,
)
from dualwrite.broker_emulator.groups.records import CommittedOffset, OffsetKey, encode_offset_key, encode_offset_value
from dualwrite.broker_emulator.log.verification import VerificationGuard
from dualwrite.broker_emulator.slices import Steps
from dualwrite.broker_emulator.topics.topics import TopicPartition

if TYPE_CHECKING:
    from dualwrite.broker_emulator.share.state import ShareClusterView

Records = Sequence[tuple[bytes, bytes | None]]
_MS_PER_MINUTE: Final = 60_000
_MOST_REMOVED: Final = 2000
"""The number of offsets that one batch of tombstones removes."""


@dataclass(frozen=True, slots=True)
class TransactionOfOffsets:
    """The transaction in which offsets are committed."""

    producer_id: int
    producer_epoch: int
    guard: VerificationGuard | None


class Shard(ShardOfGroups, Protocol):
    """The shard (`shard.GroupShard`), as far as its offsets need it."""

    def append(self, records: Records, transaction: TransactionOfOffsets | None = None) -> tuple[int, ErrorCode]:
        """Append one batch; return its first offset, and the error for the client."""

    def forget(self, group: AnyGroup) -> None:
        """Drop a group whose tombstone is written."""


class ShardOffsets:
    """The offsets of one shard's groups. Deleting them deletes groups that have nothing else."""

    def __init__(self, shard: Shard, cluster: ShareClusterView, table: OffsetTable) -> None:
        self._shard = shard
        self._cluster = cluster
        self.table = table
        config = cluster.config
        self._logs_unused_groups = config.behaviours.unused_groups_are_logged
        self._has_tombstones_of_pending = config.behaviours.pending_offsets_have_tombstones
        self._keeps_unused_groups = config.behaviours.groups_outlast_their_offsets
        self._retention_ms = config.offsets_retention_minutes * _MS_PER_MINUTE

    @property
    def _now_ms(self) -> int:
        return self._cluster.clock.now_ms()

    async def commit(
        self,
        group_id: str,
        committer: Committer,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        version: int = MEMBER_EPOCH_VERSION,
    ) -> ErrorCode:
        """Commit offsets by OffsetCommit of `version`. An unknown group is created."""
        group = self._shard.groups.get(group_id)
        error = self._begin(group_id, committer, offsets, transactional=False, version=version)
        if error is not ErrorCode.none or not offsets:
            return error
        if isinstance(group, Group) and is_kept_alive_by_commit(group, committer):
            self._shard.keep(membership.sign_of_life(group, committer.member_id, self._now_ms))
        base_offset, error = self._shard.append(_offset_records(group_id, offsets))
        if error is ErrorCode.none:
            error = await self._shard.replicated()
        if error is ErrorCode.none:
            self.ensure_group(group_id)
            for delta, (name, value) in enumerate(offsets.items()):
                self.table.commit(OffsetKey(group_id, *name), value, log_offset=base_offset + delta)
        return error

    async def commit_in_transaction(
        self,
        group_id: str,
        committer: Committer,
        offsets: Mapping[TopicPartition, CommittedOffset],
        transaction: TransactionOfOffsets,
    ) -> ErrorCode:
        """Make offsets pending under the transaction's producer id. An unknown group is created."""
        error = self._begin(group_id, committer, offsets, transactional=True, version=0)
        if error is not ErrorCode.none or not offsets:
            return error
        if transaction.producer_epoch < 0:  # not verified, as open for every epoch: Kafka fails to build the batch
            return ErrorCode.unknown_server_error
        base_offset, error = self._shard.append(_offset_records(group_id, offsets), transaction)
        if error is not ErrorCode.none:
            return error
        # Pending from now on, replicated or not: a request for stable offsets must not get the older offset.
        self.ensure_group(group_id)
        for delta, (name, value) in enumerate(offsets.items()):
            key = OffsetKey(group_id, *name)
            self.table.commit_pending(transaction.producer_id, key, value, log_offset=base_offset + delta)
        return await self._shard.replicated()

    def _begin(
        self,
        group_id: str,
        committer: Committer,
        offsets: Collection[TopicPartition],
        *,
        transactional: bool,
        version: int,
    ) -> ErrorCode:
        """Check a commit. One without offsets, because all of them were refused, creates the group here."""
        group = self._shard.groups.get(group_id)
        if self._shard.has_share_group(group_id):
            return ErrorCode.group_id_not_found
        if isinstance(group, ConsumerGroup):
            topics = self._cluster.topics
            names = [TopicIdPartition(topics[name.topic].topic_id, name.partition) for name in offsets]
            error = consumer_commit_error(group, committer, names, transactional=transactional, version=version)
        else:
            error = classic_commit_error(group, committer, transactional=transactional)
        if error is ErrorCode.none and not offsets:
            self.ensure_group(group_id)
        return error

    def ensure_group(self, group_id: str) -> None:
        """Create an empty group unless the id exists."""
        if group_id not in self._shard.groups:
            self._shard.groups[group_id] = Group(group_id=group_id, state_timestamp_ms=self._now_ms)

    def delete_group(self, group_id: str) -> ErrorCode:
        """Delete a group and all its offsets (DeleteGroups)."""
        group = self._shard.groups.get(group_id)
        error = delete_group_error(group)
        if error is ErrorCode.none and group is not None:
            keys = [OffsetKey(group_id, *name) for name in self.table.partitions(group_id)]
            error = self._remove(keys, [group])
        return error

    def delete(self, group_id: str, names: Iterable[TopicPartition]) -> ErrorCode:
        """Delete some offsets of a group; offsets that do not exist are ignored."""
        deleted = set(names)
        known = dict.fromkeys(self.table.partitions(group_id))
        keys = [OffsetKey(group_id, *name) for name in known if name in deleted]
        goes = not self._keeps_unused_groups and bool(deleted) and self._is_unused(group_id, without=deleted)
        return self._remove(keys, [self._shard.groups[group_id]] if goes else [])

    def forget_topics(self, topics: Collection[str]) -> Steps[None]:
        """Delete the offsets of all groups in deleted topics."""
        keys: list[OffsetKey] = []
        for group_id in list(self.table.groups()):
            keys += [OffsetKey(group_id, *name) for name in self.table.partitions(group_id) if name.topic in topics]
            yield
        for begin in range(0, len(keys), _MOST_REMOVED):
            self._remove(keys[begin : begin + _MOST_REMOVED], [])
            yield
        if not self._keeps_unused_groups:
            self._remove([], [group for name, group in self._shard.groups.items() if self._is_unused(name)])

    def expire(self) -> None:
        """Delete offsets whose retention is over, and empty groups without offsets and open transactions."""
        keys: list[OffsetKey] = []
        emptied: list[AnyGroup] = []
        for group_id, group in self._shard.groups.items():
            committed = self.table.all_committed(group_id)
            expired = {name for name, offset in committed.items() if self._is_expired(group, name, offset)}
            keys += [OffsetKey(group_id, *name) for name in committed if name in expired]
            is_expected = self._keeps_unused_groups and isinstance(group, Group) and bool(group.pending_members)
            if self._is_unused(group_id, without=expired) and not is_expected:
                emptied.append(group)
        self._remove(keys, emptied)

    def _is_unused(self, group_id: str, *, without: Collection[TopicPartition] = ()) -> bool:
        """Return whether a group has no members, no offsets but these, and no transaction with offsets of it."""
        has_others = any(name not in without for name in self.table.all_committed(group_id))
        return not has_others and not self.table.has_transaction(group_id) and self._shard.groups[group_id].is_empty

    def _is_expired(self, group: AnyGroup, name: TopicPartition, offset: CommittedOffset) -> bool:
        if self.table.is_unstable(group.group_id, name):
            return False
        return is_expired(group, name.topic, offset, self._now_ms, self._retention_ms)

    def _remove(self, keys: Sequence[OffsetKey], groups: Sequence[AnyGroup]) -> ErrorCode:
        """Write tombstones for offsets and groups, and remove them."""
        records: list[tuple[bytes, bytes | None]] = [(encode_offset_key(key), None) for key in self._in_the_log(keys)]
        for group in groups:
            if self._logs_unused_groups or not isinstance(group, Group) or group.generation:
                records += records_between(group, None)
        base_offset, error = self._shard.append(records) if records else (-1, ErrorCode.none)
        if error is ErrorCode.none:
            for delta, key in enumerate(keys):
                self.table.commit(key, None, log_offset=base_offset + delta)
            for group in groups:
                self._shard.forget(group)
                self.table.forget_transactions(group.group_id)
        return error

    def _in_the_log(self, keys: Sequence[OffsetKey]) -> Sequence[OffsetKey]:
        """Return the offsets whose removal is written."""
        if self._has_tombstones_of_pending:
            return keys
        return [key for key in keys if self.table.committed(key.group_id, TopicPartition(*key[1:])) is not None]


def _offset_records(group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> Records:
    return [
        (encode_offset_key(OffsetKey(group_id, *name)), encode_offset_value(value)) for name, value in offsets.items()
    ]
