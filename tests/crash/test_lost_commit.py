"""The response to the database's COMMIT is lost: who asks later, and what else was written meanwhile.

That the row tells the outcome, now, later, or to another process, is in `test_driver_matrix.py`, for every writer.
"""

from __future__ import annotations

import pytest

from dualwrite.errors import FencedError, OutcomeUnknown
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.scenario import Scenario, event_texts, losing_the_commit

pytestmark = [
    pytest.mark.usefixtures("asks_twice"),
    pytest.mark.parametrize("scenario", ["postgres", "sqlite", "psycopg", "asyncpg"], indirect=True),
]


def losing_writer(scenario: Scenario, *, applied: bool) -> DualWriter:
    """Return a writer that loses its commit, and the database."""
    return scenario.writer(losing_the_commit(scenario.database, applied=applied, and_database=True))


def test_a_row_replaced_by_a_later_process_proves_nothing(scenario: Scenario) -> None:
    older = losing_writer(scenario, applied=True)
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
def test_the_next_dual_write_resolves_an_unknown_outcome(scenario: Scenario, applied: bool) -> None:
    with losing_writer(scenario, applied=applied) as writer:
        with pytest.raises(OutcomeUnknown), writer.transaction() as first:
            first.send(scenario.topic, value="1")
        assert first.outcome is None
        scenario.database.come_back()
        assert scenario.write(writer, 2).error is None
        assert first.outcome is (Outcome.COMMITTED if applied else Outcome.ROLLED_BACK)


def test_the_next_dual_write_does_not_take_the_id_from_the_process_that_resolves(scenario: Scenario) -> None:
    older = losing_writer(scenario, applied=True)
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
