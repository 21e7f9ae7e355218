"""Tasks that take turns under one transactional id."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from dualwrite.recipes.core.coordinator import DualWriteCoordinator


class AwaitedTurns:
    """Who uses the id of `writes` next, in the order of asking; for the tasks of one loop."""

    def __init__(self, writes: DualWriteCoordinator, timeout_ms: int | None) -> None:
        self._writes = writes
        self._timeout_s = None if timeout_ms is None else timeout_ms / 1000
        self._user: asyncio.Task[Any] | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """`DualWriteCoordinator.exclusively`, which waits for nobody; who waits in turn hears when it is over."""
        try:
            with self._writes.exclusively():
                self._user = asyncio.current_task()
                try:
                    yield
                finally:
                    self._user = None
        finally:
            if self._user is None:
                self._wake_next()

    @asynccontextmanager
    async def in_turn(self) -> AsyncIterator[None]:
        """`DualWriteCoordinator.in_turn`, for a task. Raises IllegalStateError where its turn does not come in time."""
        if self._user is not None and self._user is asyncio.current_task():
            raise self._writes.not_its_turn("task", is_mine=True)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._wait()
        except TimeoutError:
            raise self._writes.not_its_turn("task", is_mine=False) from None
        with self.exclusively():
            yield

    async def _wait(self) -> None:
        was_waiting = False
        while self._user is not None or (self._waiting and not was_waiting):
            turn = asyncio.get_running_loop().create_future()
            (self._waiting.appendleft if was_waiting else self._waiting.append)(turn)
            try:
                await turn
            except BaseException:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                elif self._user is None:
                    self._wake_next()  # the turn was given to this one, which does not take it
                raise
            was_waiting = True

    def _wake_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
