"""Changes of topics and settings, one after the other, as Kafka's controller makes them.

A request makes its changes slice by slice, and the next request waits for its turn (`async with changes`). A caller
that cannot wait, such as a test in the same process, finishes the running change at once and makes its own in one
piece. So no change ever meets a half-made one.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, TypeVar

from dualwrite.broker_emulator.slices import Steps, Work

R = TypeVar("R")


class Changes:
    """The changes of one cluster."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._under_way: Work[Any] | None = None

    async def __aenter__(self) -> None:
        await self._turn.acquire()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._turn.release()

    async def make(self, steps: Steps[R]) -> R:
        """Make one change slice by slice, inside `async with`, and return its result."""
        work = Work(steps)
        self._under_way = work
        try:
            return await work.done_in_slices()
        finally:
            self._under_way = None

    def make_at_once(self, steps: Steps[R]) -> R:
        """Make one change in one piece, after finishing the running one, and return its result."""
        if self._under_way is not None:
            self._under_way.finish()
        return Work(steps).done_at_once()
