"""Long work in slices: an event loop that serves many clients must not be held up by the request of one.

A request of ordinary size is handled in one piece and costs nothing more. Where a request names ten thousands of
things, or a group, a topic or a cluster has as many, the work pauses every few milliseconds, and other connections are
served in between.

Where others may see nothing half done, the work is a sequence of steps (`Steps`), which the caller can also take all at
once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

Steps = Generator[None, None, R]
"""Work that ends with a result and yields wherever it may pause."""

SLICE_NS: Final = 5_000_000
"""How long work may go on before others have a turn."""


async def mapped(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return what `function` makes of each item, in order. Nothing else may change `items` meanwhile."""
    results: list[R] = []
    ends_ns = time.perf_counter_ns() + SLICE_NS
    for item in items:
        if results and time.perf_counter_ns() > ends_ns:
            await asyncio.sleep(0)
            ends_ns = time.perf_counter_ns() + SLICE_NS
        results.append(function(item))
    return results


async def mapped_rows(function: Callable[[T], R], items: Iterable[T]) -> Callable[..., R]:
    """Return a function that returns what `function` makes of each item, one after the other, whatever it is given.

    For responses with the structure of their request: it takes the place of what makes a row of what is requested.
    """
    rows = iter(await mapped(function, items))
    return lambda *_: next(rows)


class Pace:
    """Keeps a loop that has to wait now and then from going on for longer than a slice in one piece."""

    def __init__(self) -> None:
        self._ends_ns = time.perf_counter_ns() + SLICE_NS

    async def keep(self) -> None:
        """Let others run if a slice of time has passed; call it once for each item."""
        if time.perf_counter_ns() > self._ends_ns:
            await asyncio.sleep(0)
            self._ends_ns = time.perf_counter_ns() + SLICE_NS


async def selected(test: Callable[[T], bool], items: Iterable[T]) -> list[T]:
    """Return the items that pass `test`, in order."""
    given = list(items)
    passed = await mapped(test, given)
    return [item for item, passes in zip(given, passed, strict=True) if passes]


class Work(Generic[R]):
    """Steps on their way to their result, which is there once they are done; it can be an exception."""

    def __init__(self, steps: Steps[R]) -> None:
        self._steps = steps
        self._result: Future[R] = Future()

    async def done_in_slices(self) -> R:
        """Take the steps slice by slice, and return their result.

        What has begun is never left half done: if the caller is cancelled, the remaining steps are taken at once.
        """
        try:
            while True:
                if self._takes_slice():
                    return self._result.result()
                await asyncio.sleep(0)
        except (asyncio.CancelledError, GeneratorExit):
            self.finish()
            raise

    def finish(self) -> None:
        """Take the remaining steps in one piece."""
        while not self._result.done():
            self._take_step()

    def done_at_once(self) -> R:
        """Take the steps in one piece, and return their result."""
        self.finish()
        return self._result.result()

    def _takes_slice(self) -> bool:
        """Take the steps of one slice of time; return whether they are done."""
        ends_ns = time.perf_counter_ns() + SLICE_NS
        while not self._result.done():
            self._take_step()
            if time.perf_counter_ns() > ends_ns:
                break
        return self._result.done()

    def _take_step(self) -> None:
        try:
            next(self._steps)
        except StopIteration as end:
            self._result.set_result(end.value)
        except Exception as error:
            self._result.set_exception(error)


def at_once(steps: Steps[R]) -> R:
    """Take all steps in one piece, and return the result."""
    return Work(steps).done_at_once()


async def in_slices(steps: Steps[R]) -> R:
    """Take the steps slice by slice, and return the result; if the caller is cancelled, the rest at once."""
    return await Work(steps).done_in_slices()
