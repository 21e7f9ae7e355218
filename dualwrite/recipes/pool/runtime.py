"""The thread and asyncio primitives of a pool: bells to wait for, background work, and loops that go on."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from dualwrite.guarded import guarded
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.bells import TaskBell, ThreadBell
from dualwrite.recipes.core.turns import IdUsers, used_by_tasks

Steps = Callable[[], Coroutine[Any, Any, None]]

_log = logging.getLogger(__name__)

_SECONDS_TO_CLEAN_UP: Final = 1.0
"""How long a cancelled task may take to roll back; a database that hangs holds it up."""

_SECONDS_AFTER_FAILURE: Final = 1.0
"""How long a loop waits after an error that it has not handled itself."""


class _BackgroundThread:
    def __init__(self, name: str, steps: Steps, on_end: Callable[[], object] = lambda: None) -> None:
        self._steps, self._on_end = steps, on_end
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            blocking.run(self._steps())
        finally:
            self._on_end()

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
    new_queue = IdUsers
    spawn = _BackgroundThread


class _BackgroundTask:
    def __init__(self, name: str, steps: Steps, on_end: Callable[[], object] = lambda: None) -> None:
        self._task = asyncio.get_running_loop().create_task(steps(), name=name)
        self._task.add_done_callback(lambda _: on_end())

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
    new_queue = staticmethod(used_by_tasks)
    spawn = _BackgroundTask


Runtime = ThreadRuntime | TaskRuntime
Background = _BackgroundThread | _BackgroundTask


class Loops:
    """Loops in the background of a pool, by their names: one that fails goes on, one that was cancelled can restart."""

    def __init__(self, runtime: Runtime, loops: Mapping[str, Steps]) -> None:
        self._runtime = runtime
        self._loops = loops
        self._starting = threading.Lock()
        self._living: set[str] = set()
        self._started: dict[str, Background] = {}
        self.are_running = False
        """Whether all of them are running."""

    @property
    def were_started(self) -> bool:
        return bool(self._started)

    def start(self) -> None:
        """Start those that are not running. Raises RuntimeError if no thread can be started now."""
        with self._starting:
            for name, steps in self._loops.items():
                if name not in self._living:
                    self._start(name, steps)
            self.are_running = True

    def _start(self, name: str, steps: Steps) -> None:
        self._living.add(name)
        try:
            self._started[name] = self._runtime.spawn(name, partial(self._go_on, name, steps), partial(self._end, name))
        except BaseException:
            self._living.discard(name)
            raise

    async def _go_on(self, name: str, steps: Steps) -> None:
        while True:
            try:
                return await steps()
            except Exception as error:
                _log_error(name, error)
                await self._runtime.bell().wait(_SECONDS_AFTER_FAILURE)

    def _end(self, name: str) -> None:
        with self._starting:
            self._living.discard(name)
            self.are_running = False

    async def join(self, name: str, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds until a loop that was told to end has ended."""
        if name in self._started:
            await self._started[name].join(timeout_s)


@guarded
def _log_error(name: str, error: Exception) -> None:
    _log.error("%s failed, and goes on", name, exc_info=error)
