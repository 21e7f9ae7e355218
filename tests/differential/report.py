"""The output of a run: differences as they are found, its progress, and a summary in the end."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tests.differential.comparison import Difference
from tests.differential.workers import Order, Result

_PROGRESS_EVERY_S: Final = 15.0


@dataclass(slots=True)
class Report:
    """The results so far."""

    seed: int
    wanted: int
    most_shrunk: int
    played: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    """How often each kind of difference was met."""
    first: dict[str, str] = field(default_factory=dict)
    """The first sequence in which it was met."""
    unsteady: Counter[str] = field(default_factory=Counter)
    """How often each kind was met that did not differ again; the first one is printed, as it cannot be replayed."""
    explained: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    given_up: list[str] = field(default_factory=list)
    """Sequences that no process has come to the end of."""
    incidents: list[str] = field(default_factory=list)
    _began_s: float = field(default_factory=time.monotonic)
    _said_s: float = field(default_factory=time.monotonic)
    _said_played: int = 0

    def order(self, seed: str) -> Order:
        """Return the parameters that a process needs to play a sequence."""
        return Order(seed, frozenset(self.kinds), shrinks=len(self.kinds) < self.most_shrunk)

    def add(self, result: Result) -> None:
        """Add a result, and print it if it is new."""
        if result.failure is not None:
            self._add_failure(result, result.failure)
        else:
            self.played += 1
        self.kinds.update(result.known)
        self.explained.update(result.explained)
        if result.found is not None:
            about = result.found.about
            if about not in self.first:
                print(result.found, flush=True)
                self.first[about] = result.seed
            self.kinds[about] += 1
        if result.unsteady is not None:
            self._add_unsteady(result.unsteady)
        if time.monotonic() - self._said_s >= _PROGRESS_EVERY_S:
            print(self.progress(), flush=True)
            self._said_s, self._said_played = time.monotonic(), self.played

    def _add_unsteady(self, difference: Difference) -> None:
        if difference.about not in self.unsteady:
            print(f"not when played again: {difference}", flush=True)
        self.unsteady[difference.about] += 1

    def _add_failure(self, result: Result, failure: str) -> None:
        self.failures += 1
        becomes = "it is left out" if result.is_given_up else "it is played again"
        print(f"no result of {result.seed}, {becomes}: {failure}", flush=True)
        if result.is_given_up:
            self.given_up.append(result.seed)

    def add_incident(self, what: str) -> None:
        """Add an incident that the reader of the summary must know."""
        print(what, flush=True)
        self.incidents.append(what)

    def progress(self) -> str:
        """Return how far it is, how fast, and when it will be done at this rate."""
        now_s = time.monotonic()
        rate = self.played / max(now_s - self._began_s, 0.001)
        lately = (self.played - self._said_played) / max(now_s - self._said_s, 0.001)
        left = f", {(self.wanted - self.played) / rate / 60:.0f} min left" if rate else ""
        return (
            f"{self.played} of {self.wanted} sequences, {rate:.1f}/s ({lately:.1f}/s lately){left}; "
            f"{len(self.kinds)} kinds of difference, {self.unsteady.total()} unsteady, {self.failures} failures"
        )

    def summary(self) -> str:
        took_s = time.monotonic() - self._began_s
        of = f"{self.played} sequences" if self.played >= self.wanted else f"{self.played} of {self.wanted} sequences"
        lines = [f"seed {self.seed}: {of} in {took_s:.0f} s, {len(self.kinds)} kinds of difference"]
        lines += [f"{times:6} {about} ({self.first.get(about, '?')})" for about, times in self.kinds.most_common()]
        lines += [f"{times:6} {about}, but not when played again" for about, times in self.unsteady.most_common()]
        lines += [f"{times:6} {row} (on the page of differences)" for row, times in self.explained.most_common()]
        if self.failures:
            lines.append(f"{self.failures:6} failures of processes; without a result: {self.given_up or 'none'}")
        return "\n".join([*lines, *self.incidents])

    @property
    def status(self) -> int:
        """The exit status: 1 if anything differs, or has no result."""
        return 1 if self.kinds or self.given_up or self.incidents else 0
