"""MySQL goes on in a new transaction after it has rolled one back: a block whose first half is gone does not commit.

On MariaDB, in `make test` too: no other database does that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.delivery import Delivery, Direct, Outbox
from dualwrite.errors import TransactionDoomedError, TransactionEndedInsideError
from dualwrite.outcome import Outcome, outcome_of
from dualwrite.recipes.sqlalchemy.sessions import dual_write_sessions, send
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.scenario import Scenario
from tests.recipes.steps import put
from tests.support.conditions import until
from tests.support.databases import MariaDbDatabase, event_bodies, events
from tests.support.topics import read_topic

_SET_UP = (
    "CREATE TABLE busy (id INT PRIMARY KEY AUTO_INCREMENT, changes INT NOT NULL DEFAULT 0) ENGINE=InnoDB",
    "INSERT INTO busy VALUES (1, 0), (2, 0)",
    "CREATE PROCEDURE change_behind_a_result() BEGIN SELECT 1; UPDATE busy SET changes = 1 WHERE id = 2; END",
    "CREATE PROCEDURE commit_and_begin() BEGIN COMMIT; START TRANSACTION; UPDATE busy SET changes = 1; END",
)
_CHANGE_1 = sa.text("UPDATE busy SET changes = 1 WHERE id = 1")
_CHANGE_2 = sa.text("UPDATE busy SET changes = 1 WHERE id = 2")


@pytest.fixture
def scenario(mariadb: MariaDbDatabase, emulator: Emulator) -> Scenario:
    with mariadb.aside.begin() as connection:
        for statement in _SET_UP:
            connection.exec_driver_sql(statement)
    return Scenario(mariadb, emulator)


@contextmanager
def deadlock(scenario: Scenario, execute: Callable[[sa.TextClause], object]) -> Iterator[None]:
    """Make a transaction the victim of a deadlock as soon as it changes row 2: the other one has changed more rows."""
    execute(_CHANGE_1)
    holds = threading.Event()

    def come_in_between() -> None:
        with scenario.database.aside.connect() as connection:
            connection.exec_driver_sql("INSERT INTO busy (changes) SELECT 1 FROM seq_1_to_50")
            connection.execute(_CHANGE_2)
            holds.set()
            connection.execute(_CHANGE_1)
            connection.rollback()

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(come_in_between)
        assert holds.wait(60)
        yield
        other.result(60)


def swallow_a_deadlock(scenario: Scenario, execute: Callable[[sa.TextClause], object]) -> None:
    with deadlock(scenario, execute), pytest.raises(OperationalError, match="1213"):
        execute(_CHANGE_2)


# ---- ends that show in no error of a statement -----------------------------------------------------------------------


def by_a_deadlock_behind_a_result(scenario: Scenario, connection: sa.Connection) -> None:
    """The driver reads the error when its cursor is closed, and SQLAlchemy ignores errors of that."""
    with deadlock(scenario, connection.execute):
        assert connection.execute(sa.text("CALL change_behind_a_result()")).all() == [(1,)]


def by_a_procedure(scenario: Scenario, connection: sa.Connection) -> None:
    connection.exec_driver_sql("CALL commit_and_begin()")


def by_a_reconnection(scenario: Scenario, connection: sa.Connection) -> None:
    """As the driver's `ping` reconnects; a statement past SQLAlchemy lets it report a transaction again."""
    driver: Any = connection.connection.driver_connection
    driver.close()
    driver.connect()
    driver.query(str(_CHANGE_1))


@pytest.mark.parametrize("delivery", [Direct(), Outbox()], ids=["direct", "outbox"])
@pytest.mark.parametrize("end", [by_a_deadlock_behind_a_result, by_a_procedure, by_a_reconnection])
def test_the_rest_of_a_block_is_not_committed_as_the_whole(
    scenario: Scenario, delivery: Delivery, end: Callable[[Scenario, sa.Connection], None]
) -> None:
    servers = scenario.emulator.bootstrap_servers
    with DualWriter(scenario.database.engine, bootstrap_servers=servers, prefix="ended", delivery=delivery) as writer:
        with pytest.raises(TransactionEndedInsideError, match="was ended inside the block") as caught:
            with writer.transaction() as tx:
                put(tx, scenario, 1)
                end(scenario, tx.connection)
                put(tx, scenario, 2)
        assert outcome_of(caught.value) is Outcome.UNKNOWN
        with writer.transaction() as tx:
            put(tx, scenario, 3)
        until(lambda: [value for _, value in read_topic(servers, scenario.topic)] == ["3"])
    assert event_bodies(scenario.database) == (["1", "3"] if end is by_a_procedure else ["3"])


# ---- errors that are swallowed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sends", [True, False])
def test_a_deadlock_inside_a_savepoint_that_stays_open(scenario: Scenario, writer: DualWriter, sends: bool) -> None:
    """COMMIT does not name the savepoint, so the server has nothing to miss."""
    insert = sa.insert(events).values(event_key="k")
    with scenario.database.engine.connect() as connection:
        with pytest.raises(TransactionDoomedError), writer.transaction(connection) as tx:
            connection.execute(insert.values(id=1, body="1"))
            connection.begin_nested()
            swallow_a_deadlock(scenario, connection.execute)
            connection.execute(insert.values(id=2, body="2"))
            if sends:
                tx.send(scenario.topic, "2")
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("by_commit", [True, False])
def test_a_deadlock_before_the_first_record(scenario: Scenario, writer: DualWriter, by_commit: bool) -> None:
    sessions = sessionmaker(scenario.database.engine)
    if by_commit:
        dual_write_sessions(sessions, writer)

    def finish(session: Session, number: int) -> None:
        session.execute(sa.insert(events).values(id=number, event_key="k", body=str(number)))
        if by_commit:
            send(session, scenario.topic, key="k", value=str(number))
            session.commit()
        else:
            with writer.transaction(session) as tx:
                tx.send(scenario.topic, key="k", value=str(number))

    with sessions() as session:
        swallow_a_deadlock(scenario, session.execute)
        with pytest.raises(TransactionDoomedError):
            finish(session, 1)
        session.rollback()
        finish(session, 2)
    scenario.assert_both_sides_agree("2")


def test_a_lock_timeout_that_undoes_its_statement_only(scenario: Scenario, writer: DualWriter) -> None:
    with scenario.database.aside.begin() as other, Session(scenario.database.engine) as session:
        other.execute(_CHANGE_1)
        session.execute(sa.insert(events).values(id=1, event_key="k", body="1"))
        with pytest.raises(OperationalError, match="1205"):
            session.execute(sa.text("SELECT * FROM busy WHERE id = 1 FOR UPDATE NOWAIT"))
        with writer.transaction(session) as tx:
            tx.send(scenario.topic, key="k", value="1")
    scenario.assert_both_sides_agree("1")


# ---- savepoints of the application beside the one that proves the transaction ----------------------------------------


@pytest.mark.parametrize(("statement", "kept"), [("ROLLBACK TO", ["2"]), ("RELEASE SAVEPOINT", ["1", "2"])])
def test_an_older_savepoint_takes_the_proof_over(
    scenario: Scenario, writer: DualWriter, statement: str, kept: list[str]
) -> None:
    with scenario.database.engine.connect() as connection:
        connection.exec_driver_sql("SAVEPOINT older")
        with writer.transaction(connection) as tx:
            put(tx, scenario, 1)
            connection.exec_driver_sql(f"{statement} older")
            put(tx, scenario, 2)
    scenario.assert_both_sides_agree(*kept)


def test_a_session_releases_its_savepoint_at_the_end(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        tx.session.begin_nested()
        put(tx, scenario, 1)
        tx.session.begin_nested()
        put(tx, scenario, 2)
    scenario.assert_both_sides_agree("1", "2")
