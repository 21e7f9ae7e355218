"""What a pool needs of threads, or of tasks: a bell to wait for, and work in the background."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from dualwrite.recipes.core import blocking

Steps = Callable[[], Coroutine[Any, Any, None]]


class Bell(Protocol):
    """One thread or task waits, others ring. A ring that comes while none waits is remembered."""

    def ring(self) -> None: ...

    async def wait(self, timeout_s: float | None) -> None:
        """Wait until it rings, or the time is over."""


class Background(Protocol):
    """Work in the background of the dual writes."""

    async def join(self, timeout_s: float) -> None:
        """Wait until it has ended, `timeout_s` seconds at the most."""


class Runtime(Protocol):
    def bell(self) -> Bell: ...

    def spawn(self, name: str, steps: Steps) -> Background:
        """Carry `steps` out in the background."""


class _ThreadBell:
    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float | None) -> None:
        self._event.wait(timeout_s)
        self._event.clear()


class _BackgroundThread:
    def __init__(self, name: str, steps: Steps) -> None:
        self._thread = threading.Thread(target=lambda: blocking.run(steps()), name=name, daemon=True)
        self._thread.start()

    async def join(self, timeout_s: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


class ThreadRuntime:
    """Threads, which wait by blocking."""

    def bell(self) -> Bell:
        return _ThreadBell()

    def spawn(self, name: str, steps: Steps) -> Background:
        return _BackgroundThread(name, steps)


class _TaskBell:
    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        self._event.clear()


class _BackgroundTask:
    def __init__(self, name: str, steps: Steps) -> None:
        self._task = asyncio.get_running_loop().create_task(steps(), name=name)

    async def join(self, timeout_s: float) -> None:
        await asyncio.wait([self._task], timeout=timeout_s)
        self._task.cancel()


class TaskRuntime:
    """Tasks of the running loop."""

    def bell(self) -> Bell:
        return _TaskBell()

    def spawn(self, name: str, steps: Steps) -> Background:
        return _BackgroundTask(name, steps)
