"""The response to the database's COMMIT is lost: the row tells the outcome, now, later, or to another process."""

from __future__ import annotations

import pytest

from dualwrite.errors import FencedError, OutcomeUnknown
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.scenario import AtPoint, Scenario, event_texts

pytestmark = pytest.mark.parametrize("scenario", ["postgres", "sqlite", "psycopg", "asyncpg"], indirect=True)


def impatient_writer(scenario: Scenario, pause: AtPoint) -> DualWriter:
    return scenario.writer(pause, resolve_timeout_ms=1_000)


@pytest.mark.parametrize("applied", [True, False])
def test_the_outcome_is_found_at_once_where_the_database_answers(scenario: Scenario, applied: bool) -> None:
    lose = AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lambda: scenario.database.lose_commit(applied=applied))
    with scenario.writer(lose) as writer:
        seen = scenario.write(writer, 1)
        assert seen.took_effect is applied
        assert (seen.error is None) is applied
        assert writer.state is SlotState.READY
        assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("resolver", ["resolve", "next transaction", "next process"])
def test_the_outcome_is_unknown_until_the_database_is_back(scenario: Scenario, applied: bool, resolver: str) -> None:

    def lose_commit_and_database() -> None:
        scenario.database.lose_commit(applied=applied)
        scenario.database.refuse_new_connections()

    writer = impatient_writer(scenario, AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lose_commit_and_database))
    seen = scenario.write(writer, 1)
    assert isinstance(seen.error, OutcomeUnknown)
    assert seen.outcome is None
    assert seen.error.transactional_id == scenario.transactional_id
    assert seen.error.prepared_state
    assert "recover()" in str(seen.error)
    assert writer.state is SlotState.UNRESOLVED
    with pytest.raises(OutcomeUnknown):
        writer.recover()

    scenario.database.come_back()
    scenario.expected += event_texts("1") if applied else []
    expected_outcome = Outcome.COMMITTED if applied else Outcome.ROLLED_BACK
    if resolver == "resolve":
        (resolution,) = writer.recover()
        assert resolution.outcome is expected_outcome
        assert str(resolution.prepared_state) == seen.error.prepared_state
        scenario.assert_both_sides_agree()
        assert writer.recover() == []
    elif resolver == "next process":
        writer.close()
        writer = scenario.writer()
        assert [found.outcome for found in writer.recover()] == [expected_outcome]
        scenario.assert_both_sides_agree()
    assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()
    writer.close()


def test_a_row_that_a_later_process_replaced_tells_nothing(scenario: Scenario) -> None:

    def lose_commit_and_database() -> None:
        scenario.database.lose_commit(applied=True)
        scenario.database.refuse_new_connections()

    older = impatient_writer(scenario, AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lose_commit_and_database))
    assert isinstance(scenario.write(older, 1).error, OutcomeUnknown)
    scenario.expected += event_texts("1")
    scenario.database.come_back()
    with scenario.writer() as newer:
        assert scenario.write(newer, 2).error is None
    with pytest.raises(OutcomeUnknown, match="replaced the state row"):
        older.recover()
    assert older.state is SlotState.FENCED
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("applied", [True, False])
def test_who_was_told_that_nobody_knows_hears_it_when_the_next_dual_write_finds_out(
    scenario: Scenario, applied: bool
) -> None:

    def lose_commit_and_database() -> None:
        scenario.database.lose_commit(applied=applied)
        scenario.database.refuse_new_connections()

    with impatient_writer(scenario, AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lose_commit_and_database)) as writer:
        with pytest.raises(OutcomeUnknown), writer.transaction() as first:
            first.send(scenario.topic, value="1")
        assert first.outcome is None
        scenario.database.come_back()
        assert scenario.write(writer, 2).error is None
        assert first.outcome is (Outcome.COMMITTED if applied else Outcome.ROLLED_BACK)


def test_the_next_dual_write_does_not_take_the_id_back_from_who_resolved_it(scenario: Scenario) -> None:

    def lose_commit_and_database() -> None:
        scenario.database.lose_commit(applied=True)
        scenario.database.refuse_new_connections()

    older = impatient_writer(scenario, AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lose_commit_and_database))
    assert isinstance(scenario.write(older, 1).error, OutcomeUnknown)
    scenario.expected += event_texts("1")
    scenario.database.come_back()
    with scenario.writer() as newer:
        assert [found.outcome for found in newer.recover()] == [Outcome.COMMITTED]
        assert isinstance(scenario.write(older, 2).error, FencedError)
        assert older.state is SlotState.FENCED
        assert scenario.write(newer, 3).error is None
    scenario.assert_both_sides_agree()
    older.close()
