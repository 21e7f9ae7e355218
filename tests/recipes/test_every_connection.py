"""Blocks of every writer on connections of the caller; and writers on drivers alone, on connections of every origin."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row

from dualwrite import AsyncDualWriter, AsyncpgDualWriter, AsyncPsycopgDualWriter, DualWriter, PsycopgDualWriter
from dualwrite.errors import (
    ConfigError,
    IllegalStateError,
    RowLockTimeoutError,
    TransactionDoomedError,
    TransactionEndedInsideError,
)
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.slot import SlotState
from dualwrite.testing.postgres import PostgresServer
from tests.crash.conftest import AWAITED
from tests.crash.psycopg_scenario import conninfo_of
from tests.crash.scenario import OrdinaryError
from tests.recipes.faces import FACES, INSERT, ON_ASYNCPG, ON_DRIVERS, ON_PSYCOPG, ON_SQLALCHEMY, OWN, Face
from tests.support.conditions import until
from tests.support.databases import unique
from tests.support.strikes import strike


def on(*faces: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("face", faces, indirect=True)


def own(*faces: str) -> pytest.MarkDecorator:
    """Run on each connection that a caller of these faces may open."""
    cases = [(face, kind) for face in faces for kind in OWN[face]]
    return pytest.mark.parametrize(("face", "kind"), cases, indirect=["face"])


@pytest.fixture
def connection(face: Face, kind: str) -> Iterator[Any]:
    """Open a connection of the caller."""
    with face.own(kind) as made:
        yield made


# ---- blocks on what the caller opened -------------------------------------------------------------------------------


@own(*FACES)
def test_the_callers_own_session_or_connection(face: Face, kind: str) -> None:
    face.writer.recover()  # makes the row, which on SQLite would wait for the lock of a begun transaction
    with face.own(kind) as bound:
        with face.block(bound) as block:
            assert bound is (block.tx.session if "session" in kind else block.tx.connection)
            block.put(1)
            with pytest.raises(OrdinaryError), face.part(block.tx):
                block.put(2)
                raise OrdinaryError
        assert not face.is_in_transaction(bound)
    with face.own(kind) as bound:
        with pytest.raises(OrdinaryError), face.block(bound) as block:
            block.put(2)
            raise OrdinaryError
        assert block.tx.outcome is Outcome.ROLLED_BACK
        assert not face.is_in_transaction(bound)
        if "begun" not in kind:
            with face.block(bound) as block:
                block.put(3)
            face.on(bound, "SELECT 1")
            face.run(bound.rollback()) if hasattr(bound, "rollback") else None
    face.scenario.assert_both_sides_agree("1", *([] if "begun" in kind else ["3"]))


@pytest.mark.parametrize(
    ("face", "kind"),
    [*((face, "session") for face in ON_SQLALCHEMY), *((face, kind) for face in ON_DRIVERS for kind in OWN[face])],
    indirect=["face"],
)
def test_changes_made_by_the_connection_before_the_block_belong_to_the_block(face: Face, kind: str) -> None:
    face.writer.recover()  # so that the row is older than the snapshot, and SQLite's write lock
    with face.own(kind) as bound, face.block(_begun(face, bound, 1)) as block:
        if face.name in ON_DRIVERS and kind != "transactional":
            assert face.ask(block.tx, "SHOW transaction_isolation") == "serializable"
        block.send(1)
    with face.own(kind) as bound:
        with pytest.raises(OrdinaryError), face.block(_begun(face, bound, 2)) as block:
            block.send(2)
            raise OrdinaryError
        assert not face.is_in_transaction(bound)
    face.scenario.assert_both_sides_agree("1")


def _begun(face: Face, bound: Any, number: int) -> Any:
    """Begin a transaction, and write in it."""
    if face.name in ON_DRIVERS:
        face.begin_on(bound, "BEGIN ISOLATION LEVEL SERIALIZABLE")
    face.on(bound, INSERT.format(number))
    return bound


def test_a_connection_carries_one_dual_write(face: Face) -> None:
    face.writer.recover()
    with face.own(OWN[face.name][0]) as bound, face.another(face.source, unique("other")) as other:
        other.writer.recover()  # makes its row, which on SQLite would wait for the block
        with face.block(bound) as block:
            block.put(1)
            with pytest.raises(IllegalStateError, match="already carries"), face.block(bound):
                pass
            with pytest.raises(IllegalStateError, match="cannot decide a second one"), other.block(bound):
                pass
    face.scenario.assert_both_sides_agree("1")


_TAKEN = {
    **dict.fromkeys(("postgres", "mariadb", "sqlite"), "a Session or a Connection"),
    **dict.fromkeys(ON_SQLALCHEMY[3:], "an AsyncSession or an AsyncConnection"),
    "psycopg": r"psycopg\.Connection",
    "asyncio psycopg-alone": "AsyncConnection",
    **dict.fromkeys(ON_ASYNCPG, "runs on an asyncpg"),
}


def test_connections_that_cannot_carry_a_block_are_refused(face: Face) -> None:
    with pytest.raises(IllegalStateError, match=_TAKEN[face.name]), face.block("dbname=x"):
        pass
    with pytest.raises(IllegalStateError, match=_TAKEN[face.name]), face.block(object()):
        pass


# ---- on drivers alone: ends of the transaction ----------------------------------------------------------------------


_ENDINGS = ("ROLLBACK", "COMMIT", "COMMIT AND CHAIN", "COMMIT; BEGIN", "ROLLBACK AND CHAIN")


@pytest.mark.parametrize(
    ("face", "kind", "ending", "goes_on"),
    [
        *itertools.product(["psycopg"], OWN["psycopg"], _ENDINGS, [True, False]),
        *itertools.product([ON_PSYCOPG[1]], OWN["psycopg"], ["COMMIT AND CHAIN", "ROLLBACK; BEGIN"], [True]),
    ],
    indirect=["face"],
)
def test_a_transaction_that_was_ended_past_the_connection(
    face: Face, connection: Any, ending: str, goes_on: bool
) -> None:
    """Found by the mark of the transaction, even if another one has begun since."""
    with pytest.raises(TransactionEndedInsideError), face.block(connection) as block:
        block.put(1)
        face.raw(connection, ending)
        if goes_on:
            block.put(2)
    assert block.tx.outcome is None
    assert face.scenario.row().is_empty
    assert face.records == []
    face.scenario.assert_nothing_open()


@own(*ON_DRIVERS)
def test_a_savepoint_from_before_the_block_undoes_the_block(face: Face, connection: Any) -> None:
    face.begin_on(connection)
    face.on(connection, "SAVEPOINT before")
    with pytest.raises(TransactionEndedInsideError, match="to an earlier savepoint"), face.block(connection) as block:
        block.put(1)
        block.execute("ROLLBACK TO before")
        block.send(2)
    face.scenario.assert_both_sides_agree()


@own(*ON_DRIVERS)
def test_a_rollback_to_a_savepoint_that_was_not_followed_loses_no_record(face: Face, connection: Any) -> None:
    with pytest.raises(TransactionEndedInsideError, match="not tracked"), face.block(connection) as block:
        block.put(1)
        face.raw(connection, "SAVEPOINT past")
        block.execute("ROLLBACK TO past")
    assert block.tx.outcome is Outcome.ROLLED_BACK
    face.scenario.assert_both_sides_agree()


@on(*ON_DRIVERS)
@pytest.mark.parametrize("statement", ["SAVEPOINT s", "ROLLBACK TO s", "RELEASE s"])
def test_an_interruption_after_a_savepoint_statement_dooms_the_block(face: Face, statement: str) -> None:
    with pytest.raises(TransactionDoomedError), face.block() as block:
        if statement != "SAVEPOINT s":
            block.execute("SAVEPOINT s")
        block.put(1)
        assert strike("StatementWatch.after", partial(block.execute, statement))
    face.scenario.assert_both_sides_agree()


@own(*ON_DRIVERS)
def test_a_connection_that_was_closed_inside(face: Face, kind: str) -> None:
    with face.own(kind) as connection:
        with pytest.raises(TransactionEndedInsideError, match="closed or lost"), face.block(connection) as block:
            face.run(connection.close())
        assert block.tx.outcome is Outcome.ROLLED_BACK
    with face.own(kind) as connection:
        with pytest.raises(TransactionEndedInsideError, match="closed or lost"), face.block(connection) as block:
            block.put(1)
            face.run(connection.close())
        assert block.tx.outcome is Outcome.ROLLED_BACK
    with face.block() as block:
        block.put(2)
    face.scenario.assert_both_sides_agree("2")


@own(*ON_PSYCOPG)
def test_savepoints_inside_a_pipeline_and_forms_of_psycopg(face: Face, connection: Any) -> None:
    with face.block(connection) as block:
        with face.entered(connection.pipeline()):
            block.put(1)
            with pytest.raises(OrdinaryError), face.part(block.tx, of_driver=True):
                block.put(2)
                raise OrdinaryError
            with face.part(block.tx, of_driver=True):
                block.put(3)
        with face.entered(connection.transaction("named", force_rollback=True)):
            block.put(4)
        block.put(5)
    assert "commit" not in vars(connection)
    face.scenario.assert_both_sides_agree("1", "3", "5")


@own(*ON_PSYCOPG)
def test_a_part_in_a_pipeline_whose_statement_fails_after_its_body(face: Face, connection: Any) -> None:
    with face.block(connection) as block:
        block.put(1)
        with face.entered(connection.pipeline()):
            with pytest.raises(psycopg.errors.UniqueViolation), face.part(block.tx):
                block.put(1)
            block.put(2)
        with pytest.raises(psycopg.errors.UniqueViolation), face.entered(connection.pipeline()), face.part(block.tx):
            block.put(1)
        block.put(3)
    face.scenario.assert_both_sides_agree("1", "2", "3")


@on(*ON_PSYCOPG)
def test_a_savepoint_statement_in_a_pipeline_is_refused(face: Face) -> None:
    """Queued behind a statement that fails, it would not be executed."""
    with pytest.raises(TransactionDoomedError), face.block() as block:
        block.put(1)
        block.execute("SAVEPOINT s")
        with face.entered(block.tx.connection.pipeline()), pytest.raises(IllegalStateError, match="in a pipeline"):
            block.execute("RELEASE s")
    face.scenario.assert_both_sides_agree()


@own(*ON_PSYCOPG)
def test_parts_that_psycopg_refuses_to_end_doom_the_block(face: Face, connection: Any) -> None:
    """The outer block sends nothing, so the changes of both blocks stay."""
    with pytest.raises(TransactionDoomedError), face.block(connection) as block:
        parts = [face.entered(connection.transaction()) for _ in range(2)]
        for number, part in enumerate(parts):
            part.__enter__()
            block.put(number)
        for part in parts:
            with pytest.raises(psycopg.transaction.OutOfOrderTransactionNesting):
                part.__exit__(None, None, None)
    face.scenario.assert_both_sides_agree()


@own(*ON_PSYCOPG)
def test_an_error_inside_a_stream_is_the_callers_own(face: Face, connection: Any) -> None:
    """The error's traceback holds the stream, which holds the connection's lock."""
    series = "SELECT generate_series(1, 10)"

    def fail_in_a_stream(cursor: Any) -> None:
        for _ in cursor.stream(series):
            raise OrdinaryError

    async def fail_in_an_awaited_stream(cursor: Any) -> None:
        async for _ in cursor.stream(series):
            raise OrdinaryError

    fail: Callable[[Any], Any] = fail_in_an_awaited_stream if face.name in AWAITED else fail_in_a_stream
    with pytest.raises(OrdinaryError), face.block(connection) as block:
        block.put(1)
        face.run(fail(connection.cursor()))
    with face.block() as block:
        block.put(2)
    face.scenario.assert_both_sides_agree("2")


# ---- on drivers alone: connections whose COMMIT is not the decision -------------------------------------------------


@own(*ON_DRIVERS)
def test_no_dual_write_inside_a_block_of_the_driver(face: Face, connection: Any) -> None:
    with face.entered(connection.transaction()):
        with pytest.raises(IllegalStateError, match="outermost"), face.block(connection):
            pass
        face.on(connection, INSERT.format(1))
    with face.block(connection) as block:
        block.send(1)
    face.scenario.assert_both_sides_agree("1")


@own(*ON_PSYCOPG)
def test_no_dual_write_in_pipeline_mode(face: Face, connection: Any) -> None:
    with face.entered(connection.pipeline()):
        with pytest.raises(IllegalStateError, match="pipeline"), face.block(connection):
            pass


@own(*ON_DRIVERS)
def test_no_dual_write_in_a_transaction_that_has_failed(face: Face, connection: Any) -> None:
    face.begin_on(connection)
    with pytest.raises(face.database_error):
        face.on(connection, "SELECT 1/0")
    with pytest.raises(IllegalStateError, match="failed already"), face.block(connection):
        pass
    face.on(connection, "ROLLBACK")


@on(*ON_DRIVERS)
def test_a_connection_to_another_database(face: Face, postgres_server: PostgresServer) -> None:
    """A lost commit would be looked up in the wrong one, and a committed transaction aborted in Kafka."""
    connection = face.connect(conninfo_of(postgres_server.create_database(unique("other"))))
    for is_begun in (False, True):
        if is_begun:
            face.begin_on(connection)
        with pytest.raises(IllegalStateError, match="another database"), face.block(connection):
            pass
        assert face.is_in_transaction(connection) is is_begun
    face.on(connection, "ROLLBACK")
    face.run(connection.close())
    with face.block() as block:
        block.put(1)
    face.scenario.assert_both_sides_agree("1")


# ---- on drivers alone: connections of every origin ------------------------------------------------------------------


@contextmanager
def from_a_dsn(face: Face, dsn: str) -> Iterator[Any]:
    yield dsn


@contextmanager
def from_a_function(face: Face, dsn: str) -> Iterator[Any]:
    if face.name in ON_ASYNCPG:
        yield partial(asyncpg.connect, dsn)
    elif face.name in AWAITED:
        yield partial(psycopg.AsyncConnection.connect, dsn, autocommit=True)
    else:
        yield lambda: psycopg.connect(dsn, cursor_factory=psycopg.RawCursor)


@contextmanager
def from_a_pool(face: Face, dsn: str, **settings: Any) -> Iterator[Any]:
    if face.name in ON_ASYNCPG:
        pool: Any = asyncpg.create_pool(dsn, min_size=1, max_size=1)
    else:
        kind: Any = psycopg_pool.AsyncConnectionPool if face.name in AWAITED else psycopg_pool.ConnectionPool
        pool = kind(dsn, min_size=1, max_size=1, timeout=60, open=False, kwargs=settings)
    with face.entered(pool) as opened:
        yield opened


Source = Callable[[Face, str], AbstractContextManager[Any]]


SOURCES: dict[str, Source] = {
    "DSN": from_a_dsn,
    "pool": from_a_pool,
    "autocommit pool": partial(from_a_pool, autocommit=True, row_factory=dict_row),
    "function": from_a_function,
}


@pytest.mark.parametrize(
    ("face", "source"),
    [(face, source) for face in ON_DRIVERS for source in SOURCES if face in ON_PSYCOPG or source != "autocommit pool"],
    indirect=["face"],
)
def test_connections_of_every_origin(face: Face, source: str) -> None:
    with SOURCES[source](face, conninfo_of(face.database.engine.url)) as database, face.another(database) as on_it:
        for number in range(8):  # beyond psycopg's threshold for preparing a statement
            if number == 5:
                face.database.cut()  # what nobody uses is replaced
            with on_it.block() as block:
                block.put(number)
            face.scenario.expected.append(str(number))
        with pytest.raises(OrdinaryError), on_it.block() as block:
            block.put(9)
            raise OrdinaryError
        assert on_it.writer.recover() == []
    until(lambda: connections_to(face) == 0)  # all others were cut
    face.scenario.assert_both_sides_agree()


def connections_to(face: Face) -> int:
    """Return how many connections the database has, beside the one that asks."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE usename = current_user AND pid <> pg_backend_pid()"
    with face.database.aside.connect() as connection:
        return int(connection.scalar(sa.text(query)) or 0)


@on(*ON_DRIVERS)
def test_a_first_block_on_the_only_connection_of_the_writers_own_pool(face: Face) -> None:
    """The writer's queries between blocks must not wait for the connection that the block holds."""
    with from_a_pool(face, face.dsn) as pool, face.another(pool) as on_it:
        for number in range(2):
            take = pool.acquire if face.name in ON_ASYNCPG else pool.connection
            with face.entered(take()) as connection, on_it.block(connection) as block:
                block.put(number)
            face.scenario.expected.append(str(number))
        assert on_it.writer.recover() == []
    face.scenario.assert_both_sides_agree()


@on("postgres", "asyncio psycopg", "asyncio asyncpg", *ON_DRIVERS)
def test_a_locked_row_times_out_with_a_sentence(face: Face) -> None:
    """The writer is ready by then, and its COMMIT carries the state."""

    def write(number: int) -> None:
        with other.transaction() as tx:
            face.execute(tx, INSERT.format(number), "")
            face.send(tx, str(number))

    with face.scenario.writer() as other:
        write(1)
        owned = getattr(other, "awaited", other).coordinator.owned
        with face.database.aside.connect() as holder, mock.patch.object(owned, "lock_timeout_ms", 30):
            holder.execute(sa.text("SELECT * FROM kafka_transaction_state FOR UPDATE"))
            with pytest.raises(RowLockTimeoutError, match="stayed locked for 30 ms"):
                write(2)
        write(3)
    face.scenario.assert_both_sides_agree("1", "3")


# ---- without servers ------------------------------------------------------------------------------------------------

_ENGINE = sa.create_engine("sqlite://")


@pytest.mark.parametrize("wrong", [5, None, object(), _ENGINE], ids=["number", "None", "object", "engine"])
@pytest.mark.parametrize(
    ("kind", "takes"),
    [
        (PsycopgDualWriter, "conninfo"),
        (AsyncPsycopgDualWriter, "conninfo"),
        (AsyncpgDualWriter, r"a DSN, an asyncpg\.Pool or a function"),
    ],
)
def test_a_value_that_is_no_database_is_refused(kind: Callable[..., Any], takes: str, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=takes):
        kind(wrong, transactional_id="t", bootstrap_servers="127.0.0.1:1")


def test_an_engine_that_blocks_is_none_for_asyncio() -> None:
    with pytest.raises(ConfigError, match="create_async_engine"):
        AsyncDualWriter(_ENGINE, transactional_id="t", bootstrap_servers="127.0.0.1:1")  # type: ignore[call-overload]
    assert DualWriter(_ENGINE, transactional_id="t", bootstrap_servers="127.0.0.1:1").state is SlotState.NEW


@pytest.mark.parametrize(
    ("writers", "absent"),
    [
        ("PsycopgDualWriter, AsyncPsycopgDualWriter", ["sqlalchemy"]),
        ("AsyncpgDualWriter", ["sqlalchemy", "psycopg"]),
    ],
)
def test_the_driver_recipes_need_no_sqlalchemy(writers: str, absent: list[str]) -> None:
    script = f"import sys; sys.modules.update(dict.fromkeys({absent})); from dualwrite import {writers}"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
