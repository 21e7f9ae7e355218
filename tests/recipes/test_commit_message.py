"""On psycopg, the message that SQLAlchemy sends as COMMIT also writes the state row, and proves the lock.

With any hook before it, and any error of the server in it, both sides are written, or neither is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import (
    IllegalStateError,
    StateRowError,
    TransactionDoomedError,
    TransactionEndedInsideError,
)
from dualwrite.outcome import Outcome, outcome_of
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.testing.network_proxy import NetworkProxy
from tests.crash.scenario import AtPoint, Scenario
from tests.recipes.steps import put
from tests.support.databases import PostgresDatabase, event_bodies, events

Hook = Callable[[sa.Connection], object]

INSERT = sa.insert(events)


@pytest.fixture
def scenario(postgres: PostgresDatabase, emulator: Emulator) -> Scenario:
    return Scenario(postgres, emulator)


@pytest.fixture
def writer(scenario: Scenario) -> Iterator[DualWriter]:
    with scenario.writer() as writer:
        with writer.transaction() as tx:
            put(tx, scenario, 1)
        scenario.expected.append("1")
        yield writer


class Write:
    """Writes event 2, and runs a hook between the lock and COMMIT."""

    def __init__(self, scenario: Scenario, writer: DualWriter) -> None:
        self._scenario = scenario
        self._writer = writer
        self.tx: DualWrite | None = None

    def __call__(self, hook: Hook) -> None:
        with Session(self._scenario.database.engine) as session, self._writer.transaction(session) as self.tx:
            begun = session.connection()
            begun.exec_driver_sql("SAVEPOINT early")
            put(self.tx, self._scenario, 2)
            event.listen(session, "before_commit", lambda session: hook(begun) and None)

    @property
    def outcome(self) -> Outcome | None:
        assert self.tx is not None, "it has begun"
        return self.tx.outcome


@pytest.fixture
def write(scenario: Scenario, writer: DualWriter) -> Write:
    return Write(scenario, writer)


def driver_of(connection: sa.Connection) -> Any:
    """The connection of psycopg, past SQLAlchemy."""
    return connection.connection.driver_connection


def raw(connection: sa.Connection, text: str) -> None:
    """Execute past psycopg's and SQLAlchemy's own bookkeeping."""
    driver_of(connection).pgconn.exec_(text.encode())


def assert_rolled_back(scenario: Scenario, writer: DualWriter, write: Write) -> None:
    """Neither side has event 2, and the writer goes on."""
    assert write.outcome is Outcome.ROLLED_BACK
    assert_has_neither(scenario, writer)


def assert_has_neither(scenario: Scenario, writer: DualWriter) -> None:
    assert writer.state is SlotState.READY
    scenario.assert_both_sides_agree()
    with writer.transaction() as tx:
        put(tx, scenario, 3)
    scenario.assert_both_sides_agree("3")


# ---- its statements -------------------------------------------------------------------------------------------------


def test_the_state_and_commit_are_one_message(scenario: Scenario) -> None:
    requests: list[bytes] = []

    def note(request: bytes) -> bool:
        requests.append(request)
        return False

    with scenario.writer() as writer:
        with writer.transaction() as tx:
            put(tx, scenario, 1)
        proxy: NetworkProxy = scenario.database.proxy  # type: ignore[attr-defined]
        proxy.cut_at(note)
        with writer.transaction() as tx:
            put(tx, scenario, 2)
        row = str(scenario.row()).encode()
        blocks = [each for each in requests if b"pg_catalog.version" not in each]  # closing settles the row
    scenario.assert_both_sides_agree("1", "2")
    (last,) = [each for each in blocks if row in each]
    assert b"COMMIT" in last
    assert last is blocks[-1]
    assert [b"INSERT INTO events" in each for each in blocks].count(True) == 1
    writes = blocks[next(number for number, each in enumerate(blocks) if b"BEGIN" in each) :]
    assert len(writes) == 4  # BEGIN with the mark, the block's statement, the lock, and this message


def test_nothing_is_written_before_the_commit_message(scenario: Scenario, writer: DualWriter) -> None:
    before = scenario.row()
    seen: list[object] = []
    pause = AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lambda: seen.append(scenario.row()))
    with scenario.writer(pause) as other, other.transaction() as tx:
        put(tx, scenario, 2)
    scenario.expected.append("2")
    assert seen == [before]
    assert scenario.row() == tx.prepared_state != before
    scenario.assert_both_sides_agree()


def test_a_hook_that_writes_belongs_to_the_dual_write(scenario: Scenario, writer: DualWriter, write: Write) -> None:
    def hook(connection: sa.Connection) -> None:
        connection.execute(sa.update(events).where(events.c.id == 2).values(event_key="late"))

    write(hook)
    assert write.outcome is Outcome.COMMITTED
    scenario.assert_both_sides_agree("2")
    with scenario.database.aside.connect() as connection:
        assert connection.scalar(sa.select(events.c.event_key).where(events.c.id == 2)) == "late"


def test_a_commit_by_the_driver_in_a_hook_is_the_decision(scenario: Scenario, writer: DualWriter) -> None:
    """COMMIT past SQLAlchemy takes the state with it; the COMMIT that follows has nothing left to send."""
    with Session(scenario.database.engine) as session, writer.transaction(session) as tx:
        put(tx, scenario, 2)
        driver = driver_of(tx.connection)
        event.listen(session, "before_commit", lambda session: driver.commit())
    assert tx.outcome is Outcome.COMMITTED
    scenario.assert_both_sides_agree("2")


# ---- hooks before it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["ROLLBACK", "ROLLBACK; BEGIN", "ROLLBACK AND CHAIN"])
def test_a_transaction_that_a_hook_has_rolled_back(
    scenario: Scenario, writer: DualWriter, write: Write, text: str
) -> None:
    """The outcome is not known: it may have been a COMMIT."""
    with pytest.raises(TransactionEndedInsideError, match="bypassing SQLAlchemy") as caught:
        write(lambda connection: raw(connection, text))
    assert write.outcome is None
    assert outcome_of(caught.value) is Outcome.UNKNOWN
    assert_has_neither(scenario, writer)


@pytest.mark.parametrize("text", ["COMMIT", "COMMIT; BEGIN", "COMMIT AND CHAIN"])
def test_a_commit_by_a_hook_is_not_taken_for_the_decision(
    scenario: Scenario, writer: DualWriter, write: Write, text: str
) -> None:
    """The block's rows stay without records, as the error says; the state row names no aborted transaction."""
    before = scenario.row()
    with pytest.raises(TransactionEndedInsideError, match="keeps only changes that a COMMIT made permanent"):
        write(lambda connection: raw(connection, text))
    assert scenario.row() == before
    assert event_bodies(scenario.database) == ["1", "2"]
    scenario.assert_nothing_open()
    with writer.transaction() as tx:
        put(tx, scenario, 3)


@pytest.mark.parametrize("way", ["as text", "past SQLAlchemy"])
def test_a_lock_that_a_hook_has_given_up(scenario: Scenario, writer: DualWriter, write: Write, way: str) -> None:
    """By a rollback to a savepoint from before the lock; the mark outlives it."""

    def hook(connection: sa.Connection) -> None:
        if way == "as text":
            connection.exec_driver_sql("ROLLBACK TO SAVEPOINT early")
        else:
            raw(connection, "ROLLBACK TO SAVEPOINT early")

    with pytest.raises(StateRowError, match="although this transaction locked it"):
        write(hook)
    assert_rolled_back(scenario, writer, write)


def test_a_row_that_a_hook_has_changed_and_locked_again(scenario: Scenario, writer: DualWriter, write: Write) -> None:
    """The row names a transaction unknown to this dual write, which must not be forgotten."""
    change = (
        "UPDATE kafka_transaction_state SET prepared_transaction_state = '9:9'; SELECT 1 FROM kafka_transaction_state"
    )

    with pytest.raises(StateRowError, match="although this transaction locked it"):
        write(lambda connection: raw(connection, f"{change} FOR UPDATE"))
    assert_rolled_back(scenario, writer, write)


def test_an_error_past_sqlalchemy_in_a_hook(scenario: Scenario, writer: DualWriter, write: Write) -> None:
    with pytest.raises(TransactionDoomedError, match="had failed before COMMIT"):
        write(lambda connection: raw(connection, "SELECT 1 / 0"))
    assert_rolled_back(scenario, writer, write)


def test_a_pipeline_that_a_hook_has_left_open(scenario: Scenario, writer: DualWriter, write: Write) -> None:
    """In a pipeline there are no messages of several statements."""
    with pytest.raises(sa.exc.OperationalError, match="pipeline"):
        write(lambda connection: driver_of(connection).pgconn.enter_pipeline_mode())
    assert_rolled_back(scenario, writer, write)


@pytest.mark.parametrize("of_dialect", [False, True], ids=["driver", "dialect"])
def test_a_replaced_commit_of_the_driver_is_reported(scenario: Scenario, writer: DualWriter, of_dialect: bool) -> None:
    """The database has committed without the state, so Kafka must not; and the row must not say so."""
    before, dialect = scenario.row(), scenario.database.engine.dialect
    do_commit = dialect.do_commit

    def commit_past_all(dbapi_connection: Any) -> None:
        dialect.do_commit = do_commit  # type: ignore[method-assign]
        driver.pgconn.exec_(b"COMMIT")

    with Session(scenario.database.engine) as session:
        with pytest.raises(IllegalStateError, match="without the prepared state"), writer.transaction(session) as tx:
            put(tx, scenario, 2)
            driver = driver_of(tx.connection)

            def replace(session: Session) -> None:
                if of_dialect:
                    dialect.do_commit = commit_past_all  # type: ignore[method-assign]
                else:
                    vars(driver)["commit"] = lambda: driver.pgconn.exec_(b"COMMIT")

            event.listen(session, "before_commit", replace)
    assert scenario.row() == before
    assert event_bodies(scenario.database) == ["1", "2"]
    scenario.assert_nothing_open()


# ---- errors of the server in it -------------------------------------------------------------------------------------


def make_trigger(scenario: Scenario, table: str, when: str, body: str) -> None:
    function = f"CREATE FUNCTION {table}_trigger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$"
    how = "DEFERRABLE INITIALLY DEFERRED " if "CONSTRAINT" in when else ""
    with scenario.database.aside.begin() as connection:
        connection.exec_driver_sql(function)
        connection.exec_driver_sql(f"CREATE {when} ON {table} {how}FOR EACH ROW EXECUTE FUNCTION {table}_trigger()")


def drop_trigger(scenario: Scenario, table: str) -> None:
    with scenario.database.aside.begin() as connection:
        connection.exec_driver_sql(f"DROP FUNCTION {table}_trigger() CASCADE")


def test_a_row_that_the_database_does_not_write(scenario: Scenario, writer: DualWriter, write: Write) -> None:
    """Such as for a trigger, or a policy: COMMIT would decide a transaction that no row names."""
    make_trigger(scenario, "kafka_transaction_state", "TRIGGER t BEFORE UPDATE", "RETURN NULL;")
    with pytest.raises(StateRowError):
        write(lambda connection: None)
    drop_trigger(scenario, "kafka_transaction_state")
    assert_rolled_back(scenario, writer, write)


def test_a_deferred_constraint_that_fails_in_commit(scenario: Scenario, writer: DualWriter, write: Write) -> None:
    found = "RAISE unique_violation USING MESSAGE = 'found at COMMIT';"
    make_trigger(scenario, "events", "CONSTRAINT TRIGGER t AFTER INSERT", found)
    with pytest.raises(sa.exc.IntegrityError, match="found at COMMIT"):
        write(lambda connection: None)
    drop_trigger(scenario, "events")
    assert_rolled_back(scenario, writer, write)


def test_a_time_limit_that_ends_during_the_commit_message(scenario: Scenario, writer: DualWriter, write: Write) -> None:
    make_trigger(scenario, "kafka_transaction_state", "TRIGGER t AFTER UPDATE", "PERFORM pg_sleep(60); RETURN NULL;")

    def hook(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SET LOCAL statement_timeout = '50ms'")

    with pytest.raises(sa.exc.OperationalError, match="statement timeout"):
        write(hook)
    drop_trigger(scenario, "kafka_transaction_state")
    assert_rolled_back(scenario, writer, write)


def test_a_connection_with_the_statements_of_another_client(
    scenario: Scenario, writer: DualWriter, write: Write
) -> None:
    """A pooler that replaced the connection: psycopg's names stand for other statements there, which may succeed."""

    def hook(connection: sa.Connection) -> None:
        raw(connection, "DEALLOCATE ALL")
        for number in range(10):
            raw(
                connection,
                f"PREPARE _pg3_{number}(text, text, text, text, text, text) AS SELECT $1, $2, $3, $4, $5, $6",
            )

    with pytest.raises(sa.exc.ProgrammingError, match="does not exist"):
        write(hook)
    assert_rolled_back(scenario, writer, write)


def test_a_pooler_that_loses_the_server_after_commit(scenario: Scenario, writer: DualWriter, write: Write) -> None:
    """The pooler reports the loss in place of the first response, which proves nothing about the rest."""
    fields = b"SFATAL\0VFATAL\0C08P01\0Mserver conn crashed?\0\0"
    proxy: NetworkProxy = scenario.database.proxy  # type: ignore[attr-defined]

    def hook(connection: sa.Connection) -> None:
        last_words = b"E" + (4 + len(fields)).to_bytes(4) + fields
        proxy.swallow_answer_to(lambda request: b"COMMIT" in request, instead=last_words)

    write(hook)
    assert write.outcome is Outcome.COMMITTED
    scenario.assert_both_sides_agree("2")


def test_a_commit_that_is_repeated_without_a_response(scenario: Scenario, writer: DualWriter, write: Write) -> None:
    """A refusal of the second COMMIT proves nothing about the first."""
    dialect = scenario.database.engine.dialect
    commit = dialect.do_commit

    def insist(connection: Any) -> None:
        try:
            commit(connection)
        except psycopg.Error:
            commit(connection)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dialect, "do_commit", insist)
        write(lambda _: scenario.database.lose_commit(applied=True))
    assert write.outcome is Outcome.COMMITTED
    scenario.assert_both_sides_agree("2")


def test_statements_that_psycopg_is_still_to_deallocate(scenario: Scenario, writer: DualWriter, write: Write) -> None:
    """Its pipelines leave that to the next statement behind them."""

    def hook(connection: sa.Connection) -> None:
        with driver_of(connection).pipeline():
            driver_of(connection).execute("DROP TABLE IF EXISTS not_there")
        assert driver_of(connection)._prepared._to_flush

    write(hook)
    scenario.assert_both_sides_agree("2")


def test_a_connection_lost_before_the_commit_message(scenario: Scenario, writer: DualWriter, write: Write) -> None:
    def hook(connection: sa.Connection) -> None:
        scenario.database.cut()

    with pytest.raises(sa.exc.OperationalError):
        write(hook)
    assert_rolled_back(scenario, writer, write)


# ---- the lock, which is taken past SQLAlchemy too -------------------------------------------------------------------


def test_a_connection_that_is_lost_before_the_lock(scenario: Scenario, writer: DualWriter) -> None:
    """The error is SQLAlchemy's, and the pool forgets the connection."""
    with pytest.raises(sa.exc.OperationalError) as raised, writer.transaction() as lost:
        put(lost, scenario, 2)
        scenario.database.cut()
    assert raised.value.connection_invalidated
    assert lost.outcome is Outcome.ROLLED_BACK
    with writer.transaction() as tx:
        put(tx, scenario, 3)
    scenario.assert_both_sides_agree("3")


def test_a_row_that_was_written_after_the_snapshot(scenario: Scenario, writer: DualWriter) -> None:
    """The lock fails, as SQLAlchemy's own statement would; a listener for errors is called."""
    told: list[BaseException] = []
    event.listen(scenario.database.engine, "handle_error", lambda context: told.append(context.original_exception))
    snapshot = scenario.database.engine.execution_options(isolation_level="REPEATABLE READ")
    touch = "UPDATE kafka_transaction_state SET updated_at = now()"
    tx = None
    with Session(snapshot) as session:
        with pytest.raises(sa.exc.OperationalError, match="serialize") as raised, writer.transaction(session) as tx:
            put(tx, scenario, 2)
            with scenario.database.aside.begin() as other:
                other.exec_driver_sql(touch)
    assert isinstance(raised.value.orig, psycopg.errors.SerializationFailure)
    assert told == [raised.value.orig]
    assert tx is not None
    assert tx.outcome is Outcome.ROLLED_BACK
    scenario.assert_both_sides_agree()
