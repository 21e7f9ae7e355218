"""Long work in slices: a long request of one client must not hold up an event loop that serves many.

A request of ordinary size is handled in one piece at no extra cost. If a request names tens of thousands of elements,
or a group, a topic or a cluster has as many, the work pauses every few milliseconds, and other connections are served
in between.

In each turn of the loop, only one paused piece of work continues: many connections together take no more of the loop
than one.

Work whose intermediate states must stay invisible is a sequence of steps (`Steps`), which the caller can also take all
at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future
from time import perf_counter_ns
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from dualwrite.broker_emulator.suspended_coroutine import SuspendedCoroutine, begin, finish

T = TypeVar("T")
R = TypeVar("R")

Steps = Generator[None, None, R]
"""Work that ends with a result, and yields wherever it may pause."""

SLICE_NS: Final = 5_000_000
"""The time that work may run before other tasks have a turn."""
_RETRIES_AT_ONCE: Final = 100


class Turn:
    """The next slice of paused work, until it is taken or cancelled."""

    __slots__ = ("go_on",)

    def __init__(self, go_on: Callable[[], None]) -> None:
        self.go_on: Callable[[], None] | None = go_on

    def cancel(self) -> None:
        """Take no further slice."""
        self.go_on = None


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, deque[Turn]] = WeakKeyDictionary()
"""The paused work of each event loop, in the order in which it continues."""


def later(go_on: Callable[[], None]) -> Turn:
    """Call `go_on` in a later turn of the loop: in the order of these calls, one per turn."""
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = deque()
    if not queue:
        loop.call_soon(_take_next, loop, queue)
    turn = Turn(go_on)
    queue.append(turn)
    return turn


def _take_next(loop: asyncio.AbstractEventLoop, queue: deque[Turn]) -> None:
    while queue:
        go_on = queue.popleft().go_on
        if go_on is not None:
            if queue:
                loop.call_soon(_take_next, loop, queue)
            go_on()
            return


async def pause() -> None:
    """Let other tasks run until it is the caller's turn."""
    future = asyncio.get_running_loop().create_future()
    turn = later(lambda: None if future.done() else future.set_result(None))
    try:
        await future
    except BaseException:
        turn.cancel()
        raise


async def mapped(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the result of `function` for each item, in order. The caller must keep `items` unchanged meanwhile."""
    results: list[R] = []
    ends_ns = perf_counter_ns() + SLICE_NS
    for item in items:
        if results and perf_counter_ns() > ends_ns:
            await pause()
            ends_ns = perf_counter_ns() + SLICE_NS
        results.append(function(item))
    return results


async def mapped_rows(function: Callable[[T], R], items: Iterable[T]) -> Callable[..., R]:
    """Return a function that ignores its arguments and returns the results of `function` for the items, one per call.

    For responses with the structure of their request: it replaces the function that makes a row of the response from a
    row of the request.
    """
    rows = iter(await mapped(function, items))
    return lambda *_: next(rows)


async def all_done(works: Iterable[Coroutine[Any, Any, R]], *, at_once: int = 0) -> list[R]:
    """Run coroutines side by side, so that none delays the others; return their results in order.

    The first `at_once` are begun in one piece. If one fails, or the caller is cancelled, those that wait are cancelled.
    """
    results: list[Any] = []
    waiting: dict[int, asyncio.Task[R]] = {}
    pace = Pace()
    try:
        for number, work in enumerate(works):
            if number >= at_once:
                await pace.keep()
            begun = begin(work)
            if isinstance(begun, SuspendedCoroutine):
                waiting[number] = asyncio.ensure_future(finish(begun))
            results.append(begun)
        for number, task in waiting.items():
            results[number] = await task
    except BaseException:
        for task in waiting.values():
            task.cancel()
        raise
    return results


class Retries:
    """Makes tasks wait before they try again. Tasks that wait for the same moment continue some at a time."""

    def __init__(self, backoff_s: float) -> None:
        self._backoff_s = backoff_s
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Wait for the next retry."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_later(self._backoff_s, self._begin_round, loop)
        future = loop.create_future()
        self._waiting.append(future)
        await future

    def _begin_round(self, loop: asyncio.AbstractEventLoop) -> None:
        due, self._waiting = self._waiting, deque()
        self._go_on(loop, due)

    def _go_on(self, loop: asyncio.AbstractEventLoop, due: deque[asyncio.Future[None]]) -> None:
        for _ in range(min(len(due), _RETRIES_AT_ONCE)):
            future = due.popleft()
            if not future.done():
                future.set_result(None)
        if due:
            loop.call_soon(self._go_on, loop, due)


class Pace:
    """Makes a long loop pause after each slice of time."""

    def __init__(self) -> None:
        self._ends_ns = perf_counter_ns() + SLICE_NS

    @property
    def is_over(self) -> bool:
        """Whether a slice of time has passed."""
        return perf_counter_ns() > self._ends_ns

    async def keep(self) -> None:
        """Let other tasks run if a slice of time has passed; call it once for each item."""
        if self.is_over:
            await pause()
            self._ends_ns = perf_counter_ns() + SLICE_NS


async def selected(test: Callable[[T], bool], items: Iterable[T]) -> list[T]:
    """Return the items that pass `test`, in order."""
    given = list(items)
    passed = await mapped(test, given)
    return [item for item, passes in zip(given, passed, strict=True) if passes]


class Work(Generic[R]):
    """Steps on the way to their result, which can be an exception."""

    def __init__(self, steps: Steps[R]) -> None:
        self._steps = steps
        self._result: Future[R] = Future()

    async def done_in_slices(self) -> R:
        """Take the steps slice by slice, and return their result.

        Work that has begun is always completed: if the caller is cancelled, the remaining steps are taken at once.
        """
        try:
            while True:
                if self._takes_slice():
                    return self._result.result()
                await pause()
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
        """Take the steps of one slice of time; return whether all steps are done."""
        ends_ns = perf_counter_ns() + SLICE_NS
        while not self._result.done():
            self._take_step()
            if perf_counter_ns() > ends_ns:
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
    """Take the steps slice by slice, and return the result; if the caller is cancelled, take the rest at once."""
    return await Work(steps).done_in_slices()
