from __future__ import annotations

import pytest

from dualwrite.decisions.by_row import commit_outcome, recovery_outcome
from dualwrite.outcome import Outcome
from dualwrite.prepared_state import PreparedTxnState

EMPTY = PreparedTxnState()
OLDER = PreparedTxnState("7:1")
OURS = PreparedTxnState("7:2")
LATER = PreparedTxnState("7:3")


@pytest.mark.parametrize(
    ("row", "ongoing", "outcome"),
    [
        (EMPTY, EMPTY, Outcome.NOTHING),
        (OURS, EMPTY, Outcome.NOTHING),
        (OURS, OURS, Outcome.COMMITTED),
        (OLDER, OURS, Outcome.ROLLED_BACK),
        (EMPTY, OURS, Outcome.ROLLED_BACK),
        (PreparedTxnState("8:2"), OURS, Outcome.ROLLED_BACK),
    ],
)
def test_the_end_of_an_open_transaction(row: PreparedTxnState, ongoing: PreparedTxnState, outcome: Outcome) -> None:
    assert recovery_outcome(row, ongoing) is outcome


@pytest.mark.parametrize(
    ("row", "outcome"),
    [(OURS, Outcome.COMMITTED), (OLDER, Outcome.ROLLED_BACK), (LATER, Outcome.SUPERSEDED), (EMPTY, Outcome.SUPERSEDED)],
)
def test_the_outcome_of_a_lost_commit(row: PreparedTxnState, outcome: Outcome) -> None:
    assert commit_outcome(row, ours=OURS, previous=OLDER) is outcome


def test_a_first_commit_that_was_lost_leaves_the_row_empty() -> None:
    assert commit_outcome(EMPTY, ours=OURS, previous=EMPTY) is Outcome.ROLLED_BACK
