"""Every writer under the same names: blocks whose steps are the same, and connections that the caller opens."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import asyncpg
import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.asyncpg import driver
from dualwrite.recipes.core import blocking
from tests.crash.awaited import entered
from tests.crash.conftest import AWAITED, BLOCKING
from tests.crash.psycopg_scenario import conninfo_of
from tests.crash.scenario import AnyScenario, make
from tests.support.databases import Database, event_bodies
from tests.support.topics import read_topic

FACES: Final = (*BLOCKING, *AWAITED)
ON_SQLALCHEMY: Final = ("postgres", "mariadb", "sqlite", "asyncio psycopg", "asyncio asyncpg", "asyncio aiosqlite")
ON_PSYCOPG: Final = ("psycopg", "asyncio psycopg-alone")
ON_ASYNCPG: Final = ("asyncio asyncpg-alone",)
ON_DRIVERS: Final = (*ON_PSYCOPG, *ON_ASYNCPG)
"""Without SQLAlchemy."""

OWN: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(ON_SQLALCHEMY, ("session", "begun session", "connection", "begun connection")),
    **dict.fromkeys(ON_PSYCOPG, ("autocommit", "transactional")),
    **dict.fromkeys(ON_ASYNCPG, ("connection", "of a pool")),
}
"""The kinds of connections and Sessions that a caller may open by itself, and run a block on."""

WAYS: Final[dict[str, tuple[str, ...]]] = {
    **OWN,
    **dict.fromkeys(ON_SQLALCHEMY, ("session", "connection")),
}
"""The ways to statements of a block: `tx.session` and `tx.connection`, or connections of the caller."""

INSERT: Final = "INSERT INTO events (id, event_key, body) VALUES ({0}, 'k', '{0}')"


@dataclass
class Block:
    """An open block."""

    door: Door
    tx: Any
    way: str = "session"

    def execute(self, text: str) -> None:
        """Send SQL text as an application does."""
        self.door.execute(self.tx, text, self.way)

    def insert(self, number: int) -> None:
        self.execute(INSERT.format(number))

    def send(self, number: int) -> None:
        self.door.send(self.tx, str(number))

    def put(self, number: int) -> None:
        """Write a row and a record."""
        self.insert(number)
        self.send(number)


class Door:
    """A way to a dual write on one database, and the results on both sides."""

    database_error: type[Exception]

    def __init__(self, name: str, database: Database, emulator: Emulator, topic: str) -> None:
        self.name = name
        self.database = database
        self._emulator = emulator
        self._topic = topic

    def block(self) -> AbstractContextManager[Block]:
        raise NotImplementedError

    def execute(self, tx: Any, text: str, way: str) -> None:
        raise NotImplementedError

    def send(self, tx: Any, value: str) -> None:
        raise NotImplementedError

    @property
    def rows(self) -> list[str]:
        return event_bodies(self.database)

    @property
    def records(self) -> list[str]:
        return [value for _, value in read_topic(self._emulator.bootstrap_servers, self._topic)]


class Face(Door):
    """A writer, for threads or for asyncio, and blocks of it on a connection or Session."""

    def __init__(self, name: str, scenario: AnyScenario, writer: Any) -> None:
        super().__init__(name, scenario.database, scenario.emulator, scenario.topic)
        self.database_error = scenario.database_error
        self.scenario: Any = scenario
        self.writer = writer

    @property
    def is_on_sqlalchemy(self) -> bool:
        return self.name in ON_SQLALCHEMY

    def run(self, result: Any) -> Any:
        """Return a result, which is awaited first where it has to be; steps of a test may be those of both kinds."""
        if self.name in AWAITED:
            return self.scenario.runner.run(_awaited(result)) if inspect.isawaitable(result) else result
        return blocking.run(result) if inspect.iscoroutine(result) else result

    def entered(self, manager: Any) -> AbstractContextManager[Any]:
        """Be inside a context manager, which is awaited where it has to be."""
        return entered(self.scenario.runner, manager) if hasattr(manager, "__aenter__") else manager

    # ---- blocks ----

    @contextmanager
    def block(self, bind: Any = None, way: str = "session") -> Iterator[Block]:
        if isinstance(bind, sa.Connection | AsyncConnection):
            way = "connection"
        with self.writer.transaction(bind) as tx:
            yield Block(self, tx, way)

    @contextmanager
    def by(self, way: str) -> Iterator[Callable[[], AbstractContextManager[Block]]]:
        """Yield a function that opens a block, on one of `WAYS`."""
        if self.is_on_sqlalchemy:
            yield partial(self.block, way=way)
        else:
            with self.own(way) as bound:
                yield partial(self.block, bound)

    def execute(self, tx: Any, text: str, way: str) -> None:
        self.result(tx, text, way)

    def result(self, tx: Any, text: str, way: str = "session") -> Any:
        if self.is_on_sqlalchemy:
            return self.run((tx.session if way == "session" else tx.connection).execute(sa.text(text)))
        return self.run(tx.connection.execute(text))

    def ask(self, tx: Any, text: str) -> Any:
        """Return the only value of a query."""
        if self.is_on_sqlalchemy:
            return self.result(tx, text, "connection").scalar()
        if self.name in ON_ASYNCPG:
            return self.run(tx.connection.fetchval(text))
        return self.run(self.result(tx, text).fetchone())[0]

    def send(self, tx: Any, value: str) -> None:
        tx.send(self._topic, key="k", value=value)

    def part(self, tx: Any, *, of_driver: bool = False) -> AbstractContextManager[Any]:
        """Be inside a savepoint, of the writer or of the library beneath it."""
        if not of_driver:
            return self.entered(tx.savepoint())
        return self.entered(tx.session.begin_nested() if self.is_on_sqlalchemy else tx.connection.transaction())

    # ---- connections of the caller ----

    @contextmanager
    def own(self, kind: str) -> Iterator[Any]:
        """Open one of `OWN`."""
        if self.is_on_sqlalchemy:
            is_awaited = self.name in AWAITED
            engine = self.source
            if "session" not in kind:
                opened = engine.begin() if "begun" in kind else engine.connect()
                with self.entered(opened) as connection:
                    yield connection
                return
            with self.entered((AsyncSession if is_awaited else Session)(engine)) as session:
                if "begun" in kind:
                    with self.entered(session.begin()):
                        yield session
                else:
                    yield session
        elif kind == "of a pool":
            with self.entered(asyncpg.create_pool(self.dsn, min_size=1, max_size=1)) as pool:
                with self.entered(pool.acquire()) as connection:
                    yield connection
        else:
            connection = self.connect(autocommit=kind == "autocommit")
            yield connection
            self.run(connection.close())

    @property
    def dsn(self) -> str:
        """For drivers, around every fault."""
        return conninfo_of(self.database.url)

    def connect(self, dsn: str | None = None, *, autocommit: bool = False) -> Any:
        """Open a connection of a driver."""
        if self.name in ON_ASYNCPG:
            return self.run(asyncpg.connect(dsn or self.dsn))
        connection: Any = psycopg.AsyncConnection if self.name in AWAITED else psycopg.Connection
        return self.run(connection.connect(dsn or self.dsn, autocommit=autocommit))

    def on(self, bound: Any, text: str) -> None:
        """Execute on a connection or Session of the caller."""
        self.run(bound.execute(sa.text(text) if self.is_on_sqlalchemy else text))

    @property
    def source(self) -> Any:
        """The database, as a writer of this face takes it."""
        if not self.is_on_sqlalchemy:
            return self.dsn
        return self.scenario.engine if self.name in AWAITED else self.database.engine

    @contextmanager
    def another(self, source: Any, transactional_id: str | None = None) -> Iterator[Face]:
        """Make another writer of this kind, with the same id or one of its own."""
        scenario = self.scenario
        kind = type(getattr(self.writer, "awaited", self.writer))
        made = make(kind, source, self._emulator.bootstrap_servers, transactional_id or scenario.transactional_id)
        with type(self.writer)(scenario.runner, made) if self.name in AWAITED else made as writer:
            yield Face(self.name, scenario, writer)

    def begin_on(self, connection: Any, text: str = "BEGIN") -> None:
        """Begin a transaction on a driver's connection, which does it by itself if it is transactional."""
        if not self.is_in_transaction(connection):
            self.on(connection, text if getattr(connection, "autocommit", True) else "SELECT 1")

    def is_in_transaction(self, connection: Any) -> bool:
        """Return whether a connection or Session of the caller is in a transaction."""
        if self.is_on_sqlalchemy:
            return bool(connection.in_transaction())
        if self.name in ON_ASYNCPG:
            return bool(connection.is_in_transaction())
        return bool(connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE)

    def raw(self, connection: Any, text: str) -> None:
        """Execute on a driver's connection, past every check of a dual write."""
        if self.name in ON_ASYNCPG:
            self.run(driver.execute(driver.unwrapped(connection), text))
        else:
            connection.pgconn.exec_(text.encode())


async def _awaited(result: Any) -> Any:
    return await result
