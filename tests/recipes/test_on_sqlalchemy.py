"""Blocks of both writers on SQLAlchemy, `DualWriter` and `AsyncDualWriter`."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from dualwrite.errors import IllegalStateError, RecipeError, TransactionDoomedError, TransactionEndedInsideError
from dualwrite.recipes.sql.postgres import MARK, MARK_ATTRIBUTE
from tests.crash.conftest import AWAITED
from tests.crash.scenario import InjectedError
from tests.recipes.faces import INSERT, ON_SQLALCHEMY, Face
from tests.support.event_class import Event

EACH = pytest.mark.parametrize("face", ON_SQLALCHEMY, indirect=True)


@EACH
def test_an_engine_is_no_connection_and_a_connection_has_no_session(face: Face) -> None:
    face.writer.recover()
    with pytest.raises(IllegalStateError, match=r"a Session or a|an AsyncSession or an"), face.block(face.source):
        pass
    with face.own("connection") as connection, face.block(connection) as block:
        with pytest.raises(IllegalStateError, match=r"use tx\.connection"):
            _ = block.tx.session
    autocommit = face.source.execution_options(isolation_level="AUTOCOMMIT")
    with face.entered(autocommit.connect()) as connection:
        with pytest.raises(IllegalStateError, match="autocommit"), face.block(connection) as block:
            block.put(1)
    face.scenario.assert_both_sides_agree()


@EACH
def test_objects_are_readable_after_a_block_on_the_writers_own_session(face: Face) -> None:
    with face.block() as block:
        event = Event(1)
        block.tx.session.add(event)
        block.send(1)
    assert (event.id, event.body) == (1, "1")
    face.scenario.assert_both_sides_agree("1")


@EACH
def test_a_scoped_session_stands_for_the_session_of_its_thread_or_task(face: Face) -> None:
    made: Any = sessionmaker(face.source)
    session: Any = scoped_session(made)
    if face.name in AWAITED:
        made = async_sessionmaker(face.source)
        session = async_scoped_session(made, lambda: None)
    with face.block(session) as block:
        assert block.tx.session is session()
        block.put(1)
    face.run(session.remove())
    face.scenario.assert_both_sides_agree("1")


@pytest.mark.parametrize("goes_on", [True, False], ids=["goes on", "ends"])
@pytest.mark.parametrize("ending", ["rollback", "commit"])
@EACH
def test_a_transaction_that_was_ended_past_sqlalchemy(face: Face, ending: str, goes_on: bool) -> None:
    """The driver then begins another one by itself, which has not the first event."""
    with pytest.raises(TransactionEndedInsideError, match="bypassing SQLAlchemy"), face.block() as block:
        block.put(1)
        driver = driver_of(face, block.tx)
        face.run(driver.execute(ending) if "asyncpg" in face.name else getattr(driver, ending)())
        if goes_on:
            block.put(2)
    assert face.scenario.row().is_empty
    assert face.records == []
    face.scenario.assert_nothing_open()


def driver_of(face: Face, tx: Any) -> Any:
    """Return the driver's connection beneath a block."""
    awaited = face.name in AWAITED
    return (face.run(tx.connection.get_raw_connection()) if awaited else tx.connection.connection).driver_connection


@pytest.mark.parametrize("end", ["RELEASE s", "ROLLBACK TO s"])
@pytest.mark.parametrize("face", ["postgres", "asyncio psycopg"], indirect=True)
def test_a_savepoint_statement_in_a_pipeline_is_refused(face: Face, end: str) -> None:
    """Queued behind a statement that fails, it would not be executed."""
    with pytest.raises(TransactionDoomedError), face.block() as block:
        block.put(1)
        block.execute("SAVEPOINT s")
        with face.entered(driver_of(face, block.tx).pipeline()), pytest.raises(IllegalStateError, match="pipeline"):
            block.execute(end)
    face.scenario.assert_both_sides_agree()


@pytest.mark.parametrize("face", ["postgres", "asyncio psycopg"], indirect=True)
def test_a_listener_that_sends_the_first_statement_finds_the_mark(face: Face) -> None:
    """With asyncio, psycopg begins before SQLAlchemy says so, and the first statement of the block is marked."""
    engine = getattr(face.source, "sync_engine", face.source)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("SELECT 1"))
    with face.block() as block:
        block.put(1)
        mark = vars(driver_of(face, block.tx))[MARK_ATTRIBUTE]
        assert face.ask(block.tx, f"SELECT current_setting('{MARK}', true)") == mark
    face.scenario.assert_both_sides_agree("1")


@EACH
@pytest.mark.parametrize("part", ["nested", "joined", "joined in a savepoint"])
def test_a_part_of_a_session_on_the_connection_of_a_block_takes_its_records_back(face: Face, part: str) -> None:
    """Also those sent before its first statement, with which SQLAlchemy would set the savepoint."""
    mode: Any = "create_savepoint" if part == "joined" else "conditional_savepoint"
    made: Any = AsyncSession if face.name in AWAITED else Session
    with face.own("connection") as connection, face.block(connection) as block, ExitStack() as around:
        block.put(1)
        if "in a savepoint" in part:
            around.enter_context(face.part(block.tx))
        session = around.enter_context(face.entered(made(connection, join_transaction_mode=mode)))
        with suppress(InjectedError), face.entered(session.begin_nested() if part == "nested" else session.begin()):
            block.send(2)
            face.on(session, INSERT.format(2))
            raise InjectedError
    face.scenario.assert_both_sides_agree("1")


@EACH
def test_a_hook_that_undoes_writes_right_before_commit(face: Face) -> None:
    """Records were sent and the state may be written by then, so an empty COMMIT would publish them.

    On MySQL the savepoints of the block have ended with the mark, and the server says so.
    """

    def undo(session: Session) -> None:
        session.execute(sa.text("ROLLBACK TO SAVEPOINT s"))

    error = OperationalError if face.name == "mariadb" else RecipeError
    with face.own("session") as session:
        event.listen(getattr(session, "sync_session", session), "before_commit", undo, once=True)
        with pytest.raises(error), face.block(session) as block:
            block.execute("SAVEPOINT s")
            block.put(1)
    with face.block() as block:
        block.put(2)
    face.scenario.assert_both_sides_agree("2")
