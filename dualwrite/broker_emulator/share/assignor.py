"""The assignor `simple`: members share partitions only if there are more members than partitions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from dualwrite.broker_emulator.groups.consumer.group import Assignment
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition


class Subscriber(NamedTuple):
    """A member as the assignor sees it."""

    member_id: str
    topic_ids: frozenset[UUID]
    target: Assignment
    """The partitions that it has now."""


def assign_simply(members: Sequence[Subscriber], partitions: Assignment) -> dict[str, Assignment]:
    """Assign every partition to as few members as possible so that each member has one, evenly and with few moves.

    Members with the same subscription share its topics among them, independently of members with other subscriptions.
    """
    targets: dict[str, Assignment] = {}
    by_subscription: dict[frozenset[UUID], list[Subscriber]] = {}
    for member in members:
        by_subscription.setdefault(member.topic_ids, []).append(member)
    for topic_ids, alike in by_subscription.items():
        subscribed = sorted(name for name in partitions if name.topic_id in topic_ids)
        targets |= _share(alike, subscribed)
    return targets


def _share(members: Sequence[Subscriber], partitions: Sequence[TopicIdPartition]) -> dict[str, Assignment]:
    targets: dict[str, set[TopicIdPartition]] = {member.member_id: set() for member in members}
    if partitions:
        owners = -(-len(members) // len(partitions))
        _keep(members, partitions, owners, targets)
        _fill(partitions, owners, targets)
    return {member_id: frozenset(target) for member_id, target in targets.items()}


def _keep(
    members: Sequence[Subscriber],
    partitions: Sequence[TopicIdPartition],
    owners: int,
    targets: Mapping[str, set[TopicIdPartition]],
) -> None:
    """Let members keep their partitions, up to their fair part and up to `owners` members per partition."""
    part, more = divmod(owners * len(partitions), len(members))
    free = dict.fromkeys(partitions, owners)
    for member in members:
        limit = part + (more > 0)
        for name in sorted(member.target):
            if free.get(name) and len(targets[member.member_id]) < limit:
                targets[member.member_id].add(name)
                free[name] -= 1
        more -= len(targets[member.member_id]) > part


def _fill(partitions: Sequence[TopicIdPartition], owners: int, targets: Mapping[str, set[TopicIdPartition]]) -> None:
    """Give the remaining partitions to the members with the fewest."""
    for name in partitions:
        missing = owners - sum(name in target for target in targets.values())
        others = [target for target in targets.values() if name not in target]
        for target in sorted(others, key=len)[: max(missing, 0)]:
            target.add(name)
