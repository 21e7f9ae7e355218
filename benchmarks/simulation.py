"""A simulation of many workers that share resources: simulated time, no threads."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field


@dataclass
class Resource:
    """A number of equal units, which workers wait for in order."""

    number: float
    used: int = 0
    most: int = 0
    waiting: deque[Work] = field(default_factory=deque)

    def take(self) -> bool:
        if self.used >= self.number:
            return False
        self.used += 1
        self.most = max(self.most, self.used)
        return True


@dataclass(frozen=True)
class Take:
    what: Resource


@dataclass(frozen=True)
class Give:
    what: Resource


@dataclass(frozen=True)
class Sleep:
    seconds: float


Work = Generator[Take | Give | Sleep, None, None]
"""The steps of one worker, in order."""


class Simulation:
    """Runs workers; `now_s` is the simulated time, in seconds from 0."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Work]] = []
        self._numbers = 0

    def start(self, work: Work, at_s: float = 0.0) -> None:
        """Let a worker begin at a time that has not passed."""
        self._numbers += 1
        heapq.heappush(self._due, (at_s, self._numbers, work))

    def run(self, until_s: float = float("inf")) -> None:
        """Run until every worker has ended, or until that time."""
        while self._due and self._due[0][0] <= until_s:
            self.now_s, _, work = heapq.heappop(self._due)
            self._continue(work)

    def _continue(self, work: Work) -> None:
        for step in work:
            if isinstance(step, Sleep):
                self.start(work, self.now_s + step.seconds)
                return
            if isinstance(step, Give):
                self._give(step.what)
            elif not step.what.take():
                step.what.waiting.append(work)
                return

    def _give(self, what: Resource) -> None:
        what.used -= 1
        if what.waiting:
            what.take()
            self.start(what.waiting.popleft(), self.now_s)


def end_of(works: Iterable[Work]) -> float:
    """Let workers begin at once; return when the last one ends, in seconds."""
    simulation = Simulation()
    for work in works:
        simulation.start(work)
    simulation.run()
    return simulation.now_s
