"""Blocking code in the simulation: it runs in a greenlet of a task, which waits where a thread would.

So the producer for threads and the Spark sink run as they are, in any number of simulated processes, one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from sqlalchemy.util import await_only, greenlet_spawn

import dualwrite.producer
from dualwrite.client import io_thread
from dualwrite.client.records import record_future
from tests.proof.simulation.determinism import Replacement, replaced
from tests.proof.simulation.loop import SimulatedLoop

ResultT = TypeVar("ResultT")


async def run(blocking: Callable[[], ResultT]) -> ResultT:
    """Run blocking code as a part of the current task."""
    result: ResultT = await greenlet_spawn(blocking)
    return result


def sleep(seconds: float) -> None:
    """Wait, in blocking code."""
    await_only(asyncio.sleep(seconds))


class _Waiter:
    """A thread that waits for one event."""

    def __init__(self) -> None:
        self._woken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(True)

    def wait(self, timeout_s: float | None) -> bool:
        return bool(await_only(self._wait(timeout_s)))

    async def _wait(self, timeout_s: float | None) -> bool:
        done, _ = await asyncio.wait([self._woken], timeout=timeout_s)
        return bool(done)


class _Running(Generic[ResultT]):
    """A coroutine that runs in the loop while blocking code waits for it."""

    def __init__(self, task: asyncio.Task[ResultT]) -> None:
        self._task = task

    def result(self, timeout: float | None = None) -> ResultT:
        result: ResultT = await_only(asyncio.wait_for(asyncio.shield(self._task), timeout))
        return result

    def cancel(self) -> None:
        self._task.cancel()


class _IoThread:
    """The I/O thread of the process that runs: its part of the loop."""

    ident: int | None = None

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop

    def start(self, coroutine: Coroutine[Any, Any, ResultT]) -> _Running[ResultT]:
        return _Running(self.loop.create_task(coroutine))


@contextmanager
def no_threads(loop: SimulatedLoop) -> Iterator[None]:
    """Let blocking producers, admin clients and the Spark sink wait in greenlets."""
    replacements: list[Replacement] = [
        (io_thread.this_process, "thread", _IoThread(loop)),  # for every caller: no module has a real one
        (dualwrite.producer, "Waiter", _Waiter),
        (record_future, "Waiter", _Waiter),
    ]
    with replaced(replacements):
        yield
