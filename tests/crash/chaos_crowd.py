"""The processes of a run of chaos: started, killed, frozen and replaced."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final

from tests.crash.chaos_job import Job, Trap
from tests.crash.chaos_plan import PUBLISHING, RECOVERY, TRAPS
from tests.crash.chaos_servers import DEADLINE_S, Lane
from tests.crash.chaos_worker import work_as_recovery, work_as_writer
from tests.crash.operator_worker import OPERATOR, work_as_operator
from tests.support.forked_processes import processes

_OTHERS: Final = {RECOVERY: work_as_recovery, OPERATOR: work_as_operator}
_NEXT_POINT_S: Final = 0.02
"""The longest after a pause point at which a trap springs."""
_TRAPPED: Final = 0.6
"""How many of the workers are stopped as they publish what waited for Kafka."""
_NEVER_WAKES: Final = 0.15
"""How many of the frozen ones die."""


@dataclass
class Worker:
    """A process, and the director's end of its pipe."""

    kind: str
    process: BaseProcess
    orders: Connection
    lane: int | None
    """The lane of its requests; None: it has none."""
    is_frozen: bool = False
    sprung: Callable[[], None] | None = None
    """The action when it reports the point of its trap."""

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)


class Crowd:
    """The processes by number; in each place a dead one is followed by another of its kind.

    `wake_later` carries out an act when a worker is to wake: after the given seconds, or None for a random time.
    """

    def __init__(
        self,
        job: Job,
        kinds: Sequence[str],
        lanes: Sequence[Lane],
        chance: random.Random,
        note: Callable[[str], None],
        wake_later: Callable[[float | None, Callable[[], None]], None],
    ) -> None:
        self._job = job
        self._kinds = kinds
        self._lanes = lanes
        self._chance = chance
        self._note = note
        self._wake_later = wake_later
        self._processes = processes()
        self._lives = 0
        self.workers: Final[dict[int, Worker]] = {}
        self.traps: Final = Counter[str]()
        """How often traps have sprung, by their points."""
        self.problems: Final[list[str]] = []
        """The processes that an error of their own has ended."""

    def start(self) -> None:
        for number in range(len(self._kinds)):
            self._start(number)

    def _start(self, number: int) -> None:
        self._lives += 1
        kind = self._kinds[number]
        lane = self._chance.choice((None, *range(len(self._lanes))))
        way = self._job.bootstrap_servers if lane is None else self._lanes[lane].address
        job = dataclasses.replace(self._job, bootstrap_servers=way)
        ours, theirs = self._processes.Pipe()
        name = f"{kind.partition('-')[0]}{number}.{self._lives}"
        process = self._processes.Process(target=_OTHERS.get(kind, work_as_writer), args=(job, name, kind, theirs))
        process.start()
        theirs.close()
        self.workers[number] = Worker(kind, process, ours, lane)
        self._note(f"{name} is {kind}, by {way}, process {process.pid}")

    def hear(self, timeout_s: float) -> None:
        pipes = {worker.orders: number for number, worker in self.workers.items()}
        for pipe in wait(list(pipes), timeout_s):
            number = pipes[pipe]  # type: ignore[index]
            try:
                point = self.workers[number].orders.recv()
            except (EOFError, OSError):
                self._note(f"worker {number} has ended")
                self._expect_no_error(self.workers[number])
                self._bury(number)
                continue
            self.traps[point] += 1
            self._note(f"worker {number} is at {point}")
            sprung, self.workers[number].sprung = self.workers[number].sprung, None
            if sprung is not None:
                sprung()

    def _expect_no_error(self, worker: Worker) -> None:
        worker.process.join()
        if (status := worker.process.exitcode) is not None and status > 0:
            self.problems.append(f"a process of {worker.kind} was ended by an error: exit status {status}")

    def kill(self, number: int) -> None:
        self.workers[number].process.kill()
        self._bury(number)

    def _bury(self, number: int) -> None:
        """One that is dead, or dying; another takes its place."""
        worker = self.workers[number]
        worker.process.kill()
        worker.process.join()
        worker.orders.close()
        self._start(number)

    def set_trap(self, number: int, stop: signal.Signals) -> None:
        (point,) = self._chance.choices(list(TRAPS), list(TRAPS.values()))
        after_s = self._chance.choice((0.0, self._chance.uniform(0, _NEXT_POINT_S)))
        ends = stop is signal.SIGKILL
        self.send_trap(number, Trap(point, after_s, stop), lambda: self._bury(number) if ends else self.frozen(number))

    def send_trap(self, number: int, trap: Trap, sprung: Callable[[], None]) -> None:
        worker = self.workers[number]
        if not worker.is_frozen:
            worker.sprung = sprung
            with suppress(OSError):
                worker.orders.send(trap)

    def lie_in_wait(self) -> None:
        """Kill or freeze many of the workers as they publish."""
        for number in self.workers:
            if self._chance.random() < _TRAPPED:
                point = self._chance.choice(PUBLISHING)
                stop = self._chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
                after_s = self._chance.choice((0.0, self._chance.uniform(0, _NEXT_POINT_S)))
                sprung = partial(self._bury if stop is signal.SIGKILL else self.frozen, number)
                self.send_trap(number, Trap(point, after_s, stop), sprung)

    def freeze(self, number: int) -> None:
        if not self.workers[number].is_frozen:
            self.workers[number].signal(signal.SIGSTOP)
            self.frozen(number)

    def frozen(self, number: int, for_s: float | None = None) -> None:
        """It stands still; some never wake again."""
        worker = self.workers[number]
        worker.is_frozen = True
        dies = self._chance.random() < _NEVER_WAKES

        def wake() -> None:
            if self.workers[number] is not worker:
                return
            self._note(f"worker {number} {'dies' if dies else 'wakes'}")
            worker.is_frozen = False
            if dies:
                self.kill(number)
            else:
                worker.signal(signal.SIGCONT)

        self._wake_later(for_s, wake)

    def end(self) -> None:
        """Let half of the workers end as they should, and kill the others a last time."""
        for number, worker in self.workers.items():
            if number % 2:
                worker.process.kill()
            else:
                with suppress(OSError):
                    worker.orders.send("stop")
        deadline_s = time.monotonic() + DEADLINE_S
        while alive := [each for each in self.workers.values() if each.process.is_alive()]:
            assert time.monotonic() < deadline_s, f"workers do not end: {[each.kind for each in alive]}"
            for worker in alive:
                worker.signal(signal.SIGCONT)  # a trap may have sprung on the way
            alive[0].process.join(0.1)
        for worker in self.workers.values():
            self._expect_no_error(worker)
