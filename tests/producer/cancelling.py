"""Cancel a coroutine at its n-th suspension."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from enum import Enum
from typing import Any, Final


class Moment(Enum):
    """When in a suspension the cancellation comes."""

    EARLY = "as soon as it waits"
    LATE = "when it has what it waited for, and has not gone on yet"


class CancelAt:
    """Awaits a coroutine and cancels the task at the coroutine's n-th suspension; counts them.

    With `again` it is cancelled at every later one too, as a cancelled scope of anyio does.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int, moment: Moment, *, again: bool = False) -> None:
        self.suspensions = 0
        self._coroutine: Final = coroutine
        self._at = at
        self._moment = moment
        self._again = again

    @property
    def came(self) -> bool:
        """Whether the cancellation came: there were so many suspensions."""
        return 0 < self._at <= self.suspensions

    def __await__(self) -> Generator[Any, Any, Any]:
        resume: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731 - replaced by a throw
        while True:
            try:
                future = resume()
            except StopIteration as stopped:
                return stopped.value
            self.suspensions += 1
            if self.suspensions == self._at or (self._again and self.came):
                self._cancel(future)
            try:
                yield future
            except BaseException as error:
                thrown = error
                resume = lambda: self._coroutine.throw(thrown)  # noqa: B023, E731 - called before the next turn
            else:
                resume = lambda: self._coroutine.send(None)  # noqa: E731

    def _cancel(self, future: asyncio.Future[Any] | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._moment is Moment.LATE and future is not None:
            future.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()


async def cancelled_at(
    coroutine: Coroutine[Any, Any, Any], at: int, moment: Moment, *, again: bool = False
) -> CancelAt:
    """Run it in a task of its own; a cancellation ends there, other errors do not."""
    stepping = CancelAt(coroutine, at, moment, again=again)

    async def run() -> None:
        await stepping

    task = asyncio.ensure_future(run())
    await asyncio.wait([task])
    if not task.cancelled():
        await task
    return stepping
