"""How long the event loop of an emulator is busy in one piece, in CPU time: a busy machine changes nothing."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dualwrite.broker_emulator import Emulator
from tests.emulator.inside import run_in_loop


class Turns:
    """Notes the longest turn of the loop that it runs in, in seconds of CPU time of the loop's thread."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.count = 0
        self._began_s = time.thread_time()
        self._ends = False

    def watch(self, loop: Any) -> None:
        now_s = time.thread_time()
        self.longest_s = max(self.longest_s, now_s - self._began_s)
        self.count += 1
        self._began_s = now_s
        if not self._ends:
            loop.call_later(0.001, self.watch, loop)

    def end(self) -> None:
        self._ends = True


@contextmanager
def without_the_garbage_of_tests() -> Iterator[None]:
    """Keep what other tests have left from being collected in a turn that is watched."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def watched(emulator: Emulator) -> Iterator[Turns]:
    """Watch the turns of the emulator's loop."""
    turns: list[Turns] = []

    def begin() -> None:
        turns.append(Turns())
        turns[0].watch(asyncio.get_running_loop())

    with without_the_garbage_of_tests():
        run_in_loop(emulator, begin)
        yield turns[0]
        run_in_loop(emulator, turns[0].end)


async def until_some_turn(condition: Callable[[], bool]) -> None:
    """Wait, turn by turn of the loop that this runs in, for what lasts for some turns only."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise TimeoutError("the condition was not met within a million turns")
