"""The matrix of faults, and lost commits, for sessions that the application commits by itself."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import OutcomeUnknown
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from tests.crash.matrix import FaultKind, Survivor, check_a_fault_at_a_point, check_a_kill_at_a_point
from tests.crash.of_sessions import SessionScenario, Way
from tests.crash.scenario import AtPoint, Predecessor, event_texts
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
    lose = AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lambda: scenario.database.lose_commit(applied=applied))
    with scenario.writer(lose) as writer:
        seen = scenario.write(writer, 1)
        assert seen.took_effect is applied
        assert (seen.error is None) is applied
        assert writer.state is SlotState.READY
        assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("resolver", ["resolve", "next session", "next process"])
def test_the_outcome_is_unknown_until_the_database_is_back(
    scenario: SessionScenario, applied: bool, resolver: str
) -> None:
    """The next session has begun its transaction before it commits: the lost commit is found out under its lock."""

    def lose_commit_and_database() -> None:
        scenario.database.lose_commit(applied=applied)
        scenario.database.refuse_new_connections()

    lose = AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lose_commit_and_database)
    writer = scenario.writer(lose, resolve_timeout_ms=1_000)
    seen = scenario.write(writer, 1)
    assert isinstance(seen.error, OutcomeUnknown)
    assert seen.outcome is None
    assert writer.state is SlotState.UNRESOLVED
    scenario.database.come_back()
    scenario.expected += event_texts("1") if applied else []
    if resolver == "resolve":
        assert [found.outcome for found in writer.recover()] == [Outcome.COMMITTED if applied else Outcome.ROLLED_BACK]
        scenario.assert_both_sides_agree()
    elif resolver == "next process":
        writer.close()
        writer = scenario.writer()
    assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()
    writer.close()
