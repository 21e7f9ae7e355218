"""The assignors of the coordinator: who is to have which partition (KIP-848). Pure.

`uniform` (the default) gives every member as many partitions as any other, and moves as few as that takes. `range`
gives neighbouring partitions of each topic to the members in the order of their names, static ones first, so that
topics with as many partitions are assigned alike. Neither looks at racks, as Kafka's do not since 4.0.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dualwrite.broker_emulator.groups.consumer.group import NOTHING, Assignment
from dualwrite.broker_emulator.groups.consumer.topics import TopicIdPartition

UNIFORM = "uniform"
RANGE = "range"


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    member_id: str
    instance_id: str | None
    topic_ids: frozenset[uuid.UUID]
    target: Assignment = NOTHING
    """What the target assignment so far gives it."""


Assignor = Callable[[Sequence[Subscriber], Mapping[uuid.UUID, int]], dict[str, Assignment]]
"""From the members, and the number of partitions of each topic, to everybody's target."""


def assign_range(members: Sequence[Subscriber], partitions: Mapping[uuid.UUID, int]) -> dict[str, Assignment]:
    """Neighbouring partitions for members in their order; the first ones get one more where numbers are not even."""
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
    """As even as the subscriptions allow, with as few moves as that takes."""
    wanted = {topic_id for member in members for topic_id in member.topic_ids} & partitions.keys()
    every = {TopicIdPartition(topic_id, index) for topic_id in wanted for index in range(partitions[topic_id])}
    kept = _kept(members, every)
    if len({member.topic_ids for member in members}) <= 1:
        return _even(kept, every)
    return _Balance(members, kept, every).result()


def _kept(members: Sequence[Subscriber], every: set[TopicIdPartition]) -> dict[str, list[TopicIdPartition]]:
    """What each member may keep of its target: partitions that are there, that it subscribes to, each once."""
    taken: set[TopicIdPartition] = set()
    kept: dict[str, list[TopicIdPartition]] = {}
    for member in members:
        mine = [
            name
            for name in sorted(member.target)
            if name in every and name.topic_id in member.topic_ids and name not in taken
        ]
        taken.update(mine)
        kept[member.member_id] = mine
    return kept


def _even(kept: Mapping[str, list[TopicIdPartition]], every: set[TopicIdPartition]) -> dict[str, Assignment]:
    """Everybody may have everything: equal numbers. One more goes to those who have more already, to spare moves."""
    least, more = divmod(len(every), len(kept)) if kept else (0, 0)
    with_one_more = set(sorted(kept, key=lambda member_id: -len(kept[member_id]))[:more])
    targets = {name: mine[: least + (name in with_one_more)] for name, mine in kept.items()}
    taken = {name for mine in targets.values() for name in mine}
    free = deque(sorted(every - taken))
    for member_id, mine in targets.items():
        missing = least + (member_id in with_one_more) - len(mine)
        mine.extend(free.popleft() for _ in range(missing))
    return {member_id: frozenset(mine) for member_id, mine in targets.items()}


class _Balance:
    """Members with different subscriptions: what is free goes to whoever has least, then partitions are passed on.

    A partition is passed from one member to another, perhaps along a chain of members, as long as that brings two
    numbers closer together. When no chain is left that does, no other assignment is more even.
    """

    def __init__(
        self,
        members: Sequence[Subscriber],
        kept: Mapping[str, list[TopicIdPartition]],
        every: set[TopicIdPartition],
    ) -> None:
        self._members = {member.member_id: member for member in members}
        self._targets = {member_id: set(mine) for member_id, mine in kept.items()}
        self._subscribers: dict[uuid.UUID, list[str]] = {}
        for member in members:
            for topic_id in member.topic_ids:
                self._subscribers.setdefault(topic_id, []).append(member.member_id)
        taken = {name for mine in self._targets.values() for name in mine}
        self._hand_out(every - taken)
        while self._pass_on():
            pass

    def result(self) -> dict[str, Assignment]:
        return {member_id: frozenset(mine) for member_id, mine in self._targets.items()}

    def _hand_out(self, free: set[TopicIdPartition]) -> None:
        """Those first that fewest members can have."""
        for name in sorted(free, key=lambda name: (len(self._subscribers[name.topic_id]), name)):
            self._targets[min(self._subscribers[name.topic_id], key=self._load)].add(name)

    def _load(self, member_id: str) -> int:
        return len(self._targets[member_id])

    def _pass_on(self) -> bool:
        """Find somebody who has too much and pass one partition on. False where nobody has."""
        for member_id in sorted(self._members, key=self._load, reverse=True):
            chain = self._chain_from(member_id)
            if chain:
                for giver, name, taker in chain:
                    self._targets[giver].discard(name)
                    self._targets[taker].add(name)
                return True
        return False

    def _chain_from(self, start: str) -> list[tuple[str, TopicIdPartition, str]]:
        """The shortest chain from a member to one that has at least two partitions less."""
        came_by: dict[str, tuple[str, TopicIdPartition] | None] = {start: None}
        queue = deque([start])
        while queue:
            giver = queue.popleft()
            for topic_id in sorted({name.topic_id for name in self._targets[giver]}):
                name = max(name for name in self._targets[giver] if name.topic_id == topic_id)
                for taker in self._subscribers[topic_id]:
                    if taker in came_by:
                        continue
                    came_by[taker] = (giver, name)
                    if self._load(taker) + 2 <= self._load(start):
                        return _chain(came_by, taker)
                    queue.append(taker)
        return []


def _chain(
    came_by: Mapping[str, tuple[str, TopicIdPartition] | None], end: str
) -> list[tuple[str, TopicIdPartition, str]]:
    chain: list[tuple[str, TopicIdPartition, str]] = []
    step = came_by[end]
    while step is not None:
        giver, name = step
        chain.append((giver, name, end))
        end, step = giver, came_by[giver]
    return chain


ASSIGNORS: Mapping[str, Assignor] = {UNIFORM: assign_uniform, RANGE: assign_range}
"""By the names that members ask for; the first is the default."""
