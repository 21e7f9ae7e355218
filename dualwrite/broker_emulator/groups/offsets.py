"""Offsets of groups: rules for commits, fetches and deletions, their expiry, and their table. Pure.

Groups of the classic protocol and consumer groups (KIP-848, KIP-1251) have separate rules for commits.

`OffsetTable` has the offsets of one `__consumer_offsets` partition, rebuilt by replaying the partition's records.
Offsets committed inside a transaction are pending under their producer id until its marker is written: a COMMIT marker
makes them committed unless there are newer ones, an ABORT marker drops them (KIP-98; Kafka keeps them by producer id,
not by epoch). A tombstone removes both kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.consumer.group import ConsumerGroup, ConsumerMember
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition
from dualwrite.broker_emulator.groups.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from dualwrite.broker_emulator.groups.group import UNKNOWN_MEMBER_ID, Group, GroupState
from dualwrite.broker_emulator.groups.records import CommittedOffset, OffsetKey
from dualwrite.broker_emulator.topics.topics import TopicPartition

MEMBER_EPOCH_VERSION = 9
"""The version of OffsetCommit from which it has member epochs."""


class Committer(NamedTuple):
    """The member that a commit claims to come from; the defaults claim no membership."""

    member_id: str = UNKNOWN_MEMBER_ID
    group_instance_id: str | None = None
    generation: int = -1

    @property
    def claims_membership(self) -> bool:
        return self.generation >= 0 or self.member_id != UNKNOWN_MEMBER_ID or self.group_instance_id is not None


def classic_commit_error(group: Group | None, committer: Committer, *, transactional: bool) -> ErrorCode:
    """Check a commit to a classic group.

    A generation of an unknown group gets 69, an unknown member 25, a replaced static member 82, another generation 22.
    A commit without a generation needs an empty group. In a transaction, a commit that claims no membership is always
    accepted, as clients before KIP-447 do not send one. While members wait for their assignment, a commit outside of a
    transaction gets 27.
    """
    if group is None:
        return ErrorCode.none if committer.generation < 0 else ErrorCode.group_id_not_found
    if committer.generation < 0 and group.is_in(GroupState.EMPTY):
        return ErrorCode.none
    if committer.claims_membership:
        error = group.member_error(committer.member_id, committer.group_instance_id)
        if error is not ErrorCode.none:
            return error
        if committer.generation != group.generation:
            return ErrorCode.illegal_generation
    elif not transactional:
        return ErrorCode.unknown_member_id
    waits = group.is_in(GroupState.COMPLETING_REBALANCE) and not transactional
    return ErrorCode.rebalance_in_progress if waits else ErrorCode.none


def is_kept_alive_by_commit(group: Group | None, committer: Committer) -> bool:
    """Return whether an accepted commit restarts its member's session timeout."""
    if group is None or committer.member_id not in group.members:
        return False
    return group.is_in(GroupState.STABLE, GroupState.PREPARING_REBALANCE)


def consumer_commit_error(
    group: ConsumerGroup,
    committer: Committer,
    partitions: Iterable[TopicIdPartition],
    *,
    transactional: bool,
    version: int,
) -> ErrorCode:
    """Check a commit to a consumer group, for all of its partitions together.

    An unknown member gets 25, an epoch that the member has not reached 113 (22 for members of the classic protocol). An
    older epoch is accepted for partitions that the member has had since then and has not revoked (KIP-1251), as it may
    not know its new epoch yet. A commit without an epoch is accepted if the group has no members. In a transaction, a
    commit that claims nothing is accepted even if the group has members, and only -1 claims no epoch.
    """
    if committer.generation < 0 and group.is_empty:
        return ErrorCode.none
    if transactional and committer == Committer():
        return ErrorCode.none
    member = group.members.get(committer.member_id)
    if member is None:
        return ErrorCode.unknown_member_id
    if not transactional and not member.is_classic and version < MEMBER_EPOCH_VERSION:
        return ErrorCode.unsupported_version
    if committer.generation == member.member_epoch:
        return ErrorCode.none
    if committer.generation > member.member_epoch:
        return _stale(member)
    had_it_then = all(_owned_since(member, name) <= committer.generation for name in partitions)
    return ErrorCode.none if had_it_then else _stale(member)


def _owned_since(member: ConsumerMember, name: TopicIdPartition) -> int:
    """Return the epoch since which a member has a partition; for other partitions, one later than any epoch."""
    not_owned = 2**31
    return member.assigned.get(name, member.revoking.get(name, not_owned))


def _stale(member: ConsumerMember) -> ErrorCode:
    return ErrorCode.illegal_generation if member.is_classic else ErrorCode.stale_member_epoch


def fetch_error(group: Group | ConsumerGroup | None, member_id: str | None, member_epoch: int) -> ErrorCode:
    """Check an OffsetFetch from a consumer group: without claimed membership, or with a member's current epoch.

    Classic groups return offsets to any client.
    """
    if not isinstance(group, ConsumerGroup) or (member_id is None and member_epoch < 0):
        return ErrorCode.none
    member = group.members.get(member_id or UNKNOWN_MEMBER_ID)
    if member is None:
        return ErrorCode.unknown_member_id
    return ErrorCode.none if member_epoch == member.member_epoch else _stale(member)


def delete_group_error(group: Group | ConsumerGroup | None) -> ErrorCode:
    """Check that a group can be deleted: it must have no members."""
    if group is None:
        return ErrorCode.group_id_not_found
    return ErrorCode.none if group.is_empty else ErrorCode.non_empty_group


def delete_offsets_error(group: Group | ConsumerGroup | None) -> ErrorCode:
    """Check that a group's offsets can be deleted (KIP-496): if it has members, their topics must be known."""
    if group is None:
        return ErrorCode.group_id_not_found
    if group.is_empty or group.protocol_type == CONSUMER_PROTOCOL_TYPE:
        return ErrorCode.none
    return ErrorCode.non_empty_group


def is_expired(
    group: Group | ConsumerGroup, topic: str, offset: CommittedOffset, now_ms: int, retention_ms: int
) -> bool:
    """Return whether a committed offset is older than `offsets.retention.minutes` (KIP-211)."""
    if group.is_subscribed_to(topic):
        return False
    since_ms = offset.commit_timestamp_ms
    if isinstance(group, Group) and group.protocol_type is not None:
        if group.is_in(GroupState.EMPTY):
            since_ms = since_ms if group.state_timestamp_ms is None else group.state_timestamp_ms
        elif not group.is_in(GroupState.STABLE) or group.subscribed_topics is None:
            return False
    return now_ms - since_ms >= retention_ms


class _Stored(NamedTuple):
    log_offset: int
    value: CommittedOffset


class GroupOffsets:
    """The offsets of one group at one moment, unaffected by later changes of the table."""

    __slots__ = ("_committed", "_open")

    def __init__(self, committed: Mapping[TopicPartition, _Stored], unstable: Iterable[TopicPartition]) -> None:
        self._committed = dict(committed)
        self._open = frozenset(unstable)

    def committed(self, topic_partition: TopicPartition) -> CommittedOffset | None:
        """Return the committed offset, or None."""
        stored = self._committed.get(topic_partition)
        return None if stored is None else stored.value

    def is_unstable(self, topic_partition: TopicPartition) -> bool:
        """Return whether any transaction has a pending offset for this partition (KIP-447)."""
        return topic_partition in self._open

    def partitions(self) -> Iterable[TopicPartition]:
        """Return every partition with a committed offset."""
        return self._committed.keys()


class OffsetTable:
    """The offsets of the groups that belong to one partition of `__consumer_offsets`."""

    __slots__ = ("_committed", "_groups_of", "_open", "_pending", "_transactions")

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, _Stored]] = {}
        self._pending: dict[int, dict[OffsetKey, _Stored]] = {}
        self._open: dict[str, dict[TopicPartition, set[int]]] = {}
        """By group and partition, the producers with a pending offset."""
        self._transactions: dict[str, set[int]] = {}
        """By group, the producers whose transaction has had a pending offset of the group, deleted or not."""
        self._groups_of: dict[int, set[str]] = {}
        """The same by producer."""

    def commit(self, key: OffsetKey, value: CommittedOffset | None, *, log_offset: int) -> None:
        """Apply a record outside of transactions; None is a tombstone."""
        if value is None:
            self._remove(key)
        else:
            self._put(key, _Stored(log_offset, value))

    def commit_pending(self, producer_id: int, key: OffsetKey, value: CommittedOffset, *, log_offset: int) -> None:
        """Apply a record inside the producer's transaction."""
        self._pending.setdefault(producer_id, {})[key] = _Stored(log_offset, value)
        self._open.setdefault(key.group_id, {}).setdefault(_partition(key), set()).add(producer_id)
        self._transactions.setdefault(key.group_id, set()).add(producer_id)
        self._groups_of.setdefault(producer_id, set()).add(key.group_id)

    def complete_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Commit or drop the producer's pending offsets after its marker was written."""
        for group_id in self._groups_of.pop(producer_id, ()):
            producers = self._transactions[group_id]
            producers.discard(producer_id)
            if not producers:
                del self._transactions[group_id]
        for key, stored in self._pending.pop(producer_id, {}).items():
            self._close(key, producer_id)
            if commit:
                self._put(key, stored)

    def _put(self, key: OffsetKey, stored: _Stored) -> None:
        """Store an offset unless the current one is later in the log: transactions complete in any order."""
        offsets = self._committed.setdefault(key.group_id, {})
        current = offsets.get(_partition(key))
        if current is None or stored.log_offset > current.log_offset:
            offsets[_partition(key)] = stored

    def _remove(self, key: OffsetKey) -> None:
        name = _partition(key)
        offsets = self._committed.get(key.group_id, {})
        offsets.pop(name, None)
        if not offsets:
            self._committed.pop(key.group_id, None)
        for producer_id in tuple(self._open.get(key.group_id, {}).get(name, ())):
            del self._pending[producer_id][key]
            self._close(key, producer_id)

    def _close(self, key: OffsetKey, producer_id: int) -> None:
        partitions = self._open[key.group_id]
        producers = partitions[_partition(key)]
        producers.discard(producer_id)
        if not producers:
            del partitions[_partition(key)]
        if not partitions:
            del self._open[key.group_id]

    def of_group(self, group_id: str) -> GroupOffsets:
        """Return the current offsets of a group, quickly for any number of them."""
        return GroupOffsets(self._committed.get(group_id, {}), self._open.get(group_id, {}))

    def committed(self, group_id: str, topic_partition: TopicPartition) -> CommittedOffset | None:
        """Return the committed offset, or None."""
        stored = self._committed.get(group_id, {}).get(topic_partition)
        return None if stored is None else stored.value

    def is_unstable(self, group_id: str, topic_partition: TopicPartition) -> bool:
        """Return whether any transaction has a pending offset for this partition of the group (KIP-447)."""
        return topic_partition in self._open.get(group_id, {})

    def has_transaction(self, group_id: str) -> bool:
        """Return whether an open transaction has committed offsets of the group."""
        return group_id in self._transactions

    def forget_transactions(self, group_id: str) -> None:
        """Forget in which transactions offsets of a deleted group were committed."""
        for producer_id in self._transactions.pop(group_id, ()):
            self._groups_of[producer_id].discard(group_id)

    def all_committed(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        """Return every committed offset of the group."""
        return {name: stored.value for name, stored in self._committed.get(group_id, {}).items()}

    def partitions(self, group_id: str) -> Iterator[TopicPartition]:
        """Return every partition for which the group has an offset, committed or pending."""
        return iter({**dict.fromkeys(self._committed.get(group_id, {})), **dict.fromkeys(self._open.get(group_id, {}))})

    def groups(self) -> Iterator[str]:
        """Return every group with an offset, committed or pending."""
        return iter({**dict.fromkeys(self._committed), **dict.fromkeys(self._open)})


def _partition(key: OffsetKey) -> TopicPartition:
    return TopicPartition(key.topic, key.partition)
