"""The thread and asyncio primitives of a pool: bells to wait for, and background work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.bells import TaskBell, ThreadBell

Steps = Callable[[], Coroutine[Any, Any, None]]

_SECONDS_TO_CLEAN_UP: Final = 1.0
"""How long a cancelled task may take to roll back; a database that hangs holds it up."""


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

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    async def join(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds until it has ended; then it goes on."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


class ThreadRuntime:
    """A runtime on threads, which wait by blocking."""

    bell = ThreadBell
    lock = _ThreadLock
    spawn = _BackgroundThread


class _BackgroundTask:
    def __init__(self, name: str, steps: Steps) -> None:
        self._task = asyncio.get_running_loop().create_task(steps(), name=name)

    @property
    def has_ended(self) -> bool:
        return self._task.done() or self._task.get_loop().is_closed()

    async def join(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds until it has ended; then it is cancelled."""
        if self._task.get_loop() is not asyncio.get_running_loop():
            return  # that loop has ended, and the task with it, or is not run while this one is
        await asyncio.wait([self._task], timeout=timeout_s)
        self._task.cancel()
        await asyncio.wait([self._task], timeout=_SECONDS_TO_CLEAN_UP)


class TaskRuntime:
    """A runtime on tasks of the running event loop."""

    bell = TaskBell
    lock = asyncio.Lock
    spawn = _BackgroundTask


Runtime = ThreadRuntime | TaskRuntime
Background = _BackgroundThread | _BackgroundTask
