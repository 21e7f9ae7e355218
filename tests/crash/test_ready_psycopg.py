"""A writer on psycopg whose id is ready: it locks the row, and the message of COMMIT writes it.

Events between the two must leave the row as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from dualwrite.broker_emulator import Error, Fault
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import (
    AbortableError,
    FencedError,
    TransactionDoomedError,
    TransactionEndedInsideError,
)
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from tests.crash.psycopg_scenario import INSERT, PsycopgScenario, conninfo_of
from tests.crash.scenario import POINTS_AFTER_LOCK, AtPoint
from tests.support.databases import PostgresDatabase

INVALID_RECORD = 87
DEADLINE_S = 30


@pytest.fixture
def scenario(postgres: PostgresDatabase, emulator: Emulator) -> PsycopgScenario:
    return PsycopgScenario(postgres, emulator)


@pytest.fixture
def connection(scenario: PsycopgScenario) -> Iterator[psycopg.Connection]:
    with psycopg.connect(conninfo_of(scenario.database.url), autocommit=True) as connection:
        yield connection


def ready(scenario: PsycopgScenario, hook: Callable[[PausePoint], None] | None = None) -> PsycopgDualWriter:
    writer = scenario.writer(hook)
    assert scenario.write(writer, 0).error is None
    return writer


def test_the_row_is_written_by_the_commit(scenario: PsycopgScenario) -> None:
    reached: list[PausePoint] = []
    rows: list[PreparedTxnState] = []

    def note(point: PausePoint) -> None:
        reached.append(point)
        rows.append(scenario.row())

    with ready(scenario, note) as writer:
        before = scenario.row()
        reached.clear()
        rows.clear()
        assert scenario.write(writer, 1).error is None
    assert [*dict.fromkeys(reached)] == [
        *POINTS_AFTER_LOCK,
        PausePoint.AFTER_DATABASE_COMMIT,
        PausePoint.AFTER_KAFKA_COMMIT,
    ]
    committed = reached.index(PausePoint.AFTER_DATABASE_COMMIT)
    assert {*rows[:committed]} == {before}
    assert {*rows[committed:]} == {scenario.row()} != {before}
    scenario.assert_both_sides_agree()


def test_records_that_are_refused_take_the_row_with_them(scenario: PsycopgScenario) -> None:
    with ready(scenario) as writer:
        before = scenario.row()
        scenario.emulator.faults.add(Fault(api="Produce", action=Error(INVALID_RECORD)))
        assert isinstance(scenario.write(writer, 1).error, AbortableError)
        assert scenario.row() == before
        assert writer.state is SlotState.READY
        assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("ending", ["ROLLBACK", "ROLLBACK; BEGIN", "ROLLBACK AND CHAIN"])
@pytest.mark.parametrize("point", POINTS_AFTER_LOCK)
def test_only_the_transaction_that_wrote_the_row_is_committed(
    scenario: PsycopgScenario, connection: psycopg.Connection, point: PausePoint, ending: str
) -> None:
    """A forked process, for instance, ends it on the socket that it shares, and maybe begins another one."""
    hook = AtPoint(point, lambda: _raw(connection, ending), armed=False)
    with ready(scenario, hook) as writer:
        before = scenario.row()
        hook.arm()
        with pytest.raises(TransactionEndedInsideError), writer.transaction(connection) as tx:
            tx.connection.execute(INSERT, (10, "1"))
            tx.send(scenario.topic, value="1", key="k")
        assert hook.struck
        assert scenario.row() == before
        assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()


def _raw(connection: psycopg.Connection, statement: str) -> None:
    connection.pgconn.exec_(statement.encode())


def test_a_transaction_that_failed_after_the_row_was_written(
    scenario: PsycopgScenario, connection: psycopg.Connection
) -> None:
    hook = AtPoint(PausePoint.AFTER_PREPARE, lambda: _raw(connection, "SELECT 1/0"), armed=False)
    with ready(scenario, hook) as writer:
        before = scenario.row()
        hook.arm()
        with pytest.raises(TransactionDoomedError), writer.transaction(connection) as tx:
            tx.connection.execute(INSERT, (10, "1"))
            tx.send(scenario.topic, value="1", key="k")
        assert scenario.row() == before
    scenario.assert_both_sides_agree()


def test_a_row_that_another_writer_has_written_since_is_taken_over(scenario: PsycopgScenario) -> None:
    """The other one's leftover is completed by its row first, and neither is blocked."""
    with ready(scenario) as older, scenario.writer() as newer:
        assert scenario.write(newer, 1).error is None
        theirs = scenario.row()
        assert scenario.write(older, 2).error is None
        assert scenario.row() != theirs
        assert scenario.write(newer, 3).error is None
    scenario.assert_both_sides_agree()


def test_a_fenced_writer_leaves_an_unchanged_row_alone(scenario: PsycopgScenario) -> None:
    with ready(scenario) as older, scenario.writer() as newer:
        before = scenario.row()
        newer.recover()
        assert isinstance(scenario.write(older, 1).error, FencedError)
        assert scenario.row() == before
        assert scenario.write(newer, 2).error is None
    scenario.assert_both_sides_agree()
