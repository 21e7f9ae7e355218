"""Two living processes with one transactional id: the older is stopped at a point and goes on after the newer one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import sqlalchemy as sa

from dualwrite.errors import FencedError, OutcomeUnknown, RowLockTimeoutError
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from tests.crash.asyncpg_scenario import AsyncpgScenario
from tests.crash.scenario import (
    POINTS_AFTER_LOCK,
    POINTS_AFTER_THE_DECISION,
    POINTS_BEFORE_COMMIT_REQUEST,
    AnyScenario,
    AtPoint,
    Predecessor,
    Scenario,
)
from tests.crash.sleeping import sleeping
from tests.support.threads import in_threads
from tests.support.topics import read_topic

SCENARIOS = ["postgres", "psycopg", *(pytest.param(name, marks=pytest.mark.proof) for name in ("sqlite", "asyncpg"))]
EACH = pytest.mark.parametrize("scenario", SCENARIOS, indirect=True)

POINTS_UNDER_THE_LOCK = [point for point in PausePoint if point not in POINTS_AFTER_THE_DECISION]
UNDER_THE_LOCK = pytest.mark.parametrize(
    ("scenario", "has_written", "point"),
    [
        *((scenario, False, point) for scenario in ("postgres", "psycopg") for point in POINTS_UNDER_THE_LOCK),
        *((scenario, False, PausePoint.BEFORE_DATABASE_COMMIT) for scenario in ("sqlite", "asyncpg")),
        *(
            pytest.param(scenario, False, point, marks=pytest.mark.proof)
            for scenario in ("sqlite", "asyncpg")
            for point in POINTS_UNDER_THE_LOCK
            if point is not PausePoint.BEFORE_DATABASE_COMMIT
        ),
        *(("psycopg", True, point) for point in POINTS_AFTER_LOCK),  # it is ready, and sends other statements
    ],
    indirect=["scenario"],
)


def commits_without_looking(scenario: AnyScenario | AsyncpgScenario) -> Sequence[PausePoint]:
    """Return the points after which COMMIT is sent before the lost connection can be noticed."""
    if isinstance(scenario, AsyncpgScenario):
        return (PausePoint.AFTER_PREPARE, *POINTS_BEFORE_COMMIT_REQUEST)  # its loop does not run in between
    return () if scenario.database.engine.dialect.driver == "psycopg" else POINTS_BEFORE_COMMIT_REQUEST


@UNDER_THE_LOCK
def test_no_process_decides_while_an_older_one_holds_the_row(
    scenario: Scenario, has_written: bool, point: PausePoint
) -> None:
    with sleeping(scenario, point, has_written=has_written) as older:
        with scenario.writer(lock_timeout_ms=50) as impatient, pytest.raises(RowLockTimeoutError):
            impatient.recover()
        assert older.wake().error is None
        with scenario.writer() as newer:
            newer.recover()
            assert scenario.write(newer, 2).error is None
    scenario.assert_both_sides_agree()


@UNDER_THE_LOCK
def test_a_zombie_whose_database_transaction_is_gone_changes_nothing(
    scenario: Scenario, has_written: bool, point: PausePoint
) -> None:
    with sleeping(scenario, point, has_written=has_written) as older:
        scenario.database.cut()
        with scenario.writer() as newer:
            newer.recover()
            assert scenario.write(newer, 2).error is None
            seen = older.wake()
            third = scenario.write(newer, 3)
    if point in commits_without_looking(scenario):
        # It had sent all its requests, and the row that could tell their outcome has been replaced.
        assert isinstance(seen.error, OutcomeUnknown)
    else:
        assert seen.took_effect is False
    assert third.error is None  # it found its lock gone before its first request to Kafka
    scenario.assert_both_sides_agree()


@EACH
@pytest.mark.parametrize("point", POINTS_AFTER_THE_DECISION)
def test_a_decided_zombie_is_completed_by_the_newer_process(scenario: Scenario, point: PausePoint) -> None:
    with sleeping(scenario, point) as older, scenario.writer() as newer:
        completed = point is PausePoint.AFTER_DATABASE_COMMIT
        assert [found.outcome for found in newer.recover()] == [Outcome.COMMITTED] * completed
        second = scenario.write(newer, 2)
        assert second.error is None
        assert older.wake().error is None
        assert scenario.write(newer, 3).error is None
        fourth = scenario.write(older.writer, 4)
        if point is PausePoint.AFTER_DATABASE_COMMIT:
            assert isinstance(fourth.error, FencedError)  # by its own commit
        else:
            assert fourth.error is None  # it found the row replaced, and took the id back
    scenario.expected.sort(key=lambda body: int(body.split("/")[0]))  # the older one noted its own write when it woke
    scenario.assert_both_sides_agree()


@EACH
@pytest.mark.parametrize("point", list(PausePoint))
def test_an_idle_owner_notices_at_its_next_write(scenario: Scenario, point: PausePoint) -> None:
    """The older one is alive and idle and believes that the id is its own; the newer one loses its database.

    Where the row has been replaced, the older one completes the leftover and takes the id over; otherwise Kafka fences
    it, unless the newer one has sent Kafka no request.
    """
    with scenario.writer(engine=sa.create_engine(scenario.database.url)) as older:
        assert scenario.write(older, 1).error is None
        with scenario.writer(AtPoint(point, scenario.database.cut)) as newer:
            assert scenario.write(newer, 2).took_effect is (point in POINTS_AFTER_THE_DECISION)
            third = scenario.write(older, 3)
            if point is PausePoint.AFTER_LOCK or point in POINTS_AFTER_THE_DECISION:
                assert third.error is None
            else:
                assert isinstance(third.error, FencedError)
                assert older.state is SlotState.FENCED
            assert scenario.write(newer, 4).error is None
    scenario.assert_both_sides_agree()


@EACH
def test_a_sleep_between_lock_and_initialisation_outdates_the_row_that_was_read(scenario: Scenario) -> None:
    """Meanwhile it lost the lock, and another one wrote and died between its two commits."""
    with sleeping(scenario, PausePoint.AFTER_LOCK) as older:
        scenario.database.cut()
        scenario.leave_behind(Predecessor.COMMITTED)
        assert older.wake().took_effect is False
    older.writer.close()
    with scenario.writer() as newer:
        assert [found.outcome for found in newer.recover()] == [Outcome.COMMITTED]
    scenario.assert_both_sides_agree()


@EACH
def test_a_fenced_writer_names_the_transaction_it_left_in_doubt(scenario: Scenario) -> None:
    """The newer one fenced it between its two commits, and died before it had completed its transaction."""
    with sleeping(scenario, PausePoint.AFTER_DATABASE_COMMIT) as older:
        with (
            scenario.writer(AtPoint(PausePoint.AFTER_INIT, scenario.database.cut)) as newer,
            pytest.raises(scenario.database_error),
        ):
            newer.recover()
        seen = older.wake()
    assert seen.error is None
    assert seen.outcome is Outcome.COMMITTED
    assert older.writer.state is SlotState.FENCED
    assert older.writer.in_doubt == scenario.row()
    older.writer.close()
    with scenario.writer() as third:
        assert [found.prepared_state for found in third.recover()] == [scenario.row()]
    scenario.assert_both_sides_agree()


@EACH
def test_an_idle_owner_recovers_the_transaction_of_an_unknown_successor(scenario: Scenario) -> None:
    with scenario.writer() as older:
        assert scenario.write(older, 1).error is None
        scenario.leave_behind(Predecessor.COMMITTED)
        assert [found.outcome for found in older.recover()] == [Outcome.COMMITTED]
        in_topic = [value for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)]
        assert sorted(in_topic) == sorted(scenario.expected)
        scenario.assert_nothing_open()


@EACH
def test_two_processes_recover_at_once(scenario: Scenario) -> None:
    scenario.leave_behind(Predecessor.COMMITTED)
    found = in_threads(*(scenario.writer().recover for _ in range(4)))
    assert [each.outcome for of_one in found for each in of_one] == [Outcome.COMMITTED]
    scenario.assert_both_sides_agree()
