"""JoinGroups and SyncGroups that wait for their answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class SupersededError(Exception):
    """A newer request of the same member took a waiting one's place: nobody is there any more to be answered."""


class WaitingRequests(Generic[Answer]):
    """At most one waiting request of each member of each group."""

    def __init__(self) -> None:
        self._futures: dict[tuple[str, str], asyncio.Future[Answer]] = {}

    def add(self, group_id: str, member_id: str) -> asyncio.Future[Answer]:
        """Wait as a member. Raises SupersededError in whoever waits as this member already."""
        superseded = self._futures.get((group_id, member_id))
        if superseded is not None and not superseded.done():
            superseded.set_exception(SupersededError(f"a newer request of member {member_id!r} of group {group_id!r}"))
        future = self._futures[(group_id, member_id)] = asyncio.get_running_loop().create_future()
        return future

    def take(self, group_id: str, answers: Mapping[str, Answer]) -> list[tuple[asyncio.Future[Answer], Answer]]:
        """Those of the members that wait, with their answers; they are no longer known here."""
        futures = ((self._futures.pop((group_id, member_id), None), answer) for member_id, answer in answers.items())
        return [(future, answer) for future, answer in futures if future is not None]

    def take_all(self) -> list[tuple[str, asyncio.Future[Answer]]]:
        """Everybody who waits, with their member ids."""
        waiting = [(member_id, future) for (_, member_id), future in self._futures.items()]
        self._futures.clear()
        return waiting


def answer_all(answered: list[tuple[asyncio.Future[Answer], Answer]]) -> None:
    """Give the answers to those who still wait."""
    for future, answer in answered:
        if not future.done():
            future.set_result(answer)
