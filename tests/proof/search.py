"""Search the catalogue until every tier has had so many states: `python -m tests.proof.search --states 10000000`.

Several spaces are searched at a time, each in a process of its own. Exit code 1: an error was found, and its story
printed. 2: the catalogue of a tier has fewer states than were asked for.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.proof.explore import Found
from tests.proof.kafka_model import PROFILES
from tests.proof.spaces import AnySpace, catalogue

_MOST_STATES_AT_ONCE: Final = 5_000_000
"""States of one space: half a gigabyte."""


@dataclass
class Total:
    """The searches of one tier."""

    waiting: Iterator[AnySpace]
    wanted: int
    states: int = 0
    spaces: int = 0
    cut_off: int = 0
    under_way: int = 0
    wrong: list[AnySpace] = field(default_factory=list)
    is_exhausted: bool = False

    def next(self) -> AnySpace | None:
        """Return the next space to search; None if there are states enough, or no spaces any more."""
        if self.states >= self.wanted or self.is_exhausted:
            return None
        space = next(self.waiting, None)
        self.is_exhausted = space is None
        return space

    def add(self, space: AnySpace, found: Found) -> None:
        """Count a search."""
        self.states += found.states
        self.spaces += 1
        self.cut_off += not found.is_complete and found.wrong is None
        if found.wrong is not None:
            self.wrong.append(space)

    def __str__(self) -> str:
        complete = self.spaces - self.cut_off - len(self.wrong)
        return (
            f"{self.states} states in {self.spaces} spaces: {complete} complete, {self.cut_off} cut off, "
            f"{len(self.wrong)} wrong{'; the catalogue has no more' if self.is_exhausted else ''}"
        )


class Search:
    """A search of the catalogues of several tiers by several processes."""

    def __init__(self, tiers: Sequence[int], states: int, most_states_at_once: int) -> None:
        self.totals = {tier: Total(catalogue(tier), states) for tier in tiers}
        self._most_states_at_once = most_states_at_once
        self._running: dict[Future[tuple[Found, float]], AnySpace] = {}

    def run(self, jobs: int) -> Iterator[tuple[AnySpace, Found, float]]:
        """Yield each space as soon as it is searched, with the result and the seconds that it took."""
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
            while True:
                self._start(pool, jobs)
                if not self._running:
                    return
                for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                    space = self._running.pop(future)
                    found, spent_s = future.result()
                    total = self.totals[space.tier]
                    total.under_way -= 1
                    total.add(space, found)
                    yield space, found, spent_s

    def _start(self, pool: ProcessPoolExecutor, jobs: int) -> None:
        """Start searches, first where the fewest are under way and the fewest states were visited."""
        for total in sorted(self.totals.values(), key=lambda total: (total.under_way, total.states)):
            while len(self._running) < jobs and (space := total.next()) is not None:
                total.under_way += 1
                self._running[pool.submit(_searched, space, self._most_states_at_once)] = space
                if len(self.totals) > 1:
                    break


def _searched(space: AnySpace, most_states: int) -> tuple[Found, float]:
    began_s = time.monotonic()
    return space.search(most_states), time.monotonic() - began_s


def main() -> None:
    """Search as the arguments say, and print each space, each story, and the totals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=10_000_000, help="to visit on each tier")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tier", type=int, action="append", choices=sorted(PROFILES), help="may be repeated")
    parser.add_argument("--at-once", type=int, default=_MOST_STATES_AT_ONCE, help="of one space; then it is cut off")
    parser.add_argument("--stories", type=Path, help="a folder for the stories of what is wrong, as JSON lines")
    given = parser.parse_args()
    search = Search(given.tier or sorted(PROFILES), given.states, given.at_once)
    for space, found, spent_s in search.run(given.jobs):
        print(f"{space.name}: {found}, {spent_s:.1f} s", flush=True)
        if found.story is not None:
            print(found.story, flush=True)
            if given.stories is not None:
                given.stories.mkdir(parents=True, exist_ok=True)
                found.story.save(given.stories / f"{space.name}.jsonl")
    for tier, total in search.totals.items():
        print(f"{PROFILES[tier].name}: {total}")
    sys.exit(exit_code(search.totals.values()))


def exit_code(totals: Iterable[Total]) -> int:
    """Return 1 if there is an error, 2 if a tier had fewer states than were wanted, else 0."""
    every = list(totals)
    if any(total.wrong for total in every):
        return 1
    return 2 if any(total.states < total.wanted for total in every) else 0


if __name__ == "__main__":
    main()
