"""An event loop on a virtual clock, shared by all simulated processes.

Each callback belongs to a process. Within a process callbacks run in the order in which they became ready, as asyncio
promises; which process is next is drawn from the seed. Time passes only when no process can run. A paused process runs
later, all timers at once; a killed one never again.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from random import Random
from typing import Any, Final, TypeVar

ResultT = TypeVar("ResultT")

_MOST_STEPS: Final = 400_000
"""More callbacks than any seed needs: a livelock is reported instead of running for ever."""


class LivelockError(Exception):
    """The simulation does not come to an end."""


class Process:
    """A program that can be paused and killed, with its own event queue, at one place of the network."""

    __slots__ = ("clock_offset_s", "is_alive", "is_paused", "name", "ready")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.is_alive = True
        self.is_paused = False
        self.clock_offset_s = 0.0
        """How far its wall clock is from the true time."""
        self.ready: deque[SimulatedHandle] = deque()

    def __repr__(self) -> str:
        return self.name


class SimulatedHandle:
    """A scheduled callback."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "process", "when_s")

    def __init__(
        self,
        process: Process,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        when_s: float,
    ) -> None:
        self.process = process
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.when_s = when_s
        self.is_cancelled = False

    def cancel(self) -> None:
        """Do not call it."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """Return whether it is not going to be called."""
        return self.is_cancelled

    def when(self) -> float:
        """Return when it is due."""
        return self.when_s


class SimulatedTask(asyncio.Task[ResultT]):
    """A task whose place in a set does not depend on its address."""

    def __init__(self, coroutine: Coroutine[Any, Any, ResultT], loop: SimulatedLoop, number: int, **given: Any) -> None:
        self._number = number
        super().__init__(coroutine, loop=loop, **given)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The loop. `connect` implements `create_connection`."""

    def __init__(self, random: Random) -> None:
        self.now_s = 0.0
        self.world: Final = Process("world")
        """The simulation itself: its callbacks are not part of any program."""
        self.current = self.world
        self.problems: list[str] = []
        """The errors that callbacks raised."""
        self.note: Callable[[str], None] = _ignore
        """Takes the description of each other event."""
        self.steps = 0
        self.connect: Callable[..., Coroutine[Any, Any, Any]] | None = None
        self._random = random
        self._timers: list[tuple[float, int, SimulatedHandle]] = []
        self._runnable: list[Process] = []
        self._numbers = 0
        self._is_closed = False
        self._tasks: list[asyncio.Task[Any]] = []

    # ---- running --------------------------------------------------------------------------------------------

    def run_until(self, is_over: Callable[[], bool], latest_s: float) -> bool:
        """Run until `is_over`, or until nothing is due before `latest_s`. Return whether it is over."""
        asyncio._set_running_loop(self)
        try:
            while not is_over():
                if self._runnable:
                    self._run_one()
                elif not self._timers or self._timers[0][0] > latest_s:
                    self.now_s = latest_s
                    return False
                else:
                    self._advance()
        finally:
            asyncio._set_running_loop(None)
        return True

    def _run_one(self) -> None:
        runnable = self._runnable
        count = len(runnable)
        at = 0 if count == 1 else int(self._random.random() * count)
        process = runnable[at]
        ready = process.ready
        handle = ready.popleft()
        if not ready:
            del runnable[at]
        if handle.is_cancelled:
            return
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise LivelockError(f"more than {_MOST_STEPS} callbacks, the last one of {process}: {handle.callback!r}")
        self.current = process
        try:
            handle.context.run(handle.callback, *handle.args)
        except Exception as error:
            self.problems.append(f"{process}: {error!r}")
        finally:
            self.current = self.world

    def _advance(self) -> None:
        timers = self._timers
        self.now_s = now_s = max(self.now_s, timers[0][0])
        while timers and timers[0][0] <= now_s:
            handle = heapq.heappop(timers)[2]
            if not handle.is_cancelled:
                self._make_ready(handle)

    def _make_ready(self, handle: SimulatedHandle) -> None:
        process = handle.process
        if not process.is_alive:
            return
        if not process.ready and not process.is_paused:
            self._runnable.append(process)
        process.ready.append(handle)

    # ---- processes ------------------------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        """End a process: nothing of it runs any more."""
        process.is_alive = False
        process.ready.clear()
        if process in self._runnable:
            self._runnable.remove(process)

    def pause(self, process: Process) -> None:
        """Let a process sleep; its due callbacks wait."""
        process.is_paused = True
        if process in self._runnable:
            self._runnable.remove(process)

    def resume(self, process: Process) -> None:
        """Let a process go on."""
        process.is_paused = False
        if process.ready and process.is_alive and process not in self._runnable:
            self._runnable.append(process)

    def begin(self, process: Process, program: Coroutine[Any, Any, None]) -> None:
        """Start a program as `process`."""
        before, self.current = self.current, process
        try:
            self.create_task(self._reported(process, program))
        finally:
            self.current = before

    async def _reported(self, process: Process, program: Coroutine[Any, Any, None]) -> None:
        """Run a program; note its errors at once, because its task is not awaited."""
        try:
            await program
        except Exception as error:
            self.problems.append(f"{process} failed: {error!r}")

    # ---- asyncio --------------------------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]  # its handles are our own
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimulatedHandle:
        """Call in the current process."""
        return self.call_soon_in(self.current, callback, *args, context=context)

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # as above

    def call_soon_in(
        self, process: Process, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimulatedHandle:
        """Call in a process."""
        handle = SimulatedHandle(process, callback, args, context, self.now_s)
        self._make_ready(handle)
        return handle

    def call_later(  # type: ignore[override]  # as above
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimulatedHandle:
        """Call in the current process after a delay."""
        return self.call_at_in(self.current, self.now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as above
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimulatedHandle:
        """Call in the current process at a time."""
        return self.call_at_in(self.current, when, callback, *args, context=context)

    def call_at_in(
        self,
        process: Process,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> SimulatedHandle:
        """Call in a process at a time."""
        self._numbers += 1
        handle = SimulatedHandle(process, callback, args, context, when)
        heapq.heappush(self._timers, (when, self._numbers, handle))
        return handle

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.now_s

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        """Start a task in the current process."""
        self._numbers += 1
        task: SimulatedTask[Any] = SimulatedTask(coro, self, self._numbers, name="", context=context)
        self._tasks.append(task)
        return task

    async def create_connection(  # type: ignore[override]  # there is one network, and no TLS
        self, factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        """Connect through the simulated network."""
        assert self.connect is not None, "there is no network"
        return await self.connect(factory, host, port)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note unhandled errors. A task that is dropped with its process is no problem."""
        error = context.get("exception")
        if error is not None and not self._is_closed:
            self.problems.append(f"{self.current}: {context.get('message')}: {error!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        """Return whether it can be used."""
        return not self._is_closed

    def is_closed(self) -> bool:
        """Return whether it was closed."""
        return self._is_closed

    def close(self) -> None:
        """End all waiting callbacks, without running them."""
        self._is_closed = True
        self._timers.clear()
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # as asyncio.gather does
                _end(task)
        self._tasks.clear()


def _end(task: asyncio.Task[Any]) -> None:
    coroutine = task.get_coro()
    assert coroutine is not None
    try:
        coroutine.close()
    except BaseException:  # it awaited again, or complained
        return


def _ignore(_: str) -> None:
    pass
