"""The matrix of faults with `AsyncDualWriter`: all of it with psycopg, the heart of it with asyncpg and aiosqlite."""

from __future__ import annotations

import asyncio

import pytest

from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from tests.crash.awaited import AwaitedScenario
from tests.crash.matrix import (
    FaultKind,
    Survivor,
    cases_with_predecessors,
    check_a_fault_at_a_point,
    check_a_kill_at_a_point,
)
from tests.crash.scenario import (
    POINTS_AFTER_THE_DECISION,
    AtPoint,
    Predecessor,
    event_texts,
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
    """It strikes at the first await after the point; a later query gets the row's outcome."""
    awaited.leave_behind(predecessor)

    def cancel() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    hook = AtPoint(point, cancel)
    with awaited.writer(hook) as writer:
        seen = awaited.write(writer, 1)
        assert hook.struck
        assert isinstance(seen.error, asyncio.CancelledError)
        if writer.state is SlotState.UNRESOLVED:
            assert point in awaited.points_before_commit_request
            (found,) = writer.recover()
            if found.outcome == "committed":
                awaited.expected += event_texts("1")
        else:
            assert (seen.outcome == "committed") is (point in POINTS_AFTER_THE_DECISION)
        assert awaited.write(writer, 2).error is None
        awaited.assert_both_sides_agree()


_KILLS = [
    *(("psycopg", point) for point in _HEART),
    ("asyncpg", PausePoint.AFTER_DATABASE_COMMIT),
    ("aiosqlite", PausePoint.AFTER_DATABASE_COMMIT),
]


@pytest.mark.parametrize(("awaited", "point"), _KILLS, indirect=["awaited"])
def test_a_kill_at_a_point(awaited: AwaitedScenario, point: PausePoint) -> None:
    check_a_kill_at_a_point(awaited, point, Predecessor.COMMITTED, "--awaited", awaited.driver)
