"""A campaign: rounds of cases against one broker each, and the smallest file that shows a failure."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from tests.fuzz.attacker import NoEndError, attack
from tests.fuzz.broker import FuzzedBroker, NotOpenedError
from tests.fuzz.captures import kept_captures
from tests.fuzz.cases import Case, make_case, write_cases
from tests.fuzz.prober import Prober

_LOOKED_AT_AGAIN: Final = 3
"""The number of last cases that are suspected after a failure."""
_MEMORY_INTERVAL: Final = 50


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that the broker must keep under attack."""

    stall_s: float = 0.25
    memory_mib: float = 200.0
    cases_per_round: int = 20_000
    """After so many it is killed, opened again and replaced by one with a new directory."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure, and the file with the cases that showed it."""

    what: str
    path: Path

    @property
    def title(self) -> str:
        return self.what.strip().splitlines()[-1]


@dataclass
class Result:
    """How a campaign ended."""

    cases: int = 0
    frames: int = 0
    rounds: int = 0
    worst_stall_s: float = 0.0
    most_memory_mib: float = 0.0
    failures: list[Failure] = field(default_factory=list)


class _Round:
    """One broker, the client beside the attack, and the observations."""

    def __init__(self, broker: FuzzedBroker, prober: Prober, limits: Limits, result: Result) -> None:
        self._broker = broker
        self._prober = prober
        self._limits = limits
        self._result = result
        self._cases = 0

    def run(self, case: Case) -> str | None:
        """Attack with one case; return the failure, or None."""
        self._cases += 1
        try:
            attack(self._broker, case)
        except (NoEndError, OSError) as error:
            if self._broker.is_alive:
                return f"{type(error).__name__}: {error}"
        if not self._broker.is_alive:
            return f"{self._broker.status}: the broker has ended"
        return self._broker.alarming_lines() or self._prober.failure or self._stall() or self._memory()

    def _stall(self) -> str | None:
        stall = self._prober.take_worst()
        self._result.worst_stall_s = max(self._result.worst_stall_s, stall.duration_s)
        if stall.duration_s <= self._limits.stall_s:
            return None
        waited = f"a client beside it waited {stall.waited_s:.3f} s, of which the broker was busy {stall.busy_s:.3f} s"
        return f"{self._broker.last_stacks()}\n{waited}"

    def _memory(self) -> str | None:
        if self._cases % _MEMORY_INTERVAL:
            return None
        memory_mib = self._broker.memory_mib()
        self._result.most_memory_mib = max(self._result.most_memory_mib, memory_mib)
        return None if memory_mib <= self._limits.memory_mib else f"{memory_mib:.0f} MiB of memory"


class Campaign:
    """Runs cases until the time is up; a failure ends its round, and the next one has a new broker."""

    def __init__(self, seed: int, limits: Limits, directory: Path, tell: Callable[[str], None] = print) -> None:
        self._seed = seed
        self._limits = limits
        self._directory = directory
        self._tell = tell
        self.result = Result()

    def run(self, seconds: float, cases: int = sys.maxsize) -> Result:
        """Attack for so many seconds, or with so many cases."""
        deadline_s = time.monotonic() + seconds
        captures = kept_captures()
        left = (make_case(self._seed, number, captures) for number in range(cases))
        while time.monotonic() < deadline_s and self.result.cases < cases:
            self._run_round(left, deadline_s)
        return self.result

    def replay(self, cases: Sequence[Case]) -> str | None:
        """Run cases against a new broker; return the failure, or None."""
        broker = FuzzedBroker()
        with broker, Prober(broker, self._limits.stall_s * 0.8) as prober:
            one_round = _Round(broker, prober, self._limits, Result())
            for case in cases:
                wrong = one_round.run(case)
                if wrong is not None:
                    return wrong
            prober.__exit__(None, None, None)
            return _opened_again(broker)

    def _run_round(self, cases: Iterator[Case], deadline_s: float) -> None:
        self.result.rounds += 1
        done: list[Case] = []
        broker = FuzzedBroker()
        wrong: str | None = None
        with broker:
            with Prober(broker, self._limits.stall_s * 0.8) as prober:
                one_round = _Round(broker, prober, self._limits, self.result)
                for case in islice(cases, self._limits.cases_per_round):
                    done.append(case)
                    wrong = one_round.run(case)
                    if wrong is not None or time.monotonic() > deadline_s:
                        break
            self.result.cases += len(done)
            self.result.frames += sum(len(case.frames) for case in done)
            if wrong is None:
                wrong = _opened_again(broker)
        if wrong is not None:
            self._keep(wrong, done)

    def _keep(self, wrong: str, done: Sequence[Case]) -> None:
        """Write the cases that show it: one of the last ones if it does so alone, or all of them."""
        for case in reversed(done[-_LOOKED_AT_AGAIN:]):
            alone = self.replay([case])
            if alone is not None:
                wrong, done = alone, [self._smallest(case)]
                break
        failure = Failure(wrong, self._directory / f"seed-{self._seed}-{done[-1].number}.json")
        write_cases(failure.path, wrong, done)
        self.result.failures.append(failure)
        self._tell(f"{failure.path}: {failure.title}")

    def _smallest(self, case: Case) -> Case:
        """Return the case with one frame only, if that is enough."""
        for content in case.frames if len(case.frames) > 1 else ():
            single = Case(case.seed, case.number, case.entrance, (content,))
            if self.replay([single]) is not None:
                return single
        return case


def _opened_again(broker: FuzzedBroker) -> str | None:
    """Kill the broker and start it on the same directory; return the failure, or None."""
    broker.kill()
    try:
        broker.start()
    except NotOpenedError as error:
        return f"{error}\nits directory did not open again"
    alarming = broker.alarming_lines()
    return f"{alarming}\nthis was logged when its directory was opened again" if alarming else None
