"""The matrix of faults, lost commits and cancellations for AsyncSessions that the application commits by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.awaited import awaited_scenario
from tests.crash.matrix import (
    FaultKind,
    Survivor,
    cancel,
    check_a_cancellation,
    check_a_commit_that_is_lost_with_the_database,
    check_a_fault_at_a_point,
    check_a_lost_commit,
)
from tests.crash.of_async_sessions import AwaitedSessionScenario
from tests.crash.scenario import AtPoint, Predecessor
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
    scenario.leave_behind(Predecessor.COMMITTED)
    hook = AtPoint(point, cancel)
    with scenario.writer(hook) as writer:
        check_a_cancellation(scenario, writer, hook, may_be_unresolved=scenario.points_before_commit_request)


@pytest.mark.parametrize("applied", [True, False])
def test_the_outcome_is_found_at_once_where_the_database_answers(
    scenario: AwaitedSessionScenario, applied: bool
) -> None:
    check_a_lost_commit(scenario, applied=applied)


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("resolver", ["resolve", "next write"])
def test_the_outcome_is_unknown_until_the_database_is_back(
    scenario: AwaitedSessionScenario, applied: bool, resolver: str
) -> None:
    """To make the row, a session would open a connection that this test does not lose."""
    check_a_commit_that_is_lost_with_the_database(scenario, resolver, applied=applied, has_row=True)
