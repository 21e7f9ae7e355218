"""The matrix of faults with `AsyncDualWriter`: all of it with psycopg, the heart of it with asyncpg and aiosqlite."""

from __future__ import annotations

import pytest

from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.awaited import AwaitedScenario
from tests.crash.matrix import (
    FaultKind,
    Survivor,
    cancel,
    cases_with_predecessors,
    check_a_cancellation,
    check_a_fault_at_a_point,
    check_a_kill_at_a_point,
)
from tests.crash.scenario import (
    AtPoint,
    Predecessor,
)

Case = tuple[str, PausePoint, Predecessor]

# Where drivers differ most: how they lose a connection inside the take-over, before and after the decision.
_HEART = [
    PausePoint.AFTER_LOCK,
    PausePoint.AFTER_PREPARE,
    PausePoint.BEFORE_DATABASE_COMMIT,
    PausePoint.AFTER_DATABASE_COMMIT,
]


def _cases() -> list[Case]:
    everything = [("psycopg", point, predecessor) for point, predecessor in cases_with_predecessors()]
    return everything + [
        (driver, point, Predecessor.COMMITTED) for driver in ("asyncpg", "aiosqlite") for point in _HEART
    ]


cases = pytest.mark.parametrize(("awaited", "point", "predecessor"), _cases(), indirect=["awaited"])


@pytest.mark.parametrize("fault", FaultKind)
@cases
def test_a_fault_at_a_point(
    awaited: AwaitedScenario, point: PausePoint, predecessor: Predecessor, fault: FaultKind
) -> None:
    check_a_fault_at_a_point(awaited, point, predecessor, fault, Survivor.SAME_WRITER)


@cases
def test_a_cancellation_at_a_point(awaited: AwaitedScenario, point: PausePoint, predecessor: Predecessor) -> None:
    awaited.leave_behind(predecessor)
    hook = AtPoint(point, cancel)
    with awaited.writer(hook) as writer:
        check_a_cancellation(awaited, writer, hook, may_be_unresolved=awaited.points_before_commit_request)


_KILLS = [
    *(("psycopg", point) for point in _HEART),
    ("asyncpg", PausePoint.AFTER_DATABASE_COMMIT),
    ("aiosqlite", PausePoint.AFTER_DATABASE_COMMIT),
]


@pytest.mark.parametrize(("awaited", "point"), _KILLS, indirect=["awaited"])
def test_a_kill_at_a_point(awaited: AwaitedScenario, point: PausePoint) -> None:
    check_a_kill_at_a_point(awaited, point, Predecessor.COMMITTED, "--awaited", awaited.driver)
