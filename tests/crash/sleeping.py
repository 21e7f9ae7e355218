"""A dual write that stands still at a pause point, as that of a process that is stopped for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.scenario import AtPoint, Seen

DEADLINE_S: Final = 30


class Sleeper:
    """A thread that does dual write 1 and sleeps at a pause point until it is woken."""

    def __init__(self, scenario: Any, point: PausePoint, *, has_written: bool = False) -> None:
        self._asleep = threading.Event()
        self._wake = threading.Event()
        hook = AtPoint(point, self._sleep, armed=not has_written)
        self.writer = scenario.writer(hook)
        if has_written:
            assert scenario.write(self.writer, 0).error is None
            hook.arm()
        self.seen: Seen | None = None
        self._thread = threading.Thread(target=self._run, args=(scenario,), daemon=True)
        self._thread.start()
        assert self._asleep.wait(DEADLINE_S)

    def _sleep(self) -> None:
        self._asleep.set()
        assert self._wake.wait(DEADLINE_S)

    def _run(self, scenario: Any) -> None:
        self.seen = scenario.write(self.writer, 1)

    def wake(self) -> Seen:
        self._wake.set()
        self._thread.join(DEADLINE_S)
        assert self.seen is not None
        return self.seen


@contextmanager
def sleeping(scenario: Any, point: PausePoint, *, has_written: bool = False) -> Iterator[Sleeper]:
    sleeper = Sleeper(scenario, point, has_written=has_written)
    try:
        yield sleeper
    finally:
        sleeper.wake()
