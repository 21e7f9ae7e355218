"""The awaited way to a database of the tests, through the same faults as the blocking one."""

from __future__ import annotations

from typing import Any

import aiosqlite
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tests.support.databases import PostgresDatabase, SqliteDatabase

DRIVERS = {"psycopg": "postgresql+psycopg", "asyncpg": "postgresql+asyncpg", "aiosqlite": "sqlite+aiosqlite"}


def awaited_engine(url: sa.URL, driver: str, **options: Any) -> AsyncEngine:
    """An engine for `url`, which is one of the blocking driver."""
    if driver == "asyncpg" and "options" in url.query:
        search_path = str(url.query["options"]).removeprefix("-csearch_path=")
        url = url.difference_update_query(["options"])
        options["connect_args"] = {"server_settings": {"search_path": search_path}}
    return create_async_engine(url.set(drivername=DRIVERS[driver]), **options)


def awaited_through_faults(database: PostgresDatabase | SqliteDatabase, driver: str) -> AsyncEngine:
    """An engine that obeys the faults of `database`."""
    if isinstance(database, PostgresDatabase):
        return awaited_engine(database.engine.url, driver, pool_pre_ping=True)

    def connect() -> aiosqlite.Connection:
        connection = aiosqlite.Connection(database.connect, 64)
        connection._thread.daemon = True
        return connection

    return create_async_engine("sqlite+aiosqlite://", async_creator=connect, poolclass=sa.NullPool)
