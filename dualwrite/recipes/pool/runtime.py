"""The thread and asyncio primitives of a pool: a bell to wait for, and background work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from dualwrite.recipes.core import blocking

Steps = Callable[[], Coroutine[Any, Any, None]]


class Bell(Protocol):
    """An event for one waiting thread or task. A ring is remembered if none waits."""

    def ring(self) -> None: ...

    async def wait(self, timeout_s: float | None) -> None:
        """Wait until it rings or the time is over."""


class Background(Protocol):
    """Work that runs in the background of the dual writes."""

    async def join(self, timeout_s: float) -> None:
        """Wait until it has ended, at most `timeout_s` seconds."""


class Runtime(Protocol):
    def bell(self) -> Bell: ...

    def spawn(self, name: str, steps: Steps) -> Background:
        """Run `steps` in the background."""


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
    """A runtime on threads, which wait by blocking."""

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
    """A runtime on tasks of the running event loop."""

    def bell(self) -> Bell:
        return _TaskBell()

    def spawn(self, name: str, steps: Steps) -> Background:
        return _BackgroundTask(name, steps)
