"""The sources of a writer's asyncpg connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import asyncpg

from dualwrite.errors import ConfigError, PoolTimeoutError
from dualwrite.recipes.asyncpg import driver
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.postgres.connections import Connections, KeptConnections, MadeConnections, settled

_log = logging.getLogger(__name__)


async def _close(connection: Any) -> None:
    """Close without waiting for the server, which would take forever without a network."""
    driver.unwrapped(connection).terminate()


def _is_idle(connection: Any) -> bool:
    """Return whether a connection is in no transaction, and has none to come, as after a cancelled BEGIN."""
    return driver.is_idle(connection) and not driver.is_cancelling(connection)


def _kept(make: Callable[[], Any], most: int) -> KeptConnections:
    return KeptConnections(make, is_idle=_is_idle, close=_close, most=most)


class PooledConnections:
    """Connections of an `asyncpg.Pool`, which the caller opens and closes."""

    def __init__(self, pool: Any, wait_ms: int | None) -> None:
        self._pool = pool
        self._wait_ms = wait_ms

    @property
    def attempts(self) -> int:
        return int(self._pool.get_max_size()) + 1

    @property
    def are_limited(self) -> bool:
        return True

    async def acquire(self) -> Any:
        """Take a free connection, or wait for one. Raises PoolTimeoutError: an `asyncpg.Pool` has no limit of its own.

        Opening a connection has a different limit, set by asyncpg.
        """
        if self._wait_ms is None or not driver.is_exhausted(self._pool):
            return await self._pool.acquire()
        try:
            async with asyncio.timeout(self._wait_ms / 1000) as limit:
                return await self._pool.acquire()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise self._timeout(self._wait_ms) from error

    def _timeout(self, wait_ms: int) -> PoolTimeoutError:
        return PoolTimeoutError(
            f"no connection of the asyncpg.Pool became free for this block within {wait_ms} ms (max_size="
            f"{self._pool.get_max_size()}); nothing was written: try again later, make blocks shorter, give the "
            "asyncpg.Pool a larger max_size, or raise the limit (acquire_timeout_ms, or lock_timeout_ms of a writer "
            "with one id)"
        )

    async def release(self, connection: Any) -> None:
        """Give the connection back. If that fails, its pool drops it, and the block has succeeded all the same."""
        try:
            await self._pool.release(connection, timeout=driver.RESET_S)
        except driver.ERRORS as error:
            why = first_line(error) or type(error).__name__
            _log.warning("asyncpg.Pool dropped a connection that could not be reset (%s)", why)

    def keep(self, connection: Any) -> bool:
        return False

    async def close(self) -> None:
        """Close nothing: the pool belongs to the caller."""


async def _connected(dsn: str) -> Any:
    # Without named prepared statements, which PgBouncer may mistake for those of other clients (`driver.fetch`).
    return await asyncpg.connect(dsn, statement_cache_size=0)


def connections_from(source: Any, *, most_kept: int, wait_ms: int | None) -> Connections:
    """Return the connections of a DSN, a pool or a function. Raises ConfigError for anything else."""
    if isinstance(source, str):
        return _kept(lambda: _connected(source), most_kept)
    if isinstance(source, asyncpg.Pool):
        return PooledConnections(source, wait_ms)
    if callable(source):
        return MadeConnections(source, _close)
    raise ConfigError(
        "the database of an AsyncpgDualWriter is a DSN, an asyncpg.Pool or a function that makes connections, not "
        f"{source!r}"
    )


def connections_beside(source: Any, *, most_kept: int) -> Connections:
    """Return connections to the same database as `connections_from(source)` that blocks do not use."""

    async def make() -> Any:
        if isinstance(source, str):
            connection = await _connected(source)
        elif isinstance(source, asyncpg.Pool):
            connection = await driver.connected_as_by(source)
        else:
            connection = await settled(source())
        return driver.begin_at_read_committed(connection)

    return _kept(make, most_kept)
