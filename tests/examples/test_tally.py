"""The counts of recoveries, also of a worker that was killed before it could report."""

from __future__ import annotations

import pytest

from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from examples.flights.job import Report
from examples.flights.tally import Tally


def test_reported_outcomes_are_counted() -> None:
    tally = Tally()
    for outcome in (Outcome.NOTHING, Outcome.COMMITTED, Outcome.ROLLED_BACK, Outcome.ROLLED_BACK):
        tally.started()
        tally.reported(Report(20, outcome))
        tally.reported(Report(40))
        tally.killed(PausePoint.AFTER_SEND)
    assert (tally.lives, tally.kills, tally.rows) == (4, 4, 40)
    assert (tally.rolled_forward, tally.rolled_back) == (1, 2)


@pytest.mark.parametrize(
    ("left_by", "forward", "back"),
    [
        (PausePoint.AFTER_DATABASE_COMMIT, 1, 0),
        (PausePoint.BEFORE_DATABASE_COMMIT, 0, 1),
        (PausePoint.AFTER_KAFKA_COMMIT, 0, 0),
    ],
)
def test_what_a_worker_completed_and_could_not_tell_is_counted_once(
    left_by: PausePoint, forward: int, back: int
) -> None:
    tally = Tally()
    for point in (left_by, PausePoint.AFTER_INIT, PausePoint.AFTER_TAKEOVER, PausePoint.AFTER_TAKEOVER):
        tally.killed(point)
    tally.reported(Report(0, Outcome.NOTHING))
    assert (tally.rolled_forward, tally.rolled_back) == (forward, back)


def test_a_death_while_fencing_leaves_the_transaction_to_the_next() -> None:
    tally = Tally()
    tally.killed(PausePoint.AFTER_DATABASE_COMMIT)
    tally.killed(PausePoint.AFTER_INIT)
    tally.reported(Report(20, Outcome.COMMITTED))
    assert tally.rolled_forward == 1
