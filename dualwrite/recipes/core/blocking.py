"""Run coroutines without a loop; they never suspend, because everything that they call blocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine
from typing import Any, Protocol, TypeVar

ResultT = TypeVar("ResultT")


def run(steps: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run `steps` and return their result. Raises what they raise."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: ResultT = end.value
        return result
    steps.close()
    raise AssertionError(f"{steps!r} waits for an event loop, but may make only blocking calls")


async def sleep(seconds: float) -> None:
    """Block this thread."""
    time.sleep(seconds)  # noqa: ASYNC251 - code here has no event loop to block


class Uninterrupted(Protocol):
    """Carries out all steps and returns their result; an interruption meanwhile is raised afterwards."""

    def __call__(self, steps: Coroutine[Any, Any, ResultT]) -> Awaitable[ResultT]: ...


async def direct(steps: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Carry out steps in a thread, which cannot be cancelled."""
    return await steps


async def shield(steps: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Carry out steps in a separate task, which cancellations of the current task never reach."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return await steps  # a forked child has no running loop, and none of these steps waits there
    task = loop.create_task(steps)
    interruption: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as cancelled:
            interruption = cancelled
    if interruption is not None:
        raise interruption from (None if task.cancelled() else task.exception())
    return task.result()
