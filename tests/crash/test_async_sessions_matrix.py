"""The matrix of faults, lost commits and cancellations for AsyncSessions that the application commits by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import OutcomeUnknown
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from tests.crash.awaited import awaited_scenario
from tests.crash.matrix import FaultKind, Survivor, check_a_fault_at_a_point
from tests.crash.of_async_sessions import AwaitedSessionScenario
from tests.crash.scenario import POINTS_AFTER_THE_DECISION, AtPoint, Predecessor
from tests.crash.scenario import event_texts as event_texts
from tests.support.databases import PostgresDatabase, SqliteDatabase

FAULTS = (FaultKind.EXCEPTION, FaultKind.DATABASE_ANSWER_LOST, FaultKind.BROKER_CUT)
"""Faults that end differently, as in `test_sessions_matrix.py`."""


_HEART = [PausePoint.AFTER_LOCK, PausePoint.BEFORE_DATABASE_COMMIT, PausePoint.AFTER_DATABASE_COMMIT]
"""Points where drivers differ most, as in `test_awaited_matrix.py`."""

cases = pytest.mark.parametrize(
    ("scenario", "point"),
    [("psycopg", point) for point in PausePoint]
    + [(driver, point) for driver in ("asyncpg", "aiosqlite") for point in _HEART],
    indirect=["scenario"],
)


@pytest.fixture(params=["psycopg", "asyncpg", "aiosqlite"])
def scenario(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[AwaitedSessionScenario]:
    on_sqlite = request.param == "aiosqlite"
    database = SqliteDatabase(tmp_path) if on_sqlite else PostgresDatabase(request.getfixturevalue("postgres_server"))
    with awaited_scenario(database, emulator, request.param, made=AwaitedSessionScenario) as scenario:
        assert isinstance(scenario, AwaitedSessionScenario)
        yield scenario
    database.close()


@pytest.mark.parametrize("fault", FAULTS)
@cases
def test_a_fault_at_a_point(scenario: AwaitedSessionScenario, point: PausePoint, fault: FaultKind) -> None:
    check_a_fault_at_a_point(scenario, point, Predecessor.COMMITTED, fault, Survivor.SAME_WRITER)


@cases
def test_a_cancellation_at_a_point(scenario: AwaitedSessionScenario, point: PausePoint) -> None:
    """It strikes at the first await after the point; a later query gets the row's outcome."""
    scenario.leave_behind(Predecessor.COMMITTED)

    def cancel() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    with scenario.writer(AtPoint(point, cancel)) as writer:
        seen = scenario.write(writer, 1)
        assert isinstance(seen.error, asyncio.CancelledError)
        if writer.state is SlotState.UNRESOLVED:
            assert point in scenario.points_before_commit_request
            (found,) = writer.recover()
            if found.outcome == "committed":
                scenario.expected += event_texts("1")
        else:
            assert (seen.outcome == "committed") is (point in POINTS_AFTER_THE_DECISION)
        assert scenario.write(writer, 2).error is None
        scenario.assert_both_sides_agree()


@pytest.mark.parametrize("applied", [True, False])
def test_the_outcome_is_found_at_once_where_the_database_answers(
    scenario: AwaitedSessionScenario, applied: bool
) -> None:
    lose = AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lambda: scenario.database.lose_commit(applied=applied))
    with scenario.writer(lose) as writer:
        seen = scenario.write(writer, 1)
        assert seen.took_effect is applied
        assert (seen.error is None) is applied
        assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("resolver", ["resolve", "next session"])
def test_the_outcome_is_unknown_until_the_database_is_back(
    scenario: AwaitedSessionScenario, applied: bool, resolver: str
) -> None:
    def lose_commit_and_database() -> None:
        scenario.database.lose_commit(applied=applied)
        scenario.database.refuse_new_connections()

    lose = AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lose_commit_and_database)
    with scenario.writer(lose, resolve_timeout_ms=1_000) as writer:
        writer.recover()  # makes the row: for that, a session would open a connection that this test does not lose
        seen = scenario.write(writer, 1)
        assert isinstance(seen.error, OutcomeUnknown)
        assert seen.outcome is None
        scenario.database.come_back()
        scenario.expected += event_texts("1") if applied else []
        if resolver == "resolve":
            assert [found.outcome for found in writer.recover()] == [
                Outcome.COMMITTED if applied else Outcome.ROLLED_BACK
            ]
            scenario.assert_both_sides_agree()
        assert scenario.write(writer, 2).error is None
        scenario.assert_both_sides_agree()
