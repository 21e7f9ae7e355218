"""Databases that can lose a connection, or the response to one request, on command."""

from __future__ import annotations

import copy
import itertools
import re
import sqlite3
import uuid
from functools import cache
from pathlib import Path
from typing import Any, Protocol, Self

import sqlalchemy as sa

from dualwrite.testing.network_proxy import NetworkProxy
from dualwrite.testing.postgres import PostgresServer
from tests.support.servers.mariadb import MariaDbServer

events = sa.Table(
    "events",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("event_key", sa.String(20), nullable=False),
    sa.Column("body", sa.String(100), nullable=False),
)


class Database(Protocol):
    """One empty database. `engine` is for the product; `url` and `aside` are ways to it that no fault touches.

    `aside` keeps its connection for the next query: a new one takes longer than most queries.
    """

    engine: sa.Engine
    url: sa.URL
    aside: sa.Engine

    def cut(self) -> None:
        """Lose every connection of `engine` now."""

    def lose_answer(self) -> None:
        """Carry out the next request of `engine`, lose its response and the connection."""

    def lose_commit(self, *, applied: bool) -> None:
        """Lose the connection at the next COMMIT of `engine`, with or without carrying it out."""

    def refuse_new_connections(self) -> None:
        """Refuse new connections of `engine` from now on; existing ones go on."""

    def come_back(self) -> None: ...

    def disarm(self) -> None:
        """Forget a loss that was asked for and has not struck."""

    def another_client(self) -> Database:
        """The same database, reached in a way of its own: faults of the one do not touch the other."""

    def close(self) -> None: ...


def event_bodies(database: Database) -> list[str]:
    """The bodies in the table, in the order of their ids, read around every fault."""
    with database.aside.connect() as connection:
        return list(connection.scalars(sa.select(events.c.body).order_by(events.c.id)))


def state_row(database: Database, transactional_id: str) -> str | None:
    """The prepared state in the row of `transactional_id`, read around every fault."""
    with database.aside.connect() as connection:
        state: str | None = connection.scalar(
            sa.text("SELECT prepared_transaction_state FROM kafka_transaction_state WHERE transactional_id = :id"),
            {"id": transactional_id},
        )
        return state


def waits_for_a_lock(database: Database, query: str = "") -> bool:
    """Return whether a statement with `query` in it waits for a lock in this database, a Postgres."""
    waits = "usename = current_user AND wait_event_type = 'Lock' AND position(:query IN query) > 0"
    with database.aside.connect() as connection:
        return bool(
            connection.scalar(sa.text(f"SELECT count(*) FROM pg_stat_activity WHERE {waits}"), {"query": query})
        )


class _BehindProxy:
    """A real server, reached through a proxy."""

    def __init__(self, url: sa.URL) -> None:
        self.url = url
        self.aside = sa.create_engine(url)
        self._reach()
        events.metadata.create_all(self.engine, checkfirst=False)

    def _reach(self) -> None:
        self.proxy = NetworkProxy.for_database(self.url)
        self.engine = sa.create_engine(self.proxy.through(self.url), pool_pre_ping=True)

    def another_client(self) -> Self:
        other = copy.copy(self)
        other._reach()
        return other

    def cut(self) -> None:
        self.proxy.cut()

    def lose_answer(self) -> None:
        self.proxy.swallow_answer_to(lambda request: True)

    def lose_commit(self, *, applied: bool) -> None:
        if applied:
            self.proxy.swallow_answer_to(_is_commit)
        else:
            self.proxy.cut_at(_is_commit)

    def refuse_new_connections(self) -> None:
        self.proxy.refuse()

    def come_back(self) -> None:
        self.proxy.accept_again()

    def disarm(self) -> None:
        self.proxy.disarm()

    def close(self) -> None:
        self.engine.dispose()
        self.aside.dispose()
        self.proxy.close()


@cache
def _engine_of(url: sa.URL) -> sa.Engine:
    """For a whole server; it outlives the test that asks first."""
    return sa.create_engine(url)


class PostgresDatabase(_BehindProxy):
    """A schema of its own on a real Postgres, for a role of its own, which sees no other one.

    A role that sees two state tables is refused unless the schema is given.
    """

    def __init__(self, server: PostgresServer) -> None:
        schema = f"test_{uuid.uuid4().hex[:12]}"
        with _engine_of(server.url).begin() as connection:
            connection.exec_driver_sql(f"CREATE ROLE {schema} LOGIN PASSWORD '{schema}'")
            connection.exec_driver_sql(f"GRANT {schema} TO CURRENT_USER")  # which creates the schema for it
            name = connection.scalar(sa.text("SELECT quote_ident(current_database())"))
            connection.exec_driver_sql(f"GRANT CREATE ON DATABASE {name} TO {schema}")
            connection.exec_driver_sql(f"CREATE SCHEMA {schema} AUTHORIZATION {schema}")
        url = server.url.set(username=schema, password=schema)
        super().__init__(url.update_query_dict({"options": f"-csearch_path={schema}"}))


class MariaDbDatabase(_BehindProxy):
    """A database of its own on a real MariaDB."""

    def __init__(self, server: MariaDbServer) -> None:
        name = f"test_{uuid.uuid4().hex[:12]}"
        with _engine_of(server.url).begin() as connection:
            connection.execute(sa.schema.DDL(f"CREATE DATABASE {name}"))  # type: ignore[no-untyped-call]  # SQLAlchemy has not annotated it
        super().__init__(server.url.set(database=name))


def _is_commit(request: bytes) -> bool:
    """Return whether a request commits: READ COMMITTED and synchronous_commit are other words."""
    return re.search(rb"\bCOMMIT\b", request.upper()) is not None


class SqliteDatabase:
    """A SQLite file whose connections obey a switchboard, since there is no network to cut."""

    def __init__(self, directory: Path, *, busy_timeout_s: float = 60) -> None:
        self._busy_timeout_s = busy_timeout_s
        self.url = sa.URL.create("sqlite", database=str(directory / f"{uuid.uuid4().hex[:12]}.db"))
        self.aside = sa.create_engine(self.url, poolclass=sa.NullPool)
        self._reach()
        events.metadata.create_all(self.engine)

    def _reach(self) -> None:
        self._faults = _SqliteFaults()
        self.engine = sa.create_engine(self.url, creator=self.connect, poolclass=sa.NullPool)

    def another_client(self) -> SqliteDatabase:
        other = copy.copy(self)
        other._reach()
        return other

    def connect(self) -> sqlite3.Connection:
        if self._faults.away:
            raise sqlite3.OperationalError("unable to open database file")
        connection = sqlite3.connect(
            str(self.url.database), factory=_FaultyConnection, timeout=self._busy_timeout_s, check_same_thread=False
        )
        connection.faults = self._faults
        self._faults.connections.append(connection)
        return connection

    def cut(self) -> None:
        for connection in self._faults.connections:
            connection.close()
        self._faults.connections.clear()

    def lose_answer(self) -> None:
        self._faults.lose_next = True

    def lose_commit(self, *, applied: bool) -> None:
        self._faults.lose_commit = applied

    def refuse_new_connections(self) -> None:
        self._faults.away = True

    def come_back(self) -> None:
        self._faults.away = False

    def disarm(self) -> None:
        self._faults.lose_next = False
        self._faults.lose_commit = None

    def close(self) -> None:
        self.engine.dispose()
        self.cut()


class _SqliteFaults:
    def __init__(self) -> None:
        self.away = False
        self.lose_next = False
        self.lose_commit: bool | None = None
        self.connections: list[sqlite3.Connection] = []


class _FaultyConnection(sqlite3.Connection):
    faults: _SqliteFaults

    def cursor(self, factory: Any = None) -> Any:
        cursor = super().cursor(_FaultyCursor)
        cursor.faults = self.faults
        return cursor

    def commit(self) -> None:
        if self.faults.lose_commit is False:
            self._lose()
        super().commit()
        if self.faults.lose_commit or self.faults.lose_next:
            self._lose()

    def _lose(self) -> None:
        self.faults.lose_commit = None
        self.faults.lose_next = False
        self.close()
        raise sqlite3.OperationalError("disk I/O error: the answer was lost")


class _FaultyCursor(sqlite3.Cursor):
    faults: _SqliteFaults

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        result = super().execute(sql, parameters)
        if self.faults.lose_next:
            self.close()  # an open cursor would keep the file locked beyond its connection
            self.connection._lose()  # type: ignore[attr-defined]
        return result


_counter = itertools.count(1)


def unique(prefix: str) -> str:
    """A name that no other test uses."""
    return f"{prefix}-{next(_counter)}-{uuid.uuid4().hex[:6]}"
