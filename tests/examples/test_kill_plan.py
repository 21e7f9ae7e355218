"""The plan of kills: complete, possible, and the same for the same seed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.recipes.core.pause_points import PausePoint
from examples.flights.errors import PlanError
from examples.flights.kill_plan import TAKEOVER_POINTS, most_kills, plan_kills


@given(seed=st.integers(), kills=st.integers(0, 60), group_size=st.integers(1, 50), room=st.integers(60, 500))
def test_every_plan_can_be_carried_out(seed: int, kills: int, group_size: int, room: int) -> None:
    plan = plan_kills(seed, kills=kills, events=room * group_size, group_size=group_size)
    assert len(plan) == kills
    assert plan == plan_kills(seed, kills=kills, events=room * group_size, group_size=group_size)
    writing = [kill for kill in plan if kill.point not in TAKEOVER_POINTS]
    starts = [kill.from_number for kill in writing]
    assert starts == sorted(set(starts))
    assert all(start % group_size == 0 and start < room * group_size for start in starts)
    assert all(0 <= kill.record < group_size for kill in plan)
    assert not plan or plan[0].point not in TAKEOVER_POINTS


@given(seed=st.integers(), kills=st.integers(len(PausePoint), 60))
def test_every_pause_point_is_met_when_there_are_kills_enough(seed: int, kills: int) -> None:
    plan = plan_kills(seed, kills=kills, events=1_000, group_size=10)
    assert {kill.point for kill in plan} == set(PausePoint)


def test_more_deaths_than_transactions_are_refused_and_the_most_is_named() -> None:
    room = most_kills(1, wanted=20, events=30, group_size=10)
    words = f"are 3 transactions, too few for 20 kills: --kills at most {room} .with --seed 1., or more rows"
    with pytest.raises(PlanError, match=f"30 events in groups of 10 {words}"):
        plan_kills(1, kills=20, events=30, group_size=10)


@given(seed=st.integers(), wanted=st.integers(0, 60), transactions=st.integers(1, 40), group_size=st.integers(1, 5))
def test_the_largest_number_of_kills_is_accepted_and_one_more_refused(
    seed: int, wanted: int, transactions: int, group_size: int
) -> None:
    events = transactions * group_size
    room = most_kills(seed, wanted=wanted, events=events, group_size=group_size)
    assert min(wanted, transactions) <= room <= wanted
    assert len(plan_kills(seed, kills=room, events=events, group_size=group_size)) == room
    if room < wanted:
        with pytest.raises(PlanError):
            plan_kills(seed, kills=room + 1, events=events, group_size=group_size)
