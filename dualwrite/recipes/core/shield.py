"""Shield cleanup from cancellation.

Rolling back, or giving a connection up, must not stop halfway: the next use of the id would find the row locked by a
transaction that no task ends, or an inconsistent state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Protocol, TypeVar

ResultT = TypeVar("ResultT")


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
