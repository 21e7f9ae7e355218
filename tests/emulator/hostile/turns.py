"""How much the event loop of an emulator does in one turn, counted in steps, so that no machine is too slow for it.

A step is a call: of a function, of a builtin, or of a generator that goes on. The clock of `slices.py` counts them too.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final
from unittest.mock import patch

from dualwrite.broker_emulator import Emulator, slices
from tests.emulator.inside import run_in_loop

SLICE: Final = 4_000
"""Steps of one slice: some milliseconds."""
LONGEST: Final = 16 * SLICE
"""The most steps of one turn: several connections each have a slice in it, besides the code around each loop."""


class Turns:
    """Counts the steps of each turn of the loop in whose thread it is begun and ended."""

    def __init__(self, slice_steps: int = SLICE) -> None:
        self.longest = 0
        self.count = 0
        self._steps = 0
        self._began_at = 0
        self._is_over = False
        self._clock = patch.object(slices, "perf_counter_ns", lambda: self._steps * slices.SLICE_NS // slice_steps)

    @property
    def steps(self) -> int:
        """The steps of all turns."""
        return self._steps

    def begin(self) -> None:
        gc.disable()  # garbage of other tests is finalized in the collecting thread
        self._clock.start()
        sys.setprofile(self._note)
        self._begin_turn(asyncio.get_running_loop())

    def end(self) -> None:
        self._is_over = True
        sys.setprofile(None)
        self._clock.stop()
        gc.enable()

    def _begin_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self.longest = max(self.longest, self._steps - self._began_at)
        if not self._is_over:
            self.count += 1
            self._began_at = self._steps
            loop.call_soon(self._begin_turn, loop)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" or event == "c_call":
            self._steps += 1


@contextmanager
def watched(emulator: Emulator, slice_steps: int = SLICE) -> Iterator[Turns]:
    """Watch the turns of the emulator's loop. Shorter slices also reveal shorter loops without slices."""
    turns = Turns(slice_steps)
    run_in_loop(emulator, turns.begin)
    try:
        yield turns
    finally:
        run_in_loop(emulator, turns.end)


async def until_some_turn(condition: Callable[[], bool]) -> None:
    """Wait, turn by turn of the running loop, for a condition that lasts for some turns only."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise TimeoutError("the condition was not met within a million turns")
