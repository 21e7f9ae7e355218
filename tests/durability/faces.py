"""The same dual write by each of the ways to a Postgres, under blocking names, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite.recipes.asyncpg.writer import AsyncpgDualWriter
from dualwrite.recipes.core.dual_write import Resolution
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualWriter

TOPIC = "events"
TABLE = "CREATE TABLE IF NOT EXISTS events (id int PRIMARY KEY)"

_LIMITS: dict[str, Any] = {"lock_timeout_ms": 1_000, "resolve_timeout_ms": 1_000}


class Face(Protocol):
    """A writer of one kind."""

    def write(self, number: int, *before: str) -> None:
        """One dual write of a row and a record, with other statements before it."""

    def cancel(self) -> None:
        """Interrupt the write that is under way."""

    def recover(self) -> list[Resolution]: ...

    def close(self) -> None: ...


class _Blocking:
    def cancel(self) -> None:
        raise AssertionError("a thread cannot be cancelled")

    def recover(self) -> list[Resolution]:
        found: list[Resolution] = self.writer.recover()
        return found

    def close(self) -> None:
        self.writer.close()

    writer: Any


class WithPsycopg(_Blocking):
    def __init__(self, url: sa.URL, bootstrap_servers: str, transactional_id: str) -> None:
        conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self.writer = PsycopgDualWriter(
            conninfo, bootstrap_servers=bootstrap_servers, transactional_id=transactional_id, **_LIMITS
        )

    def write(self, number: int, *before: str) -> None:
        with self.writer.transaction() as tx:
            for statement in before:
                tx.connection.execute(statement)
            tx.connection.execute("INSERT INTO events VALUES (%s)", (number,))
            tx.send(TOPIC, value=str(number))


class WithSqlAlchemy(_Blocking):
    def __init__(self, url: sa.URL, bootstrap_servers: str, transactional_id: str) -> None:
        self._engine = sa.create_engine(url)
        self.writer = DualWriter(
            self._engine, bootstrap_servers=bootstrap_servers, transactional_id=transactional_id, **_LIMITS
        )

    def write(self, number: int, *before: str) -> None:
        with self.writer.transaction() as tx:
            for statement in before:
                tx.session.execute(sa.text(statement))
            tx.session.execute(sa.text("INSERT INTO events VALUES (:id)"), {"id": number})
            tx.send(TOPIC, value=str(number))

    def close(self) -> None:
        super().close()
        self._engine.dispose()


class _Awaited:
    """Runs a loop in a thread of its own."""

    writer: Any

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._writing: asyncio.Task[None] | None = None

    def write(self, number: int, *before: str) -> None:
        async def write() -> None:
            self._writing = asyncio.current_task()
            await self._write(number, before)

        self._run(write())

    async def _write(self, number: int, before: tuple[str, ...]) -> None:
        raise NotImplementedError

    def cancel(self) -> None:
        assert self._writing is not None
        self._loop.call_soon_threadsafe(self._writing.cancel)

    def recover(self) -> list[Resolution]:
        found: list[Resolution] = self._run(self.writer.recover())
        return found

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        await self.writer.close()


class WithPsycopgAwaited(_Awaited):
    def __init__(self, url: sa.URL, bootstrap_servers: str, transactional_id: str) -> None:
        super().__init__()
        conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self.writer = AsyncPsycopgDualWriter(
            conninfo, bootstrap_servers=bootstrap_servers, transactional_id=transactional_id, **_LIMITS
        )

    async def _write(self, number: int, before: tuple[str, ...]) -> None:
        async with self.writer.transaction() as tx:
            for statement in before:
                await tx.connection.execute(statement)
            await tx.connection.execute("INSERT INTO events VALUES (%s)", (number,))
            tx.send(TOPIC, value=str(number))


class WithSqlAlchemyAwaited(_Awaited):
    driver = "psycopg"

    def __init__(self, url: sa.URL, bootstrap_servers: str, transactional_id: str) -> None:
        super().__init__()
        self._engine = create_async_engine(url.set(drivername=f"postgresql+{self.driver}"))
        self.writer = AsyncDualWriter(
            self._engine, bootstrap_servers=bootstrap_servers, transactional_id=transactional_id, **_LIMITS
        )

    async def _write(self, number: int, before: tuple[str, ...]) -> None:
        async with self.writer.transaction() as tx:
            for statement in before:
                await tx.session.execute(sa.text(statement))
            await tx.session.execute(sa.text("INSERT INTO events VALUES (:id)"), {"id": number})
            tx.send(TOPIC, value=str(number))

    async def _close(self) -> None:
        await self.writer.close()
        await self._engine.dispose()


class WithAsyncpg(WithSqlAlchemyAwaited):
    driver = "asyncpg"


class WithAsyncpgAlone(_Awaited):
    def __init__(self, url: sa.URL, bootstrap_servers: str, transactional_id: str) -> None:
        super().__init__()
        dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self.writer = AsyncpgDualWriter(
            dsn, bootstrap_servers=bootstrap_servers, transactional_id=transactional_id, **_LIMITS
        )

    async def _write(self, number: int, before: tuple[str, ...]) -> None:
        async with self.writer.transaction() as tx:
            for statement in before:
                await tx.connection.execute(statement)
            await tx.connection.execute("INSERT INTO events VALUES ($1)", number)
            tx.send(TOPIC, value=str(number))


FACES: dict[str, Callable[[sa.URL, str, str], Face]] = {
    "psycopg": WithPsycopg,
    "sqlalchemy": WithSqlAlchemy,
    "psycopg-awaited": WithPsycopgAwaited,
    "sqlalchemy-awaited": WithSqlAlchemyAwaited,
    "asyncpg": WithAsyncpg,
    "asyncpg-alone": WithAsyncpgAlone,
}
AWAITED = tuple(name for name in FACES if name.endswith("awaited") or name.startswith("asyncpg"))


class Writing(threading.Thread):
    """One dual write in a thread of its own."""

    def __init__(self, face: Face, number: int) -> None:
        super().__init__(daemon=True)
        self._face = face
        self._number = number
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._face.write(self._number)
        except BaseException as error:
            self.error = error

    def ended(self) -> BaseException | None:
        """The error that it raised, once it has ended."""
        self.join(30)
        assert not self.is_alive()
        return self.error


def rows(url: sa.URL) -> list[int]:
    """The numbers in the table."""
    conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(conninfo) as connection:
        return [number for (number,) in connection.execute("SELECT id FROM events ORDER BY id")]


def closed_whatever(face: Face) -> None:
    """Close a writer whose database may be gone."""
    with suppress(Exception):
        face.close()
