"""How long the event loop of an emulator is busy in one piece, in CPU time, so that waiting for a core does not count.

What shares the caches and the pipelines of a core slows it down by half all the same, and machines differ: a fixed
piece of work is timed in the same thread, and what was measured is told in seconds of the machine that the limits are
for.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from dualwrite.broker_emulator import Emulator
from tests.emulator.inside import run_in_loop

_FIXED_WORK_S: Final = 0.0085
"""What `_fixed_work` takes on two cores of 2024 with nothing else to do."""


class Turns:
    """Notes the longest turn of the loop that it runs in, in seconds of CPU time of the loop's thread.

    Without the collections of garbage in it: a broker here shares its process with its clients and the tests, and what
    they have would be looked through as well. How long that may take in a process of a broker alone is limited by
    `settle_memory`.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.count = 0
        self._began_s = time.thread_time()
        self._thread = threading.get_ident()
        self._collection_began_s = 0.0
        self._ends = False
        gc.callbacks.append(self._note_collection)

    def _note_collection(self, phase: str, details: Mapping[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collection_began_s = time.thread_time()
        else:
            self._began_s += time.thread_time() - self._collection_began_s

    def watch(self, loop: Any) -> None:
        if self._ends:
            return
        now_s = time.thread_time()
        self.longest_s = max(self.longest_s, now_s - self._began_s)
        self.count += 1
        self._began_s = now_s
        loop.call_later(0.001, self.watch, loop)

    def end(self) -> None:
        self._ends = True
        gc.callbacks.remove(self._note_collection)
        self.longest_s /= max(1.0, statistics.median(_fixed_work() for _ in range(5)) / _FIXED_WORK_S)


def _fixed_work() -> float:
    """Do some of what a broker's Python does; return how long that took, in CPU time of this thread."""
    began_s = time.thread_time()
    names = {f"n{number}": (number, str(number)) for number in range(20_000)}
    sorted(names, key=lambda name: names[name][1])
    return time.thread_time() - began_s


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
