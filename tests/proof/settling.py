"""Whether transactions in doubt come to rest once no more faults happen.

`fair_run` follows one schedule from one state. `Graph` keeps every state and step of a small space as it is, without
hashes cut short, and so also checks the lean search of `explore.py`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from tests.proof.world import Budget, Rules, World


def fair_run(rules: Rules, world: World, longest: int) -> bool:
    """Return whether the world comes to rest within `longest` steps, if every process has turns and no fault happens.

    Of the steps that are possible it takes the first, then the second, and so on.
    """
    for turn in range(longest):
        if rules.is_at_rest(world):
            return True
        possible = [reached for _, reached in rules.steps(world) if reached.budget == world.budget]
        if not possible:
            return False
        world = possible[turn % len(possible)]
    return False


class Graph:
    """Every state that can be reached, and every step between them."""

    def __init__(self, rules: Rules, budget: Budget) -> None:
        start = rules.start(budget)
        numbers = {start: 0}
        self.worlds = [start]
        self.at_rest: set[int] = set()
        self._from, self._to = array("I"), array("I")
        self._is_fault = bytearray()
        for here, world in enumerate(self.worlds):  # which grows meanwhile
            if rules.is_at_rest(world):
                self.at_rest.add(here)
            for _, reached in rules.steps(world):
                there = numbers.setdefault(reached, len(self.worlds))
                if there == len(self.worlds):
                    self.worlds.append(reached)
                self._from.append(here)
                self._to.append(there)
                self._is_fault.append(reached.budget != world.budget)

    def steps(self) -> Iterator[tuple[int, int]]:
        """Yield each step: the state before it and the state after it."""
        return zip(self._from, self._to, strict=True)

    def unsettled(self) -> set[int]:
        """Return the states that cannot come to rest without another fault, by going back from those at rest."""
        before: list[list[int]] = [[] for _ in self.worlds]
        for here, there, is_fault in zip(self._from, self._to, self._is_fault, strict=True):
            if not is_fault:
                before[there].append(here)
        settled, waiting = set(self.at_rest), list(self.at_rest)
        while waiting:
            earlier = [state for state in before[waiting.pop()] if state not in settled]
            settled.update(earlier)
            waiting += earlier
        return set(range(len(self.worlds))) - settled

    def has_cycle(self) -> bool:
        """Return whether a state can be reached again: whether the states have no topological order."""
        entering = [0] * len(self.worlds)
        after: list[list[int]] = [[] for _ in self.worlds]
        for here, there in self.steps():
            entering[there] += 1
            after[here].append(there)
        waiting, sorted_count = [0], 0
        while waiting:
            sorted_count += 1
            for there in after[waiting.pop()]:
                entering[there] -= 1
                if not entering[there]:
                    waiting.append(there)
        return sorted_count < len(self.worlds)
