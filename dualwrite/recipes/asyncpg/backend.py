"""PostgreSQL through asyncpg as a backend of the writers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import asyncpg

from dualwrite.errors import PoolTimeoutError
from dualwrite.recipes.asyncpg import driver
from dualwrite.recipes.asyncpg.transaction import AsyncpgDatabase
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.postgres.backend import Driver
from dualwrite.recipes.postgres.connections import Connections

_log = logging.getLogger(__name__)


class AsyncpgDriver(Driver):
    """asyncpg; `wait_ms` limits the wait for a connection of an exhausted pool (None: no limit)."""

    connection_name = "an asyncpg.Connection"
    sources = "an AsyncpgDualWriter is a DSN, an asyncpg.Pool or a function that makes connections"
    database = AsyncpgDatabase

    def __init__(self, *, wait_ms: int | None) -> None:
        self._wait_ms = wait_ms

    def is_connection(self, bind: Any) -> bool:
        return isinstance(bind, asyncpg.Connection)

    def _is_pool(self, source: Any) -> bool:
        return isinstance(source, asyncpg.Pool)

    def _connections_of(self, pool: Any) -> Connections:
        return PooledConnections(pool, self._wait_ms)

    def _connect(self, conninfo: str) -> Any:
        # Without named prepared statements, which PgBouncer may mistake for those of other clients (`driver.fetch`).
        return asyncpg.connect(conninfo, statement_cache_size=0)

    async def _connect_as(self, pool: Any) -> Any:
        return await driver.connected_as_by(pool)

    async def _prepare_beside(self, connection: Any) -> None:
        driver.begin_at_read_committed(connection)

    def _is_idle(self, connection: Any) -> bool:
        """Return whether a connection is in no transaction, and has none to come, as after a cancelled BEGIN."""
        return driver.is_idle(connection) and not driver.is_cancelling(connection)

    async def _close(self, connection: Any) -> None:
        """Close without waiting for the server, which would take forever without a network."""
        driver.unwrapped(connection).terminate()


class PooledConnections(Connections):
    """Connections of an `asyncpg.Pool`, which the caller opens and closes."""

    are_limited = True

    def __init__(self, pool: Any, wait_ms: int | None) -> None:
        self._pool = pool
        self._wait_ms = wait_ms

    @property
    def attempts(self) -> int:
        return int(self._pool.get_max_size()) + 1

    async def acquire(self) -> Any:
        """Take a free connection, or wait for one. Raises PoolTimeoutError: an `asyncpg.Pool` has no limit."""
        if self._wait_ms is None or not driver.is_exhausted(self._pool):
            return await self._pool.acquire()
        try:
            async with asyncio.timeout(self._wait_ms / 1000) as limit:
                return await self._pool.acquire()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise PoolTimeoutError(
                f"no connection of the asyncpg.Pool became free for this block within {self._wait_ms} ms (max_size="
                f"{self._pool.get_max_size()}); nothing was written: try again later, make blocks shorter, give the "
                "asyncpg.Pool a larger max_size, or raise the limit (acquire_timeout_ms, or lock_timeout_ms of a "
                "writer with one id)"
            ) from error

    async def release(self, connection: Any) -> None:
        """Give the connection back. If that fails, its pool drops it, and the block has succeeded all the same."""
        try:
            await self._pool.release(connection, timeout=driver.RESET_S)
        except driver.ERRORS as error:
            why = first_line(error) or type(error).__name__
            _log.warning("asyncpg.Pool dropped a connection that could not be reset (%s)", why)
