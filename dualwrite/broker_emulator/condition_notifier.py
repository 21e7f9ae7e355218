"""Waiting, in the emulator's loop, for what tests ask about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ConditionNotifier:
    """Something that changes now and then. Both methods run in the emulator's loop."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def tell(self) -> None:
        """It has changed."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Wait until `is_reached`, which is asked again after every change."""
        while not is_reached():
            changed = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)
            await changed
