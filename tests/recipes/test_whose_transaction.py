"""Sessions and Connections whose COMMIT is not the decision of a dual write, or not the whole of it, are refused."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session

from dualwrite.errors import IllegalStateError, TransactionEndedInsideError
from dualwrite.outcome import Outcome, outcome_of
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sql.postgres import MARK, MARK_ATTRIBUTE
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.testing.conformance.row_store import RowStore
from tests.crash.scenario import InjectedError, Scenario
from tests.recipes.steps import put
from tests.support.databases import events, unique


@pytest.fixture(autouse=True)
def _the_row_exists(writer: DualWriter) -> None:
    """On SQLite it could not be made while the transactions below hold the file."""
    writer.recover()


def test_a_session_that_joined_its_connections_transaction_commits_nothing(
    scenario: Scenario, writer: DualWriter
) -> None:
    """Session.commit() leaves COMMIT to the code that began the transaction; it may never come."""
    with scenario.database.engine.connect() as connection, connection.begin() as outer:
        with pytest.raises(IllegalStateError, match="commits nothing"), writer.transaction(Session(connection)) as tx:
            put(tx, scenario, 1)
        assert not outer.is_active
    assert writer.state is SlotState.READY
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("join_transaction_mode", ["conditional_savepoint", "create_savepoint"])
def test_no_dual_write_inside_a_savepoint(scenario: Scenario, writer: DualWriter, join_transaction_mode: str) -> None:
    with Session(scenario.database.engine) as session, session.begin_nested():
        with pytest.raises(IllegalStateError, match="savepoint"), writer.transaction(session):
            pass
    with scenario.database.engine.connect() as connection, connection.begin(), connection.begin_nested():
        with Session(connection, join_transaction_mode=join_transaction_mode) as joined:  # type: ignore[arg-type]
            for bind in (connection, joined):
                with pytest.raises(IllegalStateError, match="savepoint"), writer.transaction(bind):
                    pass
    assert writer.state is SlotState.READY


def test_a_two_phase_session_is_decided_by_its_coordinator(scenario: Scenario, writer: DualWriter) -> None:
    if scenario.database.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has no two-phase transactions")
    with Session(scenario.database.engine, twophase=True) as session:
        with pytest.raises(IllegalStateError, match="twophase"), writer.transaction(session):
            pass
    assert writer.state is SlotState.READY


def test_a_session_of_another_engine(scenario: Scenario, writer: DualWriter, tmp_path: Path) -> None:
    """A lost commit would be looked up in the wrong database, and a committed transaction aborted in Kafka."""
    other = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    with Session(other) as session, pytest.raises(IllegalStateError, match="another Engine"):
        with writer.transaction(session):
            pass
    same = scenario.database.engine.execution_options(logging_token="same")
    with Session(same) as session, writer.transaction(session) as tx:
        put(tx, scenario, 1)
    scenario.assert_both_sides_agree("1")


@pytest.mark.parametrize("swallow", [True, False])
def test_a_session_that_goes_to_a_second_database(
    scenario: Scenario, writer: DualWriter, tmp_path: Path, swallow: bool
) -> None:
    """One of the two commits could fail after the other, and the row could not show which."""
    other = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    events.metadata.create_all(other)
    with Session(scenario.database.engine) as session:
        with pytest.raises(IllegalStateError, match="second database"), writer.transaction(session) as tx:
            put(tx, scenario, 1)
            try:
                session.execute(sa.select(events), bind_arguments={"bind": other})
            except IllegalStateError:
                if not swallow:
                    raise
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("ending", ["rollback", "commit"])
@pytest.mark.parametrize("how", ["error", "session", "interrupt"])
def test_a_block_whose_transaction_was_ended_past_sqlalchemy_has_an_unknown_outcome(
    scenario: Scenario, writer: DualWriter, caplog: pytest.LogCaptureFixture, ending: str, how: str
) -> None:
    """A handler that repeats rolled-back blocks would write the row twice."""
    errors = {"error": InjectedError, "session": TransactionEndedInsideError, "interrupt": KeyboardInterrupt}
    with pytest.raises(errors[how]) as caught, writer.transaction() as tx:
        put(tx, scenario, 1)
        getattr(tx.connection.connection, ending)()
        if how == "session":
            tx.session.close()
        else:
            raise errors[how]
    assert outcome_of(caught.value) is Outcome.UNKNOWN
    assert tx.outcome is None
    assert "ended its database transaction" in caplog.text
    if how == "interrupt":
        assert "ended its database transaction" in caught.value.__notes__[0]
    assert scenario.row().is_empty
    scenario.assert_nothing_open()
    assert writer.state is SlotState.READY


def test_a_row_that_was_locked_by_another_transaction_is_not_written(scenario: Scenario, writer: DualWriter) -> None:
    """Such as one that a forked process ended: the state is written only under the lock of this very transaction."""
    if scenario.database.engine.dialect.name == "sqlite":
        pytest.skip("SQLite cannot tell one transaction from the next")
    writer.recover()
    store = RowStore(scenario.database.engine)
    with scenario.database.engine.connect() as connection:
        row = store.lock(connection, scenario.transactional_id, timeout_ms=None)
        connection.rollback()
        with pytest.raises(TransactionEndedInsideError, match="in which this block began was ended"):
            store.write(connection, scenario.transactional_id, previous=row, new=PreparedTxnState("1:1"), manifest="")


@pytest.mark.parametrize("end", ["rollback", "commit"])
def test_the_lock_is_recognised_inside_and_after_a_savepoint(scenario: Scenario, writer: DualWriter, end: str) -> None:
    writer.recover()
    store = RowStore(scenario.database.engine)
    with scenario.database.engine.begin() as connection:
        savepoint = connection.begin_nested()
        connection.execute(sa.select(1))
        getattr(savepoint, end)()
        row = store.lock(connection, scenario.transactional_id, timeout_ms=None)
        # MySQL's own proof is a savepoint, and one that is set after it would end with it
        with nullcontext() if connection.dialect.name == "mysql" else connection.begin_nested():
            store.write(connection, scenario.transactional_id, previous=row, new=PreparedTxnState("1:1"), manifest="")
    assert scenario.row() == PreparedTxnState("1:1")


def test_the_mark_goes_with_begin_in_its_round_trip(scenario: Scenario, writer: DualWriter) -> None:
    """The mark uses psycopg's own way to begin, so this test fails if that changes."""
    if scenario.database.engine.dialect.name != "postgresql":
        pytest.skip("is of psycopg")
    with writer.transaction() as tx:
        driver = tx.connection.connection.driver_connection
        assert MARK_ATTRIBUTE not in vars(driver)
        put(tx, scenario, 1)
        mark = vars(driver)[MARK_ATTRIBUTE]
        assert tx.connection.scalar(sa.text(f"SELECT current_setting('{MARK}', true)")) == mark
        assert "_start_query" not in vars(driver)
        with tx.savepoint():
            put(tx, scenario, 2)
    scenario.expected += ["1", "2"]
    with writer.transaction() as tx:
        put(tx, scenario, 3)
        assert vars(tx.connection.connection.driver_connection)[MARK_ATTRIBUTE] != mark
    scenario.assert_both_sides_agree("3")


def _raw(connection: sa.Connection, text: str) -> None:
    """Execute past psycopg's and SQLAlchemy's own bookkeeping."""
    driver: Any = connection.connection.driver_connection
    driver.pgconn.exec_(text.encode())


@pytest.mark.parametrize("first", ["engine", "variant"])
@pytest.mark.parametrize("used", ["engine", "variant", "variant of the variant"])
def test_writers_on_an_engine_and_on_a_variant_of_it_mark_a_transaction_once(
    scenario: Scenario, first: str, used: str
) -> None:
    """Between their listeners one of the application sends BEGIN with a mark, which the second must leave alone."""
    engine = sa.create_engine(scenario.database.url)
    if engine.dialect.driver != "psycopg":
        pytest.skip("only psycopg's BEGIN is marked")
    variant = engine.execution_options(isolation_level="READ COMMITTED")
    engines = {"engine": engine, "variant": variant, "variant of the variant": variant.execution_options()}
    event.listen(variant, "begin", lambda connection: connection.exec_driver_sql("SELECT 1"))
    writers = [
        DualWriter(
            engines[name],
            bootstrap_servers=scenario.emulator.bootstrap_servers,
            transactional_id=scenario.transactional_id if name == first else unique("other"),
        )
        for name in sorted(["engine", "variant"], key=lambda name: name != first)
    ]
    with Session(engines[used]) as session, writers[0].transaction(session) as tx:
        put(tx, scenario, 1)
        mark = vars(tx.connection.connection.driver_connection)[MARK_ATTRIBUTE]
        assert tx.connection.scalar(sa.text(f"SELECT current_setting('{MARK}', true)")) == mark
    scenario.expected.append("1")
    with Session(engines[used]) as session, pytest.raises(TransactionEndedInsideError, match="was ended bypassing"):
        with writers[0].transaction(session) as tx:
            put(tx, scenario, 2)
            _raw(tx.connection, "ROLLBACK; BEGIN")
            put(tx, scenario, 3)
    for each in writers:
        each.close()
    engine.dispose()
    scenario.assert_both_sides_agree()
