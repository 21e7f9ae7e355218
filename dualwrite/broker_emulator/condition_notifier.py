"""Waiting, in the emulator's loop, for conditions that tests define."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ConditionNotifier:
    """State that changes, and the tasks that wait for a condition on it. Runs in the emulator's loop."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        """Make every waiting task check its condition again; call after a change."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Wait until `is_reached` returns true; it is called again after every change."""
        while not is_reached():
            changed = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)
            await changed
