"""PostgreSQL through psycopg as a backend of the writers: the same for threads and for asyncio."""

from __future__ import annotations

from typing import Any

from psycopg import IsolationLevel

from dualwrite.errors import ConfigError
from dualwrite.guarded import cleaning_up_after
from dualwrite.recipes.core.waiting import settled
from dualwrite.recipes.postgres.backend import Driver
from dualwrite.recipes.postgres.connections import Connections
from dualwrite.recipes.psycopg.connection_guard import is_idle, is_in_transaction
from dualwrite.recipes.psycopg.driver import AnyConnection, configure_function
from dualwrite.recipes.psycopg.transaction import PsycopgDatabase


class PsycopgDriver(Driver):
    """psycopg, with the class of its connections for threads or for asyncio."""

    sources = "a PsycopgDualWriter is a conninfo, a psycopg_pool.ConnectionPool or a function that makes connections"
    database = PsycopgDatabase

    def __init__(self, connection_class: type[AnyConnection], prepare_threshold: Any) -> None:
        """Set the class of connections, and after how many executions they prepare a statement; None: never.

        If PgBouncer gives each transaction another server connection, the name of a prepared statement may refer to a
        statement of another client there, which would be executed instead. Raises ConfigError.
        """
        is_number = isinstance(prepare_threshold, int) and not isinstance(prepare_threshold, bool)
        if prepare_threshold is not None and (not is_number or prepare_threshold < 0):
            raise ConfigError(f"prepare_threshold takes None or a whole number, not {prepare_threshold!r}")
        self._connection_class = connection_class
        self._prepare_threshold = prepare_threshold
        self.connection_name = f"a psycopg.{connection_class.__name__}"

    def is_connection(self, bind: Any) -> bool:
        return isinstance(bind, self._connection_class)

    def _is_pool(self, source: Any) -> bool:
        return hasattr(source, "getconn") and hasattr(source, "putconn")

    def _connections_of(self, pool: Any) -> Connections:
        return PooledConnections(pool)

    def _connect(self, conninfo: str) -> Any:
        # In autocommit mode we send BEGIN ourselves, in one round trip with the mark.
        return self._connection_class.connect(conninfo, autocommit=True, prepare_threshold=self._prepare_threshold)

    async def _connect_as(self, pool: Any) -> Any:
        conninfo, keywords = await _setting_of(pool.conninfo), await _setting_of(pool.kwargs)
        connection = await settled(pool.connection_class.connect(conninfo or "", **(keywords or {})))
        configure = configure_function(pool)
        if configure is not None:
            await settled(configure(connection))
        return connection

    async def _prepare_beside(self, connection: Any) -> None:
        connection.prepare_threshold = self._prepare_threshold
        try:
            await settled(connection.set_autocommit(True))
            await settled(connection.set_isolation_level(IsolationLevel.READ_COMMITTED))
        except BaseException as error:
            with cleaning_up_after(error):
                await settled(connection.close())
            raise

    _is_idle = staticmethod(is_idle)

    async def _close(self, connection: Any) -> None:
        await settled(connection.close())


async def _setting_of(setting: Any) -> Any:
    """Return a setting of a psycopg_pool, which may be a function that returns the setting."""
    return await settled(setting()) if callable(setting) else setting


class PooledConnections(Connections):
    """Connections of a `psycopg_pool` for threads or for asyncio."""

    are_limited = True

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @property
    def attempts(self) -> int:
        return int(self._pool.max_size) + 1

    async def acquire(self) -> AnyConnection:
        connection: AnyConnection = await settled(self._pool.getconn())
        if is_in_transaction(connection):  # of a task that kept the connection when it was released
            try:
                await settled(connection.rollback())
            except BaseException as error:
                with cleaning_up_after(error):
                    await self.release(connection)
                raise
        return connection

    async def release(self, connection: AnyConnection) -> None:
        await settled(self._pool.putconn(connection))
