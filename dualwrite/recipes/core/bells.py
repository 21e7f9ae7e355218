"""Events for one waiting thread or asyncio task. A ring is remembered if none waits."""

from __future__ import annotations

import asyncio
import threading


class ThreadBell:
    """A lock that is held until it rings: an Event would make one for each wait."""

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        try:  # not `suppress`, which costs three calls
            self._silence.release()
        except RuntimeError:
            return  # it has rung before

    async def wait(self, timeout_s: float | None) -> None:
        self._silence.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0))


class TaskBell:
    """A future for each wait of a task; only the thread of its loop may ring."""

    def __init__(self) -> None:
        self._has_rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._has_rung = True
        if self._waiter is not None:
            _end(self._waiter)

    async def wait(self, timeout_s: float | None) -> None:
        if not self._has_rung:
            await self._wait(timeout_s)
        self._has_rung = False

    async def _wait(self, timeout_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(timeout_s, _end, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


Bell = ThreadBell | TaskBell


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
