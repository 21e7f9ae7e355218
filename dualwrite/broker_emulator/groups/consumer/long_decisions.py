"""Decisions about groups with thousands of topics or partitions, which would hold up the event loop.

A group is one immutable value, so a thread can decide about it while the loop serves others. The decision is kept only
if the group is still the same then. Heartbeats of such a group wait for each other; whatever cannot wait, such as the
removal of a late member, comes in between, and the decision is made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from dualwrite.broker_emulator.groups.consumer.group import AnyGroup, ConsumerGroup

ATTEMPTS: Final = 3
"""How often a decision is made in a thread before it is made in one piece, as the group changes all the time."""

_MANY: Final = 1000


def is_long(group: AnyGroup | None, named: int) -> bool:
    """Return whether a decision about a group and a request that names so many topics or partitions takes long."""
    if named > _MANY:
        return True
    if not isinstance(group, ConsumerGroup):
        return False
    matched = sum(len(found.topics) for found in group.regular_expressions.values())
    subscribed = sum(len(member.subscribed_topics) for member in group.members.values())
    return matched + subscribed + sum(map(len, group.targets.values())) > _MANY


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Turns:
    """Makes the requests of one group wait for each other, while any of them takes long."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    def __contains__(self, group_id: str) -> bool:
        """Return whether requests of a group have to wait at present."""
        return group_id in self._turns

    @asynccontextmanager
    async def of(self, group_id: str) -> AsyncIterator[None]:
        """Wait for the turn of a request."""
        turn = self._turns.setdefault(group_id, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[group_id]
