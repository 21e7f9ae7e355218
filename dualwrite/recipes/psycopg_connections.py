"""Where the psycopg connections of a writer come from, and where they go to; blocking or awaited."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, Protocol

from dualwrite.errors import ConfigError
from dualwrite.recipes.psycopg_watch import AnyConnection, is_idle


async def settled(value: Any) -> Any:
    """What a call of psycopg gives: its blocking half gives the value, its other half something to await.

    This is all that the two halves differ in, so the steps above it are written once; with blocking connections they
    never suspend.
    """
    return await value if isawaitable(value) else value


class Connections(Protocol):
    """Where connections come from."""

    @property
    def attempts(self) -> int:
        """How many may be asked for until one is certain not to be left over from before the database went away."""

    async def acquire(self) -> AnyConnection: ...

    async def release(self, connection: AnyConnection) -> None:
        """It is idle, or closed."""

    async def close(self) -> None:
        """Close what is kept here."""


class OneConnection:
    """Opened when it is needed, and kept for the next one who needs it."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._kept: AnyConnection | None = None
        self._process_id = os.getpid()

    @property
    def attempts(self) -> int:
        return 2

    async def acquire(self) -> AnyConnection:
        kept = self._take()
        if kept is not None and is_idle(kept):
            return kept
        connection: AnyConnection = await settled(self._connect())
        return connection

    async def release(self, connection: AnyConnection) -> None:
        if self._kept is None and is_idle(connection):
            self._kept = connection
        else:
            await settled(connection.close())

    async def close(self) -> None:
        kept = self._take()
        if kept is not None:
            await settled(kept.close())

    def _take(self) -> AnyConnection | None:
        kept, self._kept = self._kept, None
        if os.getpid() != self._process_id:  # forked: the socket is the parent's, and psycopg will not end it for us
            self._process_id = os.getpid()
            return None
        return kept


class PooledConnections:
    """From a `psycopg_pool.ConnectionPool`, or the pool for coroutines. It is the caller's to open and to close."""

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

    async def close(self) -> None:
        """The pool is the caller's."""


class MadeConnections:
    """From a function of the caller's; each is closed after use."""

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

    async def close(self) -> None:
        """Nothing is kept."""


def connections_from(source: Any, connect: Callable[..., Any]) -> Connections:
    """From a conninfo, a pool or a function. Raises ConfigError for anything else."""
    if isinstance(source, str):
        # In autocommit mode a transaction begins where we say so, in one round trip with what marks it.
        return OneConnection(lambda: connect(source, autocommit=True))
    if hasattr(source, "getconn") and hasattr(source, "putconn"):
        return PooledConnections(source)
    if callable(source):
        return MadeConnections(source)
    raise ConfigError(
        "the database of a PsycopgDualWriter is a conninfo, a psycopg_pool.ConnectionPool or a function that makes "
        f"connections, not {source!r}"
    )
