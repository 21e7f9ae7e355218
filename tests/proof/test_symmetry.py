"""Merging like processes leaves nothing out: the reduced search visits one of each kind of state of the full one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.proof.kafka_model import PROFILES
from tests.proof.symmetry import Symmetry
from tests.proof.world import Budget, Rules, World

_WRITTEN: Final = ((b"a1",), (b"b1",))


def reached(rules: Rules, budget: Budget, key: Callable[[World], int]) -> dict[int, World]:
    """Return one world for each key."""
    start = rules.start(budget)
    found, waiting = {key(start): start}, [start]
    while waiting:
        for _, world in rules.steps(waiting.pop()):
            if found.setdefault(key(world), world) is world:
                waiting.append(world)
    return found


def rules_of(tier: int, recoveries: int) -> tuple[Rules, Symmetry]:
    rules = Rules(PROFILES[tier], _WRITTEN, (b"c1",), recoveries=recoveries)
    first = len(_WRITTEN)
    return rules, Symmetry(rules.programs, _WRITTEN, range(first, first + recoveries))


@pytest.mark.parametrize(
    ("tier", "recoveries", "budget"),
    [(1, 0, Budget(kills=1)), (3, 0, Budget()), (3, 0, Budget(expiries=1)), (1, 2, Budget())],
    ids=["tier 1, kills", "tier 3", "tier 3, expiries", "tier 1, two recoveries"],
)
def test_every_state_is_like_one_that_was_visited(tier: int, recoveries: int, budget: Budget) -> None:
    rules, symmetry = rules_of(tier, recoveries)
    every = reached(rules, budget, hash)
    merged = reached(rules, budget, symmetry.key)
    assert {symmetry.key(world) for world in every.values()} == set(merged)
    assert len(merged) < len(every) * 0.6
    assert endings(rules, every, symmetry.key) == endings(rules, merged, symmetry.key) != set()
    rules.close()


def endings(rules: Rules, worlds: dict[int, Any], key: Callable[[World], int]) -> set[int]:
    return {key(world) for world in worlds.values() if rules.is_at_rest(world)}


def test_unlike_states_are_not_merged() -> None:
    rules = Rules(PROFILES[1], ((b"a1", b"a2"), (b"b1",)), ())
    world = rules.start(Budget())
    assert Symmetry(rules.programs, ((b"a1", b"a2"), (b"b1",))).key(world) == hash(world)
    rules.close()
