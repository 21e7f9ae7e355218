"""Statements of a block on a driver that fail in part, and those of tasks or threads that the block leaves behind."""

from __future__ import annotations

import asyncio
import gc
import select
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import pytest

from dualwrite.errors import (
    IllegalStateError,
    InvalidRecordError,
    TransactionDoomedError,
    TransactionEndedInsideError,
)
from dualwrite.outcome import Outcome
from dualwrite.recipes.asyncpg import driver
from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.conftest import AWAITED
from tests.crash.psycopg_scenario import conninfo_of
from tests.crash.scenario import AtPoint, OrdinaryError
from tests.recipes.faces import INSERT, ON_ASYNCPG, ON_DRIVERS, ON_PSYCOPG, Face
from tests.recipes.test_every_connection import from_a_pool, on, own

# ---- a part of a statement ------------------------------------------------------------------------------------------


def values_of_a_failing_source() -> Iterator[tuple[Any, str]]:
    yield 1000, "first"
    raise OrdinaryError


def values_of_a_wrong_type() -> Iterator[tuple[Any, str]]:
    yield 1000, "first"
    yield object(), "second"


def execute_many(face: Face, tx: Any, values: Iterator[tuple[Any, str]]) -> None:
    insert = "INSERT INTO events (id, event_key, body) VALUES ({}, 'k', {})"
    if face.name in ON_ASYNCPG:
        face.run(tx.connection.executemany(insert.format("$1", "$2"), values))
    else:
        face.run(tx.connection.cursor().executemany(insert.format("%s", "%s"), values))


@on(*ON_DRIVERS)
@pytest.mark.parametrize("values", [values_of_a_failing_source, values_of_a_wrong_type])
def test_a_statement_of_many_that_fails_halfway_dooms_the_block(
    face: Face, values: Callable[[], Iterator[tuple[Any, str]]]
) -> None:
    errors = (OrdinaryError, psycopg.ProgrammingError, asyncpg.DataError)
    with pytest.raises(TransactionDoomedError), face.block() as block:
        block.put(1)
        with pytest.raises(errors):
            execute_many(face, block.tx, values())
        with pytest.raises(OrdinaryError), face.part(block.tx):  # a later one, which undoes nothing of it
            raise OrdinaryError
    with face.block() as block:
        block.put(2)
        with pytest.raises(errors), face.part(block.tx):
            execute_many(face, block.tx, values())
    face.scenario.assert_both_sides_agree("2")


def fail_in_a_row(cursor: psycopg.Cursor[Any]) -> Callable[[Any], Any]:
    """Make rows as a `row_factory` does; reading the result of a statement is the last step of a stream."""

    def make(values: Any) -> Any:
        raise OrdinaryError

    return make


@on(*ON_PSYCOPG)
def test_a_stream_that_fails_when_its_changes_are_made_dooms_the_block(face: Face) -> None:
    statement = f"{INSERT.format(1000)} RETURNING id"

    async def read(cursor: Any) -> None:
        async for _ in cursor.stream(statement):
            pass

    with pytest.raises(TransactionDoomedError), face.block() as block:
        block.put(1)
        with pytest.raises(OrdinaryError):
            cursor = block.tx.connection.cursor(row_factory=fail_in_a_row)
            face.run(read(cursor)) if face.name in AWAITED else list(cursor.stream(statement))
    face.scenario.assert_both_sides_agree()


@on(*ON_PSYCOPG)
def test_a_copy_whose_reader_fails_dooms_the_block(face: Face) -> None:
    with pytest.raises(TransactionDoomedError), face.block() as block:
        block.put(1)
        copying = block.tx.connection.cursor().copy(f"COPY ({INSERT.format(1000)} RETURNING id) TO STDOUT")
        with pytest.raises(OrdinaryError), face.entered(copying) as copy:
            face.run(copy.read())
            raise OrdinaryError
    face.scenario.assert_both_sides_agree()


@on(*ON_PSYCOPG)
def test_an_error_inside_a_pipeline_dooms_the_block(face: Face) -> None:
    """Its statements have been sent, and an interruption may come at its end."""
    with pytest.raises(TransactionDoomedError), face.block() as block:
        block.put(1)
        with pytest.raises(OrdinaryError), face.entered(block.tx.connection.pipeline()):
            block.insert(2)
            raise OrdinaryError
    face.scenario.assert_both_sides_agree()


def read_in_a_pipeline(connection: Any) -> Iterator[Any]:
    with connection.pipeline():
        for number in range(3):
            yield connection.execute(f"SELECT {number}").fetchone()


@on("psycopg")
def test_a_generator_inside_a_pipeline_that_is_not_read_to_its_end(face: Face) -> None:
    with face.block() as block:
        block.put(1)
        assert next(read_in_a_pipeline(block.tx.connection)) == (0,)
        block.put(2)
    face.scenario.assert_both_sides_agree("1", "2")


@on("mariadb", "sqlite", "asyncio aiosqlite")
def test_a_statement_error_that_is_swallowed_inside_a_savepoint_dooms_the_block(face: Face) -> None:
    """PostgreSQL refuses to release the savepoint."""
    with pytest.raises(TransactionDoomedError), face.block() as block:
        block.put(1)
        with face.part(block.tx), pytest.raises(face.database_error):
            block.insert(1)
    with face.block() as block:
        block.put(1)
        with pytest.raises(face.database_error), face.part(block.tx):
            block.insert(1)
    face.scenario.assert_both_sides_agree("1")


# ---- a cancelled wait -----------------------------------------------------------------------------------------------


def wait_for_an_answer(face: Face, connection: Any) -> None:
    """Return when the server has answered, which the loop has not read."""
    raw = driver.unwrapped(connection)
    wire = raw._transport.get_extra_info("socket") if face.name in ON_ASYNCPG else raw
    answered = select.poll()
    answered.register(wire.fileno(), select.POLLIN)
    assert answered.poll(60_000)


@on(*[face for face in ON_DRIVERS if face in AWAITED])
@pytest.mark.parametrize("is_undone", [True, False])
def test_a_statement_that_was_carried_out_and_whose_wait_was_cancelled(face: Face, is_undone: bool) -> None:
    async def cancel(tx: Any) -> None:
        with psycopg.connect(conninfo_of(face.scenario.database.url)) as other:
            other.execute(INSERT.format(2))
            part = asyncio.create_task(tx.connection.execute(INSERT.format(2)))
            for _ in range(20):  # until it is sent: the server waits for the other row
                await asyncio.sleep(0)
            other.rollback()
        wait_for_an_answer(face, tx.connection)
        part.cancel()
        with suppress(asyncio.CancelledError):
            await part

    async def write() -> None:
        async with face.writer.awaited.transaction() as tx:
            await tx.connection.execute(INSERT.format(1))
            tx.send(face.scenario.topic, key="k", value="1")
            with suppress(OrdinaryError):
                async with tx.savepoint():
                    if is_undone:
                        await cancel(tx)
                    raise OrdinaryError
            if not is_undone:
                await cancel(tx)

    if is_undone:
        face.run(write())
        face.scenario.assert_both_sides_agree("1")
    else:
        with pytest.raises(TransactionDoomedError, match="CancelledError"):
            face.run(write())
        face.scenario.assert_both_sides_agree()


async def insert_late(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute(INSERT.format(2))


async def insert_late_in_a_pipeline(connection: psycopg.AsyncConnection[Any]) -> None:
    async with connection.pipeline():
        await connection.execute(INSERT.format(2))


class Behind:
    """Blocks that end with their `last` statement, and the tasks whose statements wait for it."""

    def __init__(self, face: Face, insert: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        self._face = face
        self._insert = insert
        self._late: list[asyncio.Task[None]] = []

    async def end(self, last: str) -> None:
        async with self._face.writer.awaited.transaction() as tx:
            tx.send(self._face.scenario.topic, key="k", value="1")
            self._late.append(asyncio.create_task(self._insert(tx.connection)))
            await tx.connection.execute(last)

    async def errors(self) -> list[Any]:
        late, self._late = self._late, []
        return await asyncio.gather(*late, return_exceptions=True)


@on("asyncio psycopg-alone")
@pytest.mark.parametrize("insert", [insert_late, insert_late_in_a_pipeline])
def test_a_statement_that_waits_for_its_turn_when_the_block_ends(
    face: Face, insert: Callable[[Any], Coroutine[Any, Any, None]]
) -> None:
    """It would be sent in front of COMMIT, or behind the ROLLBACK; asyncpg refuses it at once."""
    behind = Behind(face, insert)
    with pytest.raises(IllegalStateError, match="the block ended"):
        face.run(behind.end(INSERT.format(1)))
    with pytest.raises(psycopg.errors.DivisionByZero):
        face.run(behind.end("SELECT 1/0"))
    for error in face.run(behind.errors()):
        assert isinstance(error, psycopg.OperationalError | IllegalStateError)
    face.scenario.assert_both_sides_agree()


@on("asyncio psycopg-alone")
def test_the_error_of_a_statement_that_a_block_has_left_behind_is_not_kept(face: Face) -> None:
    behind = Behind(face, insert_late)
    with suppress(IllegalStateError):
        face.run(behind.end("SELECT 1"))

    async def noted() -> list[weakref.ref[Any]]:
        return [weakref.ref(error) for error in await behind.errors()]

    (error,) = face.run(noted())
    gc.collect()
    assert error() is None


# ---- after the block ------------------------------------------------------------------------------------------------


@on(*ON_DRIVERS)
@pytest.mark.parametrize("fails", [True, False])
def test_a_statement_after_the_block_is_refused(face: Face, fails: bool) -> None:
    """In autocommit mode it would be committed alone."""
    with suppress(OrdinaryError), face.block() as block:
        kept = block.tx.connection
        block.put(1)
        if fails:
            raise OrdinaryError
    assert block.tx.outcome is (Outcome.ROLLED_BACK if fails else Outcome.COMMITTED)
    with pytest.raises(IllegalStateError, match="has ended"):
        block.insert(2)
    with pytest.raises(IllegalStateError, match="has ended"):
        face.on(kept, INSERT.format(2))
    with pytest.raises(IllegalStateError, match="has ended"), face.entered(kept.transaction()):
        pass
    with face.block() as block:
        block.put(3)
    face.scenario.assert_both_sides_agree(*([] if fails else ["1"]), "3")


@on(*ON_DRIVERS)
def test_the_error_of_a_commit_after_the_block_is_not_kept(face: Face) -> None:
    """It would keep alive what the caller's frames refer to, until the next block on the connection."""
    with face.block() as block:
        kept = block.tx.connection
        block.put(1)
    refused: list[weakref.ref[Any]] = []
    try:
        face.on(kept, "COMMIT")
    except TransactionEndedInsideError as error:
        refused.append(weakref.ref(error))
    gc.collect()
    assert [error() for error in refused] == [None]


@own(*ON_DRIVERS)
def test_the_callers_connection_is_free_after_the_block(face: Face, kind: str) -> None:
    with face.own(kind) as connection:
        with pytest.raises(OrdinaryError), face.block(connection) as block:
            block.put(1)
            raise OrdinaryError
        face.on(connection, "SELECT 1")


@on(*ON_PSYCOPG)
def test_a_statement_after_the_block_on_a_connection_of_a_pool(face: Face) -> None:
    """It begins a transaction, which the next block must not take for its own."""
    with from_a_pool(face, conninfo_of(face.database.engine.url)) as pool, face.another(pool) as on_it:
        with on_it.block() as block:
            kept = block.tx.connection
            block.put(1)
        face.on(kept, INSERT.format(2))
        with on_it.block() as block:
            block.put(3)
    face.scenario.assert_both_sides_agree("1", "3")


@on(*ON_DRIVERS)
def test_a_record_that_is_refused_while_the_decision_is_made_dooms_the_block(face: Face) -> None:
    """Of a thread that the block has left behind: the row before it is in the block."""
    sent: list[Any] = []

    def come_late() -> None:
        with pytest.raises((IllegalStateError, InvalidRecordError)):
            sent[0].send(face.scenario.topic, value="2")

    with face.scenario.writer(AtPoint(PausePoint.AFTER_PREPARE, come_late)) as writer:
        with pytest.raises(TransactionDoomedError), writer.transaction() as tx:
            sent.append(tx)
            face.execute(tx, INSERT.format(1), "")
            face.send(tx, "1")
        assert tx.outcome is Outcome.ROLLED_BACK
    face.scenario.assert_both_sides_agree()
