"""The response to the COMMIT of a block is lost: its outcome is that of its transaction, asked now or later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa

from dualwrite.delivery import Outbox
from dualwrite.errors import OutcomeUnknown
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.pool import outbox_publisher
from tests.crash.psycopg_scenario import PsycopgScenario
from tests.crash.scenario import AtPoint
from tests.crash.styles import PATIENCE_S, Member, Style
from tests.producer.cancelling import Moment, cancelled_at
from tests.recipes.outboxes import Open, assert_published, open_style, outbox_pool, scenario
from tests.recipes.pools import QUIET_LEASE_MS, put, write
from tests.recipes.test_outbox_lost_commits import SlowCommit
from tests.support.conditions import until
from tests.support.databases import event_bodies

__all__ = ["open_style", "scenario"]  # fixtures

Settings = dict[str, Any]

SILENT = Outbox(publishes=False)
ERRORS = (psycopg.Error, asyncpg.PostgresError, OSError, sa.exc.DBAPIError)


@pytest.fixture(autouse=True)
def be_quick(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the background rest, so that the proxy sees a block's COMMIT first.

    Return a function after which it hurries, once a block has woken it.
    """
    monkeypatch.setattr(outbox_publisher, "_MOST_IDLE_S", 600.0)
    return lambda: monkeypatch.setattr(outbox_publisher, "_MOST_IDLE_S", 0.05)


@contextmanager
def publishing(scenario: PsycopgScenario) -> Iterator[None]:
    with outbox_pool(scenario) as pool:
        pool.recover()
        yield


def silent_style(scenario: PsycopgScenario, open_style: Open, **settings: Any) -> Style:
    """Return a style that has written block 1 without publishing it, and whose background sends no more queries."""
    with outbox_pool(scenario, SILENT) as pool:
        write(pool, scenario, 0)
    style = open_style(SILENT, lease_ms=QUIET_LEASE_MS, **settings)
    style.recover()  # before the background begins, which would sweep
    style.write(1)
    style.recover()
    until(lambda: style.pool.status.outbox_blocks > 0)
    return style


def lose_database_at_commit(scenario: PsycopgScenario, lost: Member, *, applied: bool) -> None:
    """Let the COMMIT of a block, which holds, be the last request to reach the database, or the first that fails to."""
    assert lost.holds.wait(PATIENCE_S)
    with scenario.database.aside.connect() as connection:
        connection.exec_driver_sql(_END_IDLE)
    scenario.database.lose_commit(applied=applied)
    scenario.database.refuse_new_connections()
    lost.hold.set()


_END_IDLE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE usename = current_user AND state = 'idle' AND pid <> pg_backend_pid()"
)


@pytest.mark.parametrize("applied", [True, False])
def test_the_outcome_is_found_at_once_where_the_database_answers(
    scenario: PsycopgScenario, open_style: Open, applied: bool
) -> None:
    style = silent_style(scenario, open_style)
    scenario.database.lose_commit(applied=applied)
    member = style.start(2)
    if applied:
        assert (member.error, member.outcome) == (None, Outcome.STORED)
    else:
        assert isinstance(member.error, ERRORS)
        assert member.outcome is Outcome.ROLLED_BACK
    style.write(3)
    with publishing(scenario):
        assert_published(scenario, 0, 1, *([2] if applied else []), 3)


@pytest.mark.usefixtures("asks_twice")
@pytest.mark.parametrize("is_published", [True, False])
@pytest.mark.parametrize("applied", [True, False])
def test_the_outcome_is_unknown_until_the_database_is_back(
    scenario: PsycopgScenario, open_style: Open, applied: bool, is_published: bool, be_quick: Callable[[], None]
) -> None:
    """Others may have published the block meanwhile, so that it is not in the outbox any more."""
    style = silent_style(scenario, open_style)
    be_quick()
    lost = style.start(2, "put", "hold")
    lose_database_at_commit(scenario, lost, applied=applied)
    assert isinstance(lost.error, OutcomeUnknown)
    assert lost.error.transactional_id == scenario.transactional_id
    assert "do not repeat the dual write before its outcome is known" in str(lost.error)
    assert lost.tx.outcome is None
    expected = [0, 1, 2] if applied else [0, 1]
    assert event_bodies(scenario.database) == [str(number) for number in expected]
    if is_published:
        with publishing(scenario):
            assert_published(scenario, *expected)
    scenario.database.come_back()
    until(lambda: lost.tx.outcome is not None)
    assert lost.outcome is (Outcome.STORED if applied else Outcome.ROLLED_BACK)
    with publishing(scenario):
        assert_published(scenario, *expected)


@pytest.mark.usefixtures("asks_twice")
@pytest.mark.parametrize("applied", [True, False])
def test_closing_finds_the_outcome(scenario: PsycopgScenario, open_style: Open, applied: bool) -> None:
    """The background would have tried again later."""
    style = silent_style(scenario, open_style)
    lost = style.start(2, "put", "hold")
    lose_database_at_commit(scenario, lost, applied=applied)
    assert isinstance(lost.error, OutcomeUnknown)
    scenario.database.come_back()
    style.closing().result(PATIENCE_S)
    assert lost.outcome is (Outcome.STORED if applied else Outcome.ROLLED_BACK)


# ---- a commit that is under way while it is asked for ---------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_a_commit_that_is_in_progress_is_waited_for(scenario: PsycopgScenario, open_style: Open, fails: bool) -> None:
    style = silent_style(scenario, open_style)
    commit = SlowCommit(scenario)
    scenario.database.lose_commit(applied=True)
    lost = style.start(2)
    until(commit.is_waited_for)
    scenario.database.cut()
    assert lost.future is not None
    assert not lost.future.done()
    commit.end(commits=not fails)
    if fails:
        assert isinstance(lost.error, ERRORS)
        assert lost.outcome is Outcome.ROLLED_BACK
    else:
        assert (lost.error, lost.outcome) == (None, Outcome.STORED)
    with publishing(scenario):
        assert_published(scenario, 0, 1, *([] if fails else [2]))


@pytest.mark.usefixtures("asks_twice")
@pytest.mark.parametrize("fails", [False, True])
def test_a_commit_that_stays_in_progress_is_resolved_later(
    scenario: PsycopgScenario, open_style: Open, fails: bool, be_quick: Callable[[], None]
) -> None:
    style = silent_style(scenario, open_style)
    commit = SlowCommit(scenario)
    scenario.database.lose_commit(applied=True)
    lost = style.start(2)
    until(commit.is_waited_for)
    be_quick()
    scenario.database.cut()
    assert isinstance(lost.error, OutcomeUnknown)
    assert "its database transaction has not ended" in str(lost.error)
    assert lost.tx.outcome is None
    commit.end(commits=not fails)
    until(lambda: lost.tx.outcome is not None)
    assert lost.outcome is (Outcome.ROLLED_BACK if fails else Outcome.STORED)
    with publishing(scenario):
        assert_published(scenario, 0, 1, *([] if fails else [2]))


@pytest.mark.parametrize("again", [False, True], ids=["once", "again and again"])
@pytest.mark.parametrize("moment", Moment)
def test_a_task_that_is_cancelled_at_every_suspension(
    scenario: PsycopgScenario, open_style: Open, moment: Moment, again: bool, be_quick: Callable[[], None]
) -> None:
    style = silent_style(scenario, open_style)
    if not style.kind.is_awaited:
        pytest.skip("a thread cannot be cancelled")
    be_quick()
    expected, met = [0, 1], set[Outcome | None]()
    number, came = 1, True
    while came:
        number += 1
        member = Member(number, ("put",))
        came = style.run(cancelled_at(style.run_block(member), number - 1, moment, again=again)).came
        until(lambda: member.tx is None or member.outcome is not None)  # noqa: B023 - it is called here
        met.add(member.outcome)
        if member.outcome is Outcome.STORED:
            expected.append(number)
        assert event_bodies(scenario.database) == [str(each) for each in expected]
    assert met >= {Outcome.STORED, Outcome.ROLLED_BACK}
    with publishing(scenario):
        assert_published(scenario, *expected)


@pytest.mark.parametrize("point", [PausePoint.AFTER_STATE_WRITE, PausePoint.BEFORE_DATABASE_COMMIT])
def test_an_interruption_before_the_decision_rolls_back(scenario: PsycopgScenario, point: PausePoint) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with outbox_pool(scenario, SILENT, pause=AtPoint(point, interrupt)) as pool:
        with pytest.raises(KeyboardInterrupt), pool.transaction() as tx:
            put(tx, scenario, 1)
        assert tx.outcome is Outcome.ROLLED_BACK
        write(pool, scenario, 2)
    with publishing(scenario):
        assert_published(scenario, 2)
