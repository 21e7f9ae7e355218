"""`Clock`: the emulator's only source of time.

All decisions of the broker that depend on time (transaction timeouts, expiry, append timestamps) use a `Clock`. Waiting
for the network (long polls, retry back-off) uses the time of the event loop instead: it paces clients, which live in
real time whether or not the broker's clock does.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol


class Timer(Protocol):
    """A pending call, as returned by a `Clock`."""

    def cancel(self) -> None:
        """Stop calling; no effect if already stopped."""


class Clock(Protocol):
    """A source of time in milliseconds since the Unix epoch, with periodic and one-time calls."""

    def now_ms(self) -> int:
        """Return the broker's current time in milliseconds since the Unix epoch."""

    def call_every(self, interval_ms: int, callback: Callable[[], None]) -> Timer:
        """Call `callback` each time `interval_ms` has passed, until cancelled. Must run in the emulator's loop."""

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, when `delay_ms` has passed. Must run in the emulator's loop."""


@dataclass(slots=True)
class _LoopTimer:
    interval_ms: int
    callback: Callable[[], None]
    handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.handle = asyncio.get_running_loop().call_later(self.interval_ms / 1000, self._fire)

    def _fire(self) -> None:
        self.start()
        self.callback()

    def cancel(self) -> None:
        if self.handle is not None:
            self.handle.cancel()


class SystemClock:
    """The machine's own time."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_every(self, interval_ms: int, callback: Callable[[], None]) -> Timer:
        timer = _LoopTimer(interval_ms, callback)
        timer.start()
        return timer

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_ms / 1000, callback)


@dataclass(slots=True, order=True)
class _VirtualTimer:
    due_ms: int
    sequence: int
    interval_ms: int | None = field(compare=False)  # None: fires once
    callback: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


MOST_RUNS = 1000
"""The most calls of a periodic timer in one step of a virtual clock."""


class VirtualClock:
    """Time that stands still until `advance` moves it; due timers fire in order, each at its due time.

    In a long step, a periodic call skips most of its due times, so that weeks pass in a moment, as on a machine whose
    clock is set: it runs at the first due time, at the last, and `MOST_RUNS` times in all.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._timers: list[_VirtualTimer] = []
        self._sequence = itertools.count()

    def now_ms(self) -> int:
        return self._now_ms

    def call_every(self, interval_ms: int, callback: Callable[[], None]) -> Timer:
        if interval_ms <= 0:
            raise ValueError(f"interval_ms must be positive, not {interval_ms}")
        return self._start(interval_ms, interval_ms, callback)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        if delay_ms < 0:
            raise ValueError(f"delay_ms must not be negative: {delay_ms}")
        return self._start(delay_ms, None, callback)

    def _start(self, delay_ms: int, interval_ms: int | None, callback: Callable[[], None]) -> Timer:
        timer = _VirtualTimer(self._now_ms + delay_ms, next(self._sequence), interval_ms, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def advance(self, duration_ms: int) -> None:
        """Move time forward by `duration_ms`. Must run in the emulator's loop (see `Emulator.advance_clock`)."""
        for _ in self.passing(duration_ms):
            pass

    def passing(self, duration_ms: int) -> Iterator[None]:
        """Move time forward like `advance`, one timer at a time: time stands still at each element."""
        if duration_ms < 0:
            raise ValueError(f"cannot advance by a negative duration: {duration_ms} ms")
        end_ms = self._now_ms + duration_ms
        while self._timers and self._timers[0].due_ms <= end_ms:
            timer = heapq.heappop(self._timers)
            if timer.cancelled:
                continue
            self._now_ms = timer.due_ms
            if timer.interval_ms is not None:
                timer.due_ms += timer.interval_ms * _intervals_until_next(timer, end_ms, duration_ms)
                heapq.heappush(self._timers, timer)
            timer.callback()
            yield
        self._now_ms = max(end_ms, self._now_ms)


def _intervals_until_next(timer: _VirtualTimer, end_ms: int, duration_ms: int) -> int:
    """Return the number of intervals until a periodic timer fires again in a step of `duration_ms` to `end_ms`."""
    assert timer.interval_ms is not None
    left = (end_ms - timer.due_ms) // timer.interval_ms
    return max(1, min(left, 1 + duration_ms // (timer.interval_ms * MOST_RUNS)))
