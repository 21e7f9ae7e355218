"""The sources of a writer's psycopg connections, blocking or asynchronous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psycopg import IsolationLevel

from dualwrite.errors import ConfigError
from dualwrite.guarded import cleaning_up_after
from dualwrite.recipes.postgres.connections import (
    Connections,
    KeptConnections,
    MadeConnections,
    settled,
)
from dualwrite.recipes.psycopg.connection_guard import is_idle
from dualwrite.recipes.psycopg.driver import AnyConnection, configure_function


async def _close(connection: Any) -> None:
    await settled(connection.close())


def _kept(make: Callable[[], Any], most: int) -> KeptConnections:
    return KeptConnections(make, is_idle=is_idle, close=_close, most=most)


class PooledConnections:
    """Connections of a `psycopg_pool` for threads or for asyncio, which the caller opens and closes."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @property
    def attempts(self) -> int:
        return int(self._pool.max_size) + 1

    @property
    def are_limited(self) -> bool:
        return True

    async def acquire(self) -> AnyConnection:
        connection: AnyConnection = await settled(self._pool.getconn())
        return connection

    async def release(self, connection: AnyConnection) -> None:
        await settled(self._pool.putconn(connection))

    def keep(self, connection: AnyConnection) -> bool:
        return False

    async def close(self) -> None:
        """Close nothing: the pool belongs to the caller."""


def connections_from(
    source: Any, connect: Callable[..., Any], *, most_kept: int, prepare_threshold: int | None
) -> Connections:
    """Return the connections of a conninfo, a pool or a function. Raises ConfigError for anything else.

    By default no statements are prepared: if PgBouncer gives each transaction another server connection, the name of a
    prepared statement may refer to a statement of another client there, which would be executed instead.
    """
    if isinstance(source, str):
        # In autocommit mode we send BEGIN ourselves, in one round trip with the mark.
        async def make() -> Any:
            return await settled(connect(source, autocommit=True, prepare_threshold=prepare_threshold))

        return _kept(make, most_kept)
    if _is_pool(source):
        return PooledConnections(source)
    if callable(source):
        return MadeConnections(source, _close)
    raise ConfigError(
        "the database of a PsycopgDualWriter is a conninfo, a psycopg_pool.ConnectionPool or a function that makes "
        f"connections, not {source!r}"
    )


def connections_beside(
    source: Any, connect: Callable[..., Any], *, most_kept: int, prepare_threshold: int | None
) -> Connections:
    """Return connections to the same database as `connections_from(source)` that blocks do not use."""

    async def make() -> Any:
        if isinstance(source, str):
            connection = await settled(connect(source))
        elif _is_pool(source):
            connection = await _made_as_by(source)
        else:
            connection = await settled(source())
        connection.prepare_threshold = prepare_threshold
        try:
            await settled(connection.set_autocommit(True))
            await settled(connection.set_isolation_level(IsolationLevel.READ_COMMITTED))
        except BaseException as error:
            with cleaning_up_after(error):
                await settled(connection.close())
            raise
        return connection

    return _kept(make, most_kept)


async def _made_as_by(pool: Any) -> Any:
    """Open a connection like those of `pool`, but outside of it."""
    conninfo = await _setting_of(pool.conninfo)
    keywords = await _setting_of(pool.kwargs)
    connection = await settled(pool.connection_class.connect(conninfo or "", **(keywords or {})))
    configure = configure_function(pool)
    if configure is not None:
        await settled(configure(connection))
    return connection


async def _setting_of(setting: Any) -> Any:
    """Return a setting of a psycopg_pool, which may be a function that returns the setting."""
    return await settled(setting()) if callable(setting) else setting


def _is_pool(source: Any) -> bool:
    return hasattr(source, "getconn") and hasattr(source, "putconn")
