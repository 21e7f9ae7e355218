"""A barrier that any thread may open for those who wait in the emulator's loop."""

from __future__ import annotations

import asyncio
import threading


class Gate:
    """Closed until `open`; then everybody passes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[asyncio.Future[None]] = []
        self._is_open = False

    async def passed(self) -> None:
        """Wait until the gate is open."""
        with self._lock:
            if self._is_open:
                return
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
        await waiting

    def open(self) -> None:
        """Let everybody pass, now and later; harmless when it is open."""
        with self._lock:
            self._is_open = True
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            loop = future.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_let_go, future)


def _let_go(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
