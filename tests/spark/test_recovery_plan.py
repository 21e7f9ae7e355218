"""Recovery's decision about an attempt, by its row and its ages."""

from __future__ import annotations

import pytest

from spark_sink.driver.recovery import CHANGES, NEEDS_OPERATOR, Action, Facts, decide
from spark_sink.store.attempt_states import LIVE, AttemptStatus

OLD, NEW = 60_000, 59_999
S, A = AttemptStatus, Action


@pytest.mark.parametrize(
    ("status", "age_ms", "quiet_ms", "is_named", "expected"),
    [
        (S.COMMITTING, OLD, OLD, False, A.COMMIT),
        (S.COMMITTING, OLD, NEW, False, A.COMMIT),
        (S.COMMITTING, NEW, NEW, False, A.YOUNG),
        (S.COMMITTING, NEW, NEW, True, A.YOUNG),
        (S.ABORTING, OLD, NEW, False, A.ABORT),
        (S.ABORTING, NEW, NEW, False, A.YOUNG),
        (S.OPEN, OLD, OLD, False, A.UNDECIDED),
        (S.PREPARED, OLD, OLD, False, A.UNDECIDED),
        (S.OPEN, OLD, OLD, True, A.CONDEMN),
        (S.PREPARED, OLD, OLD, True, A.CONDEMN),
        (S.PREPARED, OLD, NEW, True, A.YOUNG),
        (S.PREPARED, OLD, NEW, False, A.YOUNG),
    ],
)
def test_the_row_decides_and_ages_only_wait(
    status: AttemptStatus, age_ms: int, quiet_ms: int, is_named: bool, expected: Action
) -> None:
    assert decide(Facts(status, age_ms, quiet_ms, is_named), min_age_ms=OLD) is expected


@pytest.mark.parametrize("status", sorted(LIVE))
@pytest.mark.parametrize("is_named", [False, True])
def test_nothing_undecided_is_changed_unless_it_is_named(status: AttemptStatus, is_named: bool) -> None:
    action = decide(Facts(status, OLD, OLD, is_named), min_age_ms=0)
    assert (action in CHANGES) == (is_named or status in (S.COMMITTING, S.ABORTING))
    assert (action in NEEDS_OPERATOR) == (action not in CHANGES)
