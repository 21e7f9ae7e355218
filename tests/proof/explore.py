"""Visit every state that a world can reach, breadth-first, and tell the shortest story of the first wrong one.

python -m tests.proof.explore --tier 3 --faults crashes=1,losses=1
"""

from __future__ import annotations

import argparse
import logging
import time
from collections import deque
from dataclasses import dataclass

from tests.proof.kafka_model import PROFILES, Batch, Marker
from tests.proof.world import Budget, Rules, World


@dataclass
class Found:
    """The result of a search."""

    states: int
    steps: int
    at_rest: int
    depth: int
    wrong: str | None = None
    story: tuple[str, ...] = ()


class Explorer:
    """A breadth-first search."""

    def __init__(self, rules: Rules, budget: Budget) -> None:
        self._rules = rules
        self._start = rules.start(budget)
        self._came_from: dict[int, tuple[int, int]] = {}
        """By a state's hash: the hash of the state before it, and which of its steps led here."""

    def search(self, most_states: int | None = None) -> Found:
        """Visit states until there are no more, one is wrong, or there are `most_states`."""
        rules, came_from = self._rules, self._came_from
        found = Found(1, 0, 0, 0)
        key = rules.symmetry.key
        came_from[key(self._start)] = (0, -1)
        level = deque([self._start])
        while level:
            after: deque[World] = deque()
            for world in level:
                here = key(world)
                ended = True
                for at, (_, reached) in enumerate(rules.steps(world)):
                    ended = False
                    found.steps += 1
                    there = key(reached)
                    if there in came_from:
                        continue
                    came_from[there] = (here, at)
                    found.states += 1
                    after.append(reached)
                    wrong = rules.wrong(reached)
                    if wrong is not None:
                        found.wrong, found.story = wrong, self._story(there)
                        return found
                if rules.is_at_rest(world):
                    found.at_rest += 1
                elif ended:
                    found.wrong, found.story = "nothing can happen any more, and not all is done", self._story(here)
                    return found
            if most_states is not None and found.states >= most_states:
                return found
            level = after
            found.depth += 1
        return found

    def _story(self, last: int) -> tuple[str, ...]:
        path: list[int] = []
        while True:
            last, at = self._came_from[last]
            if at < 0:
                break
            path.append(at)
        world, told = self._start, []
        for number, at in enumerate(reversed(path), 1):
            text, world = list(self._rules.steps(world))[at]
            told.append(f"{number:3}. {text}\n       {_standing(world)}")
        return tuple(told)


def _standing(world: World) -> str:
    metadata = world.kafka.metadata
    kafka = "-" if metadata is None else f"{metadata.state.label} {metadata.producer_id}:{metadata.producer_epoch}"
    log = " ".join(map(_entry, world.kafka.log))
    return f"row {world.row[0] or '-'} | table {sorted(v.decode() for v in world.table)} | {kafka} | log {log or '-'}"


def _entry(entry: Batch | Marker) -> str:
    """Return `pair=records` for a batch, `pair+` for a commit marker, `pair-` for an abort marker."""
    pair = f"{entry.producer_id}:{entry.producer_epoch}"
    if isinstance(entry, Batch):
        return f"{pair}={b','.join(entry.records).decode()}"
    return f"{pair}{'+' if entry.committed else '-'}"


def main() -> None:
    """Explore as the arguments say, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tier", type=int, default=3)
    parser.add_argument("--faults", default="crashes=1,losses=1")
    parser.add_argument("--writes", default="a1,a2/b1", help="dual writes of each process")
    parser.add_argument("--after-crash", default="")
    parser.add_argument("--states", type=int, default=None)
    parser.add_argument("--predicts", action="store_true", help="lock and write the row ahead, as psycopg does")
    parser.add_argument("--services", type=int, default=0, help="processes that carry out a round of recovery")
    parser.add_argument("--pools", action="store_true", help="each process has a pool, and they share its ids")
    parser.add_argument("--two-primaries", action="store_true", help="an old primary that is cut off still locks rows")
    parser.add_argument("--recoveries", type=int, default=0, help="processes that only call recover()")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    budget = Budget(**{name: int(n) for name, n in (pair.split("=") for pair in given.faults.split(",") if pair)})
    written = [[value.encode() for value in process.split(",")] for process in given.writes.split("/")]
    after = [value.encode() for value in given.after_crash.split(",") if value]
    rules = Rules(
        PROFILES[given.tier],
        written,
        after,
        predicts=given.predicts,
        recoveries=given.recoveries,
        services=given.services,
        fails_over=budget.failovers > 0,
        two_primaries=given.two_primaries,
        pools=given.pools,
    )
    began_s = time.monotonic()
    found = Explorer(rules, budget).search(given.states)
    rules.close()
    spent_s = time.monotonic() - began_s
    print(f"{PROFILES[given.tier].name}, {budget}")
    print(
        f"{found.states} states, {found.steps} steps, depth {found.depth}, {found.at_rest} at rest, {spent_s:.1f} s; "
        f"{[len(program.nodes) for program in rules.programs]} nodes, "
        f"{sum(program.replayed for program in rules.programs)} replayed"
    )
    if found.wrong is not None:
        print(f"WRONG: {found.wrong}")
        print("\n".join(found.story))


if __name__ == "__main__":
    main()
