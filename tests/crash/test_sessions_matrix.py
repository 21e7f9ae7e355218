"""The matrix of faults, and lost commits, for sessions that the application commits by itself."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.matrix import (
    RESOLVERS,
    FaultKind,
    Survivor,
    check_a_commit_that_is_lost_with_the_database,
    check_a_fault_at_a_point,
    check_a_kill_at_a_point,
    check_a_lost_commit,
)
from tests.crash.of_sessions import SessionScenario, Way
from tests.crash.scenario import Predecessor
from tests.support.databases import Database

FAULTS = (FaultKind.EXCEPTION, FaultKind.DATABASE_ANSWER_LOST, FaultKind.BROKER_CUT)
"""Faults that end differently; the others take the same way through a writer, by any kind of commit."""


@pytest.fixture(params=Way)
def scenario(request: pytest.FixtureRequest, database: Database, emulator: Emulator) -> SessionScenario:
    return SessionScenario(database, emulator, way=request.param)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("point", PausePoint)
def test_a_fault_at_a_point(scenario: SessionScenario, point: PausePoint, fault: FaultKind) -> None:
    check_a_fault_at_a_point(scenario, point, Predecessor.COMMITTED, fault, Survivor.SAME_WRITER)


@pytest.mark.parametrize("point", PausePoint)
def test_a_kill_at_a_point(database: Database, emulator: Emulator, point: PausePoint) -> None:
    """Each point is met in both ways, one per database: a process takes its time to start."""
    turn = list(PausePoint).index(point) + (database.engine.dialect.name == "sqlite")
    way = list(Way)[turn % len(Way)]
    check_a_kill_at_a_point(SessionScenario(database, emulator), point, Predecessor.ROLLED_BACK, "--sessions", way)


@pytest.mark.parametrize("applied", [True, False])
def test_the_outcome_is_found_at_once_where_the_database_answers(scenario: SessionScenario, applied: bool) -> None:
    check_a_lost_commit(scenario, applied=applied)


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("resolver", RESOLVERS)
def test_the_outcome_is_unknown_until_the_database_is_back(
    scenario: SessionScenario, applied: bool, resolver: str
) -> None:
    """The next session has begun its transaction before it commits: the lost commit is found out under its lock."""
    check_a_commit_that_is_lost_with_the_database(scenario, resolver, applied=applied)
