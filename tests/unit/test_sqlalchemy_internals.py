"""The non-public members of SQLAlchemy and of drivers that `dualwrite/recipes/sqlalchemy` uses still mean the same.

A failure says that a library has changed: read the member's replacement, and adapt `drivers.py` or
`session_commit_hook.py`.
"""

from __future__ import annotations

import gc
import inspect
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from psycopg import pq
from pymysql.constants import SERVER_STATUS
from sqlalchemy import event
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_connection
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, SessionTransaction

from dualwrite.recipes.sqlalchemy.drivers import (
    ON_CONNECTION,
    after_statement,
    async_connection,
    has_commit_listeners,
    in_transaction,
)
from dualwrite.recipes.sqlalchemy.engines import connections_of
from tests.support.narrowing import current
from tests.support.strikes import StruckError

TABLE = sa.Table("t", sa.MetaData(), sa.Column("n", sa.Integer))


def test_every_commit_passes_the_dialects_do_commit() -> None:
    """`notify_of_ends` replaces it on one dialect; the "commit" event comes right before."""
    commits = inspect.getsource(sa.Connection._commit_impl)
    assert commits.index("self.dispatch.commit(self)") < commits.index("self.engine.dialect.do_commit(self.connection)")
    assert "do_commit" not in inspect.getsource(sa.Connection).replace(commits, "").replace("do_commit_twophase", "")


def test_a_followed_commit_is_of_the_connection_that_the_dialect_is_given() -> None:
    engine = sa.create_engine("sqlite://")
    given: list[Any] = []
    genuine = engine.dialect.do_commit

    def do_commit(dbapi_connection: Any) -> None:
        given.append(dbapi_connection)
        genuine(dbapi_connection)

    engine.dialect.do_commit = do_commit  # type: ignore[method-assign]
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT 1")
        expected = connection.connection
    assert given == [expected]


def test_the_connection_that_the_dialect_is_given_can_have_an_attribute() -> None:
    """By which `notify_of_ends` finds the dual write; the driver's own connection may have none."""
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        assert not hasattr(connection.connection, ON_CONNECTION)
        vars(connection.connection)[ON_CONNECTION] = connection
        assert getattr(connection.connection, ON_CONNECTION) is connection
        assert connection.connection.dbapi_connection is not None
        behind = engine.dialect.get_driver_connection(connection.connection.dbapi_connection)
        assert behind is connection.connection.driver_connection


@pytest.mark.parametrize(
    ("send", "name"),
    [
        (lambda connection: connection.execute(sa.text("SELECT :n"), {"n": 1}), "do_execute"),
        (lambda connection: connection.exec_driver_sql("SELECT 1"), "do_execute"),
        (lambda connection: connection.execute(sa.text("INSERT INTO t VALUES (:n)"), [{"n": 1}] * 2), "do_executemany"),
        (lambda connection: connection.execute(TABLE.insert().returning(TABLE.c.n), [{"n": 1}] * 2), "do_execute"),
        (
            lambda connection: connection.execution_options(no_parameters=True).exec_driver_sql("SELECT 1"),
            "do_execute_no_params",
        ),
    ],
    ids=["text", "driver_sql", "executemany", "insertmanyvalues", "no_parameters"],
)
def test_every_statement_passes_a_listener_of_the_dialect(send: Callable[[sa.Connection], object], name: str) -> None:
    """Also on a variant of the engine; `after_statement` hears when it has succeeded, and only then."""
    engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
    TABLE.metadata.create_all(engine)
    heard: list[object] = []

    def on_statement(*arguments: Any) -> None:
        context = arguments[-1]
        heard.append(context.root_connection)
        after_statement(context, lambda: heard.append("succeeded"))

    event.listen(engine, name, on_statement)
    assert "_has_events" not in vars(engine)  # events would make SQLAlchemy look for listeners of all events
    with engine.execution_options().connect() as connection:
        send(connection)
        assert heard == [connection, "succeeded"]
        with pytest.raises(sa.exc.OperationalError):
            connection.exec_driver_sql("SELECT * FROM missing")
        assert "succeeded" not in heard[2:]


def test_the_listeners_of_a_connection_are_called_before_those_of_its_engine() -> None:
    """Why `_commit_has_begun` is called before the listeners of the application."""
    engine = sa.create_engine("sqlite://")
    called: list[str] = []
    event.listen(engine, "commit", lambda connection: called.append("engine"))
    with engine.connect() as connection:
        assert has_commit_listeners(connection)
        event.listen(connection, "commit", lambda connection: called.append("connection"))
        connection.exec_driver_sql("SELECT 1")
        connection.commit()
    assert called == ["connection", "engine"]
    with sa.create_engine("sqlite://").connect() as another:
        assert not has_commit_listeners(another)
        event.listen(another, "commit", lambda connection: None)
        assert has_commit_listeners(another)


def test_a_session_knows_whether_it_holds_statements_back() -> None:
    """Its own commit() asks the same, and then calls flush()."""
    ask = "self.session._is_clean()"
    prepare = inspect.getsource(inspect.unwrap(SessionTransaction._prepare_impl))
    assert prepare.index(ask) < prepare.index("self.session.flush()")


def test_the_connections_of_a_sessions_transaction() -> None:
    engine, other = sa.create_engine("sqlite://"), sa.create_engine("sqlite://")
    with Session(engine) as session:
        first = session.connection()
        root = session.get_transaction()
        assert root is not None
        assert set(connections_of(root)) == {first}
        second = session.connection(bind_arguments={"bind": other})
        assert set(connections_of(root)) == {first, second}


async def test_the_async_connection_of_a_session() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    async with AsyncSession(engine) as session:
        found = await session.connection()
        assert async_connection(session.sync_session.connection()) is found
    await engine.dispose()


def test_sqlite_tells_whether_it_is_in_a_transaction() -> None:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        connection.begin()
        driver = connection.connection.driver_connection
        assert in_transaction(driver) is False
        connection.exec_driver_sql("CREATE TABLE t (a INTEGER)")
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
        assert in_transaction(driver) is True
    assert isinstance(inspect.getattr_static(sqlite3.Connection, "in_transaction"), object)
    assert isinstance(inspect.getattr_static(aiosqlite.Connection, "in_transaction"), property)


@pytest.mark.parametrize(
    ("owner", "member"),
    [
        (psycopg.Connection, "info"),
        (psycopg.pq.PGconn, "transaction_status"),
        (asyncpg.Connection, "is_in_transaction"),
        (asyncpg.Connection, "terminate"),
        (asyncpg.Connection, "add_log_listener"),
        (asyncpg.Connection, "remove_log_listener"),
        (asyncpg.Connection, "is_closed"),
    ],
)
def test_drivers_have_the_attributes_that_are_read(owner: type[Any], member: str) -> None:
    assert hasattr(owner, member)


def test_an_error_past_sqlalchemy_is_raised_as_sqlalchemy_would() -> None:
    """`value_past_sqlalchemy` hands it to this method, which wraps it, tells listeners, and always raises."""
    method = inspect.signature(sa.Connection._handle_dbapi_exception)
    assert [*method.parameters][:6] == ["self", "e", "statement", "parameters", "cursor", "context"]
    assert method.return_annotation == "NoReturn"


@pytest.mark.parametrize("kind", [psycopg.Connection, psycopg.AsyncConnection])
def test_the_dialect_commits_by_commit_of_psycopgs_connection(kind: type[Any]) -> None:
    """Which `PsycopgCommitMessage` replaces; on an AsyncConnection the result is awaited."""
    dialect = inspect.getsource(sa.dialects.postgresql.psycopg.PGDialect_psycopg.do_commit)
    assert "dbapi_connection.commit()" in dialect
    adapted = inspect.getsource(sa.dialects.postgresql.psycopg.AsyncAdapt_psycopg_connection.commit)
    assert "self._connection.commit()" in adapted
    assert inspect.iscoroutinefunction(kind.commit) is (kind is psycopg.AsyncConnection)
    assert kind.__dictoffset__ != 0  # so that an attribute of the connection can replace the method


def test_the_numbers_of_the_protocols() -> None:
    assert current(pq.TransactionStatus.IDLE) == 0
    assert SERVER_STATUS.SERVER_STATUS_IN_TRANS == 1
    assert "self.server_status" in inspect.getsource(pymysql.connections.Connection)


def test_the_connection_of_asyncpg_is_behind_that_of_sqlalchemy() -> None:
    assert "driver_connection" in dir(AsyncAdapt_asyncpg_connection)


def test_a_record_of_the_pool_has_its_proxy_until_it_is_given_back() -> None:
    """So `SqlAlchemyTransaction` knows whether the pool has got its connection back."""
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        proxy: Any = connection.connection
        record = proxy._connection_record
        assert record.fairy_ref() is proxy
    assert record.fairy_ref is None
    assert proxy._connection_record is None


@pytest.mark.parametrize("function", ["_ConnectionFairy.__init__", "Pool._return_conn", "QueuePool._do_return_conn"])
def test_an_exception_that_strikes_the_queue_of_connections_loses_a_place(function: str, tmp_path: Path) -> None:
    """With SQLAlchemy alone, which cannot be mended from outside.

    So docs/celery.md advises against QueuePool, and `tests/proof/signals.py` does without it.
    """
    engine = sa.create_engine(
        f"sqlite:///{tmp_path}/lost.db", poolclass=sa.QueuePool, pool_size=1, max_overflow=0, pool_timeout=0
    )

    def strike(frame: FrameType, event: str, _: object) -> None:
        if frame.f_code.co_qualname == function:
            sys.setprofile(None)
            raise StruckError

    sys.setprofile(strike)
    with pytest.raises(StruckError):
        engine.connect().close()
    gc.collect()
    with pytest.raises(sa.exc.TimeoutError):
        engine.connect()
