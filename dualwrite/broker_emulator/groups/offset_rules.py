"""Who may commit, delete and keep offsets, and when they expire. Pure."""

from __future__ import annotations

from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.consumer.group import ConsumerGroup
from dualwrite.broker_emulator.groups.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from dualwrite.broker_emulator.groups.group import UNKNOWN_MEMBER_ID, Group
from dualwrite.broker_emulator.groups.offset_records import CommittedOffset
from dualwrite.broker_emulator.groups.states import GroupState


class Committer(NamedTuple):
    """What a commit says about who makes it; as it is by default, it claims no membership."""

    member_id: str = UNKNOWN_MEMBER_ID
    group_instance_id: str | None = None
    generation: int = -1

    @property
    def claims_membership(self) -> bool:
        return self.generation >= 0 or self.member_id != UNKNOWN_MEMBER_ID or self.group_instance_id is not None


def commit_error(group: Group | None, committer: Committer, *, transactional: bool) -> ErrorCode:
    """Whether a commit is taken (2.5).

    A generation of an unknown group is 69, a stranger 25, a replaced static member 82, another generation 22. Without
    a generation a group must be empty; in a transaction, who claims nothing is trusted at any time, as clients before
    KIP-447 cannot say more. While members wait for their assignment an ordinary commit is 27.
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
    """Whether a commit that was taken is its member's sign of life."""
    if group is None or committer.member_id not in group.members:
        return False
    return group.is_in(GroupState.STABLE, GroupState.PREPARING_REBALANCE)


def delete_group_error(group: Group | ConsumerGroup | None) -> ErrorCode:
    """Whether a group can be deleted: only without members."""
    if group is None:
        return ErrorCode.group_id_not_found
    return ErrorCode.none if group.is_empty else ErrorCode.non_empty_group


def delete_offsets_error(group: Group | ConsumerGroup | None) -> ErrorCode:
    """Whether any of a group's offsets can be deleted (KIP-496): with members, only if what they consume is known."""
    if group is None:
        return ErrorCode.group_id_not_found
    if group.is_empty or group.protocol_type == CONSUMER_PROTOCOL_TYPE:
        return ErrorCode.none
    return ErrorCode.non_empty_group


def is_expired(
    group: Group | ConsumerGroup, topic: str, offset: CommittedOffset, now_ms: int, retention_ms: int
) -> bool:
    """Whether `offsets.retention.minutes` is over for a committed offset (KIP-211)."""
    if group.is_subscribed_to(topic):
        return False
    since_ms = offset.commit_timestamp_ms
    if isinstance(group, Group) and group.protocol_type is not None:
        if group.is_in(GroupState.EMPTY):
            since_ms = since_ms if group.state_timestamp_ms is None else group.state_timestamp_ms
        elif not group.is_in(GroupState.STABLE) or group.subscribed_topics is None:
            return False
    return now_ms - since_ms >= retention_ms
