"""Visit every state that a world can reach, breadth-first, and tell the shortest story of the first wrong one.

python -m tests.proof.explore --tier 3 --faults crashes=1,losses=1

A state is remembered as 60 bits of its hash, beside the number of the state before it and the number of the step that
led here. So a visited state costs less than 100 bytes, and a story is told by going its steps again. Two states of n
have the same 60 bits with a probability of about n * n / 2 ** 61, which is 0.00004 for ten million: then the later one
would be taken for visited.

Each state must be able to go on without another fault until all is done. A state that cannot is found at once. And no
state is ever reached again: each step takes a program further, spends a fault, or uses up an event under way (a
request, a COMMIT, a marker, the one call of recover()). `settling.py` checks both over the edges of small spaces. So
where a search is complete and found nothing wrong, every run whose faults have ended comes to rest, whatever the order
of its steps: there is no livelock.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.proof.reductions import Reduced
from tests.proof.remembered import forget
from tests.proof.settling import fair_run
from tests.proof.shape import Shape
from tests.proof.story import Setting, Story, narrate
from tests.proof.world import Budget, Rules, World

STUCK: Final = "nothing can happen any more without another fault, and not all is done"
UNSETTLED: Final = "a fair schedule without another fault does not come to rest"

_KEY: Final = (1 << 60) - 1
"""An int of 60 bits takes 32 bytes, one of 61 bits takes 48."""

_FAIR_RUN_EVERY: Final = 2048
"""A fair schedule is run to its end from one of so many states."""

_LONGEST_RUN: Final = 1000
"""In steps; a world without faults left settles in less than 100."""

_COLLECT_EVERY: Final = 8192
"""In states: often enough to find the garbage of programs among the youngest objects."""


@dataclass
class Found:
    """The result of a search."""

    states: int
    steps: int
    at_rest: int
    depth: int
    is_complete: bool = False
    """Whether every state was visited. A search cut off early, or by an error, is not complete."""
    wrong: str | None = None
    story: Story | None = None
    nodes: int = 0
    """Points at which a program waits for a reply, after different replies."""

    def __str__(self) -> str:
        extent = "complete" if self.is_complete else "NOT COMPLETE"
        counts = f"{self.states} states, {self.steps} steps, depth {self.depth}, {self.at_rest} at rest"
        wrong = "nothing wrong" if self.wrong is None else f"WRONG: {self.wrong}"
        return f"{counts}, {self.nodes} nodes, {extent}, {wrong}"


class Visited:
    """The states in the order of their discovery, each with its predecessor and the step between them."""

    def __init__(self, start: int) -> None:
        self.keys = {start & _KEY}
        self.before = array("I", [0])
        self.taken = array("H", [0])

    def path_to(self, state: int) -> list[int]:
        """Return the steps that lead from the start to a state: positions in `Rules.steps`."""
        path: list[int] = []
        while state > 0:
            path.append(self.taken[state])
            state = self.before[state]
        return path[::-1]


class Explorer:
    """A breadth-first search."""

    def __init__(self, rules: Rules, budget: Budget) -> None:
        self._rules = rules
        self._start = rules.start(budget)
        self._visited = Visited(rules.symmetry.key(self._start))
        self._here = 0
        self._raised: tuple[int, str] | None = None
        """The state from which a fair schedule raises an error, which the search itself reaches by fewer steps."""
        self.found = Found(1, 0, 0, 0)

    def search(self, most_states: int | None = None) -> Found:
        """Visit states until there are no more, one is wrong, or there are `most_states`."""
        with _without_garbage_collection():
            try:
                self._search(most_states)
            except Exception as error:  # of the code that is searched: no state may let it fail
                self._tell(self._here, f"what can happen next raises {error!r}")
            if self.found.wrong is None and self._raised is not None:  # the search was cut off before
                self._tell(*self._raised)
        self.found.states = len(self._visited.before)
        self.found.nodes = sum(len(program.nodes) for program in self._rules.programs)
        return self.found

    def _search(self, most_states: int | None) -> None:
        found, visited, rules = self.found, self._visited, self._rules
        keys, before, taken, is_wrong = visited.keys, visited.before, visited.taken, rules.wrong
        key_of = rules.symmetry.key
        waiting = deque([self._start])
        here, level_ends = -1, 0  # numbers of states: the one whose steps are taken, and the last of its depth
        while waiting:
            world = waiting.popleft()
            here += 1
            self._here = here
            if here > level_ends:
                found.depth += 1
                level_ends = len(before) - 1
            at, goes_on, budget = -1, False, world.budget
            for at, (_, reached) in enumerate(rules.steps(world)):
                if not goes_on and reached.budget == budget:
                    goes_on = True
                key = key_of(reached) & _KEY
                if key in keys:
                    continue
                keys.add(key)
                before.append(here)
                taken.append(at)
                waiting.append(reached)
                wrong = is_wrong(reached)
                if wrong is not None:
                    self._tell(len(before) - 1, wrong)
                    return
            found.steps += at + 1
            if rules.is_at_rest(world):
                found.at_rest += 1
            elif not goes_on:
                self._tell(here, STUCK)
                return
            if here % _COLLECT_EVERY == 0:
                gc.collect(0)
            if here % _FAIR_RUN_EVERY == 0 and not self._comes_to_rest(world):
                self._tell(here, UNSETTLED)
                return
            if most_states is not None and len(before) >= most_states and waiting:
                return
        found.is_complete = True

    def _comes_to_rest(self, world: World) -> bool:
        try:
            return fair_run(self._rules, world, _LONGEST_RUN)
        except Exception as error:  # of the code that is searched
            self._raised = self._raised or (self._here, f"a fair schedule raises {error!r}")
            return True

    def _tell(self, state: int, wrong: str) -> None:
        self.found.wrong = wrong
        self.found.story = narrate(self._rules, self._start, self._visited.path_to(state), wrong)


def explored(setting: Setting, most_states: int | None = None) -> Found:
    """Search one setting, quietly, and without orders of steps that need not be tried."""
    was = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    rules = setting.rules(Reduced)
    try:
        found = Explorer(rules, setting.budget).search(most_states)
    finally:
        rules.close()
        forget()
        logging.disable(was)
    if found.story is not None:
        found.story = found.story._replace(setting=setting)
    return found


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the repeated searches for cycles among millions of tuples without any: a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _numbers(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in (pair.split("=") for pair in text.split(",") if pair)}


def main() -> None:
    """Explore with the given arguments, and print the findings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tier", type=int, default=3)
    parser.add_argument("--faults", default="crashes=1,losses=1")
    parser.add_argument("--writes", default="a1,a2/b1", help="dual writes of each process")
    parser.add_argument("--after-crash", default="")
    parser.add_argument("--states", type=int, default=None)
    parser.add_argument("--by-commit", action="store_true", help="write the row with COMMIT, as psycopg does")
    parser.add_argument("--plain", action="store_true", help="transactions without a database; those with an x abort")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument(
        "--apart", action="store_true", help="each dual write sends to one of the partitions, not to all"
    )
    parser.add_argument("--offsets", action="store_true", help="each dual write commits how far it has read")
    parser.add_argument("--recoveries", type=int, default=0, help="processes that only call recover()")
    parser.add_argument("--services", type=int, default=0, help="processes that carry out a round of recovery")
    parser.add_argument("--pools", action="store_true", help="each process has a pool, and they share its ids")
    parser.add_argument("--story", type=Path, help="where to write the story of what is wrong, as JSON lines")
    given = parser.parse_args()
    budget = Budget(**_numbers(given.faults))
    written = tuple(tuple(value.encode() for value in process.split(",")) for process in given.writes.split("/"))
    after = tuple(value.encode() for value in given.after_crash.split(",") if value)
    shape = Shape(given.partitions, given.apart, given.offsets)
    setting = Setting(
        given.tier,
        budget,
        written,
        after,
        given.by_commit,
        shape,
        given.plain,
        recoveries=given.recoveries,
        services=given.services,
        pools=given.pools,
    )
    began_s = time.monotonic()
    found = explored(setting, given.states)
    print(f"{setting.profile.name}, {shape}, {budget}")
    print(f"{found}, {time.monotonic() - began_s:.1f} s")
    if found.story is not None:
        print(found.story)
        if given.story is not None:
            found.story.save(given.story)
    sys.exit(found.wrong is not None)


if __name__ == "__main__":
    main()
