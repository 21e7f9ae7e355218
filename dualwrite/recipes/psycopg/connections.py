"""The sources of a writer's psycopg connections, blocking or asynchronous."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, Final, Protocol

from psycopg import IsolationLevel

from dualwrite.errors import ConfigError
from dualwrite.recipes.psycopg.connection_guard import is_idle
from dualwrite.recipes.psycopg.driver import AnyConnection, closed, configure_function, read_by_its_loop

_KEPT_BESIDE: Final = 2
"""Connections kept for the background of a pool; more are opened when needed, and closed after use."""


async def settled(value: Any) -> Any:
    """Return the result of a psycopg call: a blocking connection returns the value, an asynchronous one an awaitable.

    The two differ in nothing else, so the code that uses them is written once; with blocking connections it never
    suspends.
    """
    return await value if isawaitable(value) else value


class Connections(Protocol):
    """A source of connections."""

    @property
    def attempts(self) -> int:
        """How many to acquire until one is certainly newer than the database's last restart."""

    async def acquire(self) -> AnyConnection: ...

    async def release(self, connection: AnyConnection) -> None:
        """Take back a connection that is idle or closed."""

    def keep(self, connection: AnyConnection) -> bool:
        """Release an idle connection without waiting. Return False, and do nothing, if that would have to wait."""

    async def close(self) -> None:
        """Close what is kept here."""


class KeptConnections:
    """Connections that are opened when needed; at most `most` are kept for later. Thread-safe."""

    def __init__(self, connect: Callable[[], Any], *, most: int = 1) -> None:
        self._connect = connect
        self._most = most
        self._kept: list[AnyConnection] = []
        self._process_id = os.getpid()

    @property
    def attempts(self) -> int:
        return self._most + 1

    async def acquire(self) -> AnyConnection:
        kept = self._take()
        if kept is not None and is_idle(kept):
            return kept
        if kept is not None:
            closed(kept)
        connection: AnyConnection = await settled(self._connect())
        return connection

    async def release(self, connection: AnyConnection) -> None:
        if not is_idle(connection) or not self.keep(connection):
            await settled(connection.close())
            closed(connection)

    def keep(self, connection: AnyConnection) -> bool:
        is_wanted = len(self._kept) < self._most
        if is_wanted:
            self._kept.append(connection)
        return is_wanted

    async def close(self) -> None:
        while (kept := self._take()) is not None:
            await settled(kept.close())
            closed(kept)

    def _take(self) -> AnyConnection | None:
        if os.getpid() != self._process_id:  # forked: the sockets are the parent's, and psycopg does not close them
            self._process_id = os.getpid()
            self._kept.clear()
        try:
            return self._kept.pop()
        except IndexError:
            return None


class PooledConnections:
    """Connections of a `psycopg_pool` for threads or for asyncio, which the caller opens and closes."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @property
    def attempts(self) -> int:
        return int(self._pool.max_size) + 1

    async def acquire(self) -> AnyConnection:
        connection: AnyConnection = await settled(self._pool.getconn())
        return connection

    async def release(self, connection: AnyConnection) -> None:
        await settled(self._pool.putconn(connection))

    def keep(self, connection: AnyConnection) -> bool:
        return False

    async def close(self) -> None:
        """Close nothing: the pool belongs to the caller."""


class MadeConnections:
    """Connections made by a function of the caller; each is closed after use."""

    def __init__(self, make: Callable[[], AnyConnection | Awaitable[AnyConnection]]) -> None:
        self._make = make

    @property
    def attempts(self) -> int:
        return 1

    async def acquire(self) -> AnyConnection:
        connection: AnyConnection = await settled(self._make())
        return connection

    async def release(self, connection: AnyConnection) -> None:
        await settled(connection.close())

    def keep(self, connection: AnyConnection) -> bool:
        return False

    async def close(self) -> None:
        """Close nothing: no connection is kept."""


def connections_from(source: Any, connect: Callable[..., Any], *, most_kept: int = 1) -> Connections:
    """Return the connections of a conninfo, a pool or a function. Raises ConfigError for anything else."""
    if isinstance(source, str):
        # In autocommit mode we send BEGIN ourselves, in one round trip with the mark. No statements are prepared: if
        # PgBouncer gives each transaction another server connection, the name of a prepared statement may refer to a
        # statement of another client there, which would be executed instead.
        async def make() -> Any:
            return read_by_its_loop(await settled(connect(source, autocommit=True, prepare_threshold=None)))

        return KeptConnections(make, most=most_kept)
    if _is_pool(source):
        return PooledConnections(source)
    if callable(source):
        return MadeConnections(source)
    raise ConfigError(
        "the database of a PsycopgDualWriter is a conninfo, a psycopg_pool.ConnectionPool or a function that makes "
        f"connections, not {source!r}"
    )


def connections_beside(source: Any, connect: Callable[..., Any], *, most_kept: int = _KEPT_BESIDE) -> Connections:
    """Return connections to the same database as `connections_from(source)` that blocks do not use.

    Blocks may hold all of the other connections while they wait for statements on these.
    """

    async def make() -> Any:
        if isinstance(source, str):
            connection = await settled(connect(source))
        elif _is_pool(source):
            connection = await _made_as_by(source)
        else:
            connection = await settled(source())
        connection.prepare_threshold = None  # as above
        try:
            await settled(connection.set_autocommit(True))
            await settled(connection.set_isolation_level(IsolationLevel.READ_COMMITTED))
        except BaseException:
            await settled(connection.close())
            raise
        return connection

    return KeptConnections(make, most=most_kept)


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
    """Return a setting of a psycopg_pool, which may be a function that returns it."""
    return await settled(setting()) if callable(setting) else setting


def _is_pool(source: Any) -> bool:
    return hasattr(source, "getconn") and hasattr(source, "putconn")
