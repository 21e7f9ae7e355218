"""The thread and asyncio primitives of a pool: a bell to wait for, and background work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

from dualwrite.recipes.core import blocking

Steps = Callable[[], Coroutine[Any, Any, None]]

_SECONDS_TO_CLEAN_UP: Final = 1.0
"""How long a cancelled task may take to roll back; a database that hangs holds it up."""


class Bell(Protocol):
    """An event for one waiting thread or task. A ring is remembered if none waits."""

    def ring(self) -> None: ...

    async def wait(self, timeout_s: float | None) -> None:
        """Wait until it rings or the time is over."""


class Background(Protocol):
    """Work that runs in the background of the dual writes."""

    async def join(self, timeout_s: float) -> None:
        """Wait until it has ended, at most `timeout_s` seconds. A task is cancelled then; a thread goes on."""


class Runtime(Protocol):
    def bell(self) -> Bell: ...

    def lock(self) -> AbstractAsyncContextManager[object]:
        """Return a lock, for an `async with` in one thread or task at a time."""

    def spawn(self, name: str, steps: Steps) -> Background:
        """Run `steps` in the background."""


class _ThreadBell:
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


class _ThreadLock:
    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *how: object) -> None:
        self._lock.release()


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

    def lock(self) -> AbstractAsyncContextManager[object]:
        return _ThreadLock()

    def spawn(self, name: str, steps: Steps) -> Background:
        return _BackgroundThread(name, steps)


class _TaskBell:
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


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class _BackgroundTask:
    def __init__(self, name: str, steps: Steps) -> None:
        self._task = asyncio.get_running_loop().create_task(steps(), name=name)

    async def join(self, timeout_s: float) -> None:
        if self._task.get_loop() is not asyncio.get_running_loop():
            return  # that loop has ended, and the task with it, or is not run while this one is
        await asyncio.wait([self._task], timeout=timeout_s)
        self._task.cancel()
        await asyncio.wait([self._task], timeout=_SECONDS_TO_CLEAN_UP)


class TaskRuntime:
    """A runtime on tasks of the running event loop."""

    def bell(self) -> Bell:
        return _TaskBell()

    def lock(self) -> AbstractAsyncContextManager[object]:
        return asyncio.Lock()

    def spawn(self, name: str, steps: Steps) -> Background:
        return _BackgroundTask(name, steps)
