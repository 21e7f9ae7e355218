"""Shield cleanup from cancellation.

Rolling back, or giving a connection up, must not stop halfway: the next use of the id would find a row lock of a
transaction that no task ends, or a state that does not hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Protocol, TypeVar

ResultT = TypeVar("ResultT")


class Uninterrupted(Protocol):
    """Carries steps out to the end and returns their result; an interruption meanwhile is raised after that."""

    def __call__(self, steps: Coroutine[Any, Any, ResultT]) -> Awaitable[ResultT]: ...


async def direct(steps: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Carry steps out in a thread, which cannot be cancelled."""
    return await steps


async def shield(steps: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Carry steps out in a task of its own, which no cancellation of this one reaches, however often it comes."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return await steps  # a forked child runs no loop, and none of its steps waits
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
