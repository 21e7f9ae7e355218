"""The search of a catalogue goes on until there are states enough, and reports missing ones."""

from __future__ import annotations

from typing import Final

import pytest

from tests.proof.explore import Found
from tests.proof.kafka_model import PROFILES
from tests.proof.search import Search, Total, exit_code
from tests.proof.spaces import Space, catalogue
from tests.proof.world import Budget

SPACES: Final = tuple(Space(tier, Budget(losses=1)) for tier in (1, 2, 3))
COMPLETE: Final = Found(100, 120, 2, 30, is_complete=True)
CUT_OFF: Final = Found(100, 120, 0, 30)
WRONG: Final = Found(100, 120, 0, 30, wrong="a record is visible twice")


def total_after(*found: Found, wanted: int = 200) -> Total:
    total = Total(iter(SPACES), wanted)
    for each in found:
        space = total.next()
        assert space is not None
        total.add(space, each)
    return total


def test_the_search_continues_until_it_has_enough_states() -> None:
    assert total_after(COMPLETE).next() == SPACES[1]
    assert total_after(COMPLETE, COMPLETE).next() is None


@pytest.mark.parametrize(
    ("found", "code"),
    [((COMPLETE, COMPLETE), 0), ((COMPLETE, CUT_OFF), 0), ((COMPLETE, WRONG), 1), ((COMPLETE,), 2)],
)
def test_the_exit_code_shows_the_result(found: tuple[Found, ...], code: int) -> None:
    assert exit_code([total_after(*found), total_after(COMPLETE, COMPLETE)]) == code


def test_each_tier_is_searched_in_processes_of_their_own() -> None:
    search = Search([1, 3], states=1, most_states_at_once=200)
    found = [(space.tier, found) for space, found, _ in search.run(jobs=2)]
    for tier, total in search.totals.items():
        assert total.states == sum(each.states for searched, each in found if searched == tier) >= 200
    assert not any(each.is_complete for _, each in found)


@pytest.mark.parametrize("tier", PROFILES)
def test_each_search_space_has_a_unique_name(tier: int) -> None:
    names = [space.name for space in catalogue(tier)]
    assert len(set(names)) == len(names)
