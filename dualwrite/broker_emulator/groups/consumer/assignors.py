"""The coordinator's assignors, which give partitions to members (KIP-848). Pure.

`uniform` (the default) gives all members the same number of partitions, with as few moves as possible. `range` gives
contiguous partitions of each topic to the members in the order of their names, static ones first, so that topics with
the same number of partitions are co-assigned. Neither considers racks, like Kafka's since 4.0.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dualwrite.broker_emulator.groups.consumer.group import NOTHING, Assignment
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition, by_id_and_index

UNIFORM = "uniform"
RANGE = "range"


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    member_id: str
    instance_id: str | None
    topic_ids: frozenset[uuid.UUID]
    target: Assignment = NOTHING
    """Its partitions in the target assignment so far."""


Assignor = Callable[[Sequence[Subscriber], Mapping[uuid.UUID, int]], dict[str, Assignment]]
"""Maps the members and the number of partitions of each topic to the members' targets."""


def assign_range(members: Sequence[Subscriber], partitions: Mapping[uuid.UUID, int]) -> dict[str, Assignment]:
    """Assign contiguous partitions to members in their order; the first ones get one more if there is a remainder."""
    ordered = sorted(members, key=lambda member: (member.instance_id is None, member.instance_id or member.member_id))
    targets: dict[str, set[TopicIdPartition]] = {member.member_id: set() for member in members}
    for topic_id, count in partitions.items():
        subscribers = [member.member_id for member in ordered if topic_id in member.topic_ids]
        start = 0
        for place, member_id in enumerate(subscribers):
            end = start + count // len(subscribers) + (place < count % len(subscribers))
            targets[member_id].update(TopicIdPartition(topic_id, index) for index in range(start, end))
            start = end
    return {member_id: frozenset(target) for member_id, target in targets.items()}


def assign_uniform(members: Sequence[Subscriber], partitions: Mapping[uuid.UUID, int]) -> dict[str, Assignment]:
    """Assign as evenly as the subscriptions allow, with as few moves as possible."""
    wanted = {topic_id for member in members for topic_id in member.topic_ids} & partitions.keys()
    every = {TopicIdPartition(topic_id, index) for topic_id in wanted for index in range(partitions[topic_id])}
    kept = _kept(members, every)
    if len({member.topic_ids for member in members}) <= 1:
        return _even(kept, every)
    return _Balance(members, kept, every).result()


def _kept(members: Sequence[Subscriber], every: set[TopicIdPartition]) -> dict[str, list[TopicIdPartition]]:
    """Return the partitions that each member may keep: existing ones that it subscribes to, each only once."""
    taken: set[TopicIdPartition] = set()
    kept: dict[str, list[TopicIdPartition]] = {}
    for member in members:
        mine = [
            name
            for name in sorted(member.target, key=by_id_and_index)
            if name in every and name.topic_id in member.topic_ids and name not in taken
        ]
        taken.update(mine)
        kept[member.member_id] = mine
    return kept


def _even(kept: Mapping[str, list[TopicIdPartition]], every: set[TopicIdPartition]) -> dict[str, Assignment]:
    """Assign equal numbers to members with equal subscriptions; the members with the most get the remainder."""
    least, more = divmod(len(every), len(kept)) if kept else (0, 0)
    with_one_more = set(sorted(kept, key=lambda member_id: -len(kept[member_id]))[:more])
    targets = {name: mine[: least + (name in with_one_more)] for name, mine in kept.items()}
    taken = {name for mine in targets.values() for name in mine}
    free = deque(sorted(every - taken, key=by_id_and_index))
    for member_id, mine in targets.items():
        missing = least + (member_id in with_one_more) - len(mine)
        mine.extend(free.popleft() for _ in range(missing))
    return {member_id: frozenset(mine) for member_id, mine in targets.items()}


_Subscribers = tuple[str, ...]


class _Move(NamedTuple):
    """The move of a partition from one member to another; partitions with the same subscribers are interchangeable."""

    giver: str
    subscribers: _Subscribers
    taker: str


class _Balance:
    """Balances members with different subscriptions: free partitions go to the member with the fewest, then some move.

    Partitions move from one member to another, possibly along a chain of members, as long as that makes two members'
    numbers more even. When no such chain is left, no assignment is more even.

    Partitions with the same subscribers are interchangeable, so a search considers only one of them.
    """

    def __init__(
        self,
        members: Sequence[Subscriber],
        kept: Mapping[str, list[TopicIdPartition]],
        every: set[TopicIdPartition],
    ) -> None:
        subscribers: dict[uuid.UUID, list[str]] = {}
        for member in members:
            for topic_id in member.topic_ids:
                subscribers.setdefault(topic_id, []).append(member.member_id)
        self._subscribers = {topic_id: tuple(member_ids) for topic_id, member_ids in subscribers.items()}
        self._loads = dict.fromkeys(kept, 0)
        self._targets: dict[str, dict[_Subscribers, dict[TopicIdPartition, None]]] = {name: {} for name in kept}
        for member_id, mine in kept.items():
            for name in mine:
                self._give(member_id, name)
        taken = {name for mine in kept.values() for name in mine}
        self._assign_free(every - taken)
        while self._move_one():
            pass

    def result(self) -> dict[str, Assignment]:
        return {
            member_id: frozenset(name for names in mine.values() for name in names)
            for member_id, mine in self._targets.items()
        }

    def _give(self, member_id: str, name: TopicIdPartition) -> None:
        """Give a partition to a member; it will be the first to be taken away again."""
        mine = self._targets[member_id]
        mine.setdefault(self._subscribers[name.topic_id], {})[name] = None
        self._loads[member_id] += 1

    def _take(self, member_id: str, subscribers: _Subscribers) -> TopicIdPartition:
        """Take a partition with these subscribers away from a member."""
        mine = self._targets[member_id]
        name, _ = mine[subscribers].popitem()
        if not mine[subscribers]:
            del mine[subscribers]
        self._loads[member_id] -= 1
        return name

    def _assign_free(self, free: set[TopicIdPartition]) -> None:
        """Assign free partitions, those with the fewest subscribers first."""
        for name in sorted(free, key=lambda name: (len(self._subscribers[name.topic_id]), by_id_and_index(name))):
            self._give(min(self._subscribers[name.topic_id], key=self._loads.__getitem__), name)

    def _move_one(self) -> bool:
        """Move one partition away from a member that has too many. Return False if there is no such member."""
        moved = False
        least = min(self._loads.values(), default=0)
        for member_id in sorted(self._loads, key=self._loads.__getitem__, reverse=True):
            if self._loads[member_id] < least + 2:
                break
            for giver, subscribers, taker in self._chain_from(member_id):
                self._give(taker, self._take(giver, subscribers))
                moved = True
            if moved:
                return True
        return False

    def _chain_from(self, start: str) -> list[_Move]:
        """Return the shortest chain from a member to a member with at least two partitions fewer."""
        came_by: dict[str, _Move | None] = {start: None}
        queue = deque([start])
        while queue:
            giver = queue.popleft()
            for subscribers in self._targets[giver]:
                for taker in subscribers:
                    if taker in came_by:
                        continue
                    came_by[taker] = _Move(giver, subscribers, taker)
                    if self._loads[taker] + 2 <= self._loads[start]:
                        return _chain(came_by, taker)
                    queue.append(taker)
        return []


def _chain(came_by: Mapping[str, _Move | None], end: str) -> list[_Move]:
    """Return the moves that lead to a member, last one first: so each moves a partition that its giver had before."""
    chain: list[_Move] = []
    move = came_by[end]
    while move is not None:
        chain.append(move)
        move = came_by[move.giver]
    return chain


ASSIGNORS: Mapping[str, Assignor] = {UNIFORM: assign_uniform, RANGE: assign_range}
"""By the names that members send, the default first."""
