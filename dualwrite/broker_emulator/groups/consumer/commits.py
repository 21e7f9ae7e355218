"""Which commits and fetches of offsets a consumer group takes from whom (KIP-848, KIP-1251). Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.groups.consumer.group import ConsumerGroup, ConsumerMember
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition
from dualwrite.broker_emulator.groups.group import UNKNOWN_MEMBER_ID
from dualwrite.broker_emulator.groups.offset_rules import Committer

MEMBER_EPOCH_VERSION = 9
"""OffsetCommit from this version on knows member epochs."""


def commit_error(
    group: ConsumerGroup,
    committer: Committer,
    partitions: Iterable[TopicIdPartition],
    *,
    transactional: bool,
    version: int,
) -> ErrorCode:
    """Whether a commit is taken, which is decided for all of its partitions together.

    A stranger is 25, a member's epoch that is to come 113 (22 for members of the classic protocol). An older one is
    taken for partitions that the member has had since then and still has, or has not given up yet (KIP-1251): it may
    not know of its new epoch. Without members anybody may commit who claims no epoch, in a transaction also with
    members, who claims nothing at all.
    """
    if committer.generation < 0 and group.is_empty:
        return ErrorCode.none
    if transactional and not committer.claims_membership:
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
    """The epoch since which a member has a partition; later than any where it does not."""
    not_owned = 2**31
    return member.assigned.get(name, member.revoking.get(name, not_owned))


def _stale(member: ConsumerMember) -> ErrorCode:
    return ErrorCode.illegal_generation if member.is_classic else ErrorCode.stale_member_epoch


def fetch_error(group: ConsumerGroup, member_id: str | None, member_epoch: int) -> ErrorCode:
    """Whether offsets are told: to everybody who claims no membership, and to members with their present epoch."""
    if member_id is None and member_epoch < 0:
        return ErrorCode.none
    member = group.members.get(member_id or UNKNOWN_MEMBER_ID)
    if member is None:
        return ErrorCode.unknown_member_id
    return ErrorCode.none if member_epoch == member.member_epoch else _stale(member)
