"""Writers of every kind to a Postgres, under the same names for threads and for asyncio."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from dualwrite.recipes.asyncpg.writer import AsyncpgDualWriter
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualWriter
from tests.crash.psycopg_scenario import conninfo_of
from tests.support.awaited_databases import awaited_engine


@dataclass(frozen=True)
class Kind:
    """A class of writers, and the source that it takes."""

    writer: Callable[..., Any]
    source: Callable[[sa.URL], Any] = conninfo_of
    is_awaited: bool = False

    @property
    def is_on_sqlalchemy(self) -> bool:
        return self.source is not conninfo_of

    def execute(self, tx: Any, text: str) -> Any:
        """Send a statement in a block. Returns its result, or an awaitable of it."""
        return tx.session.execute(sa.text(text)) if self.is_on_sqlalchemy else tx.connection.execute(text)


def _engine_of(url: sa.URL) -> sa.Engine:
    return sa.create_engine(url.set(drivername="postgresql+psycopg"))


def _awaited_engine_of(url: sa.URL) -> AsyncEngine:
    return awaited_engine(url, "psycopg")


def _asyncpg_engine_of(url: sa.URL) -> AsyncEngine:
    return awaited_engine(url, "asyncpg")


KINDS: Final[dict[str, Kind]] = {
    "psycopg": Kind(PsycopgDualWriter),
    "sqlalchemy": Kind(DualWriter, _engine_of),
    "psycopg-awaited": Kind(AsyncPsycopgDualWriter, is_awaited=True),
    "sqlalchemy-awaited": Kind(AsyncDualWriter, _awaited_engine_of, is_awaited=True),
    "asyncpg": Kind(AsyncDualWriter, _asyncpg_engine_of, is_awaited=True),
    "asyncpg-alone": Kind(AsyncpgDualWriter, is_awaited=True),
}


def _sqlite_engine_of(url: sa.URL) -> sa.Engine:
    return sa.create_engine(url, connect_args={"timeout": 60})


def _awaited_sqlite_engine_of(url: sa.URL) -> AsyncEngine:
    return awaited_engine(url, "aiosqlite", connect_args={"timeout": 60})


ELSEWHERE: Final[dict[str, Kind]] = {
    "mariadb": Kind(DualWriter, sa.create_engine),
    "sqlite": Kind(DualWriter, _sqlite_engine_of),
    "sqlite-awaited": Kind(AsyncDualWriter, _awaited_sqlite_engine_of, is_awaited=True),
}
"""Writers to other databases."""


async def got(result: Any) -> Any:
    """Return a result, which is awaited first where it has to be."""
    return await result if inspect.isawaitable(result) else result


@asynccontextmanager
async def entered(block: Any) -> AsyncIterator[Any]:
    """Enter a block of either face; nothing is awaited in one for threads."""
    if hasattr(block, "__aenter__"):
        async with block as tx:
            yield tx
    else:
        with block as tx:
            yield tx


async def closed(writer: Any, source: Any) -> None:
    """Close a writer, and its engine if it has one."""
    await got(writer.close())
    if isinstance(source, sa.Engine | AsyncEngine):
        await got(source.dispose())
