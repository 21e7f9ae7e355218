"""Decisions about groups with thousands of topics or partitions, which would hold up the event loop.

A group is one immutable value, so a thread can decide about it while the loop serves other requests. The decision is
only kept if the group is still the same afterwards. Heartbeats of such a group wait for each other. Changes that cannot
wait, such as the removal of a late member, come in between, and the decision is made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from dualwrite.broker_emulator.groups.consumer.group import AnyGroup, ConsumerGroup

ATTEMPTS: Final = 3
"""The number of attempts in a thread before a decision about an ever-changing group is made in one piece."""

_MANY: Final = 1000


def is_long(group: AnyGroup | None, named: int) -> bool:
    """Return whether a decision about a group and a request with this many topics or partitions takes long."""
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
        """Return whether requests of a group have to wait now."""
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
