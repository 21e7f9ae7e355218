"""PostgreSQL as a backend of the writers, for any driver: the same for threads and for asyncio."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, TypeVar

from dualwrite.errors import ConfigError, IllegalStateError
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.leases import Leases
from dualwrite.recipes.core.settings import WritingSettings
from dualwrite.recipes.core.waiting import Uninterrupted, Waiting, settled
from dualwrite.recipes.postgres.adapter import PostgresDatabase
from dualwrite.recipes.postgres.connections import Connections, KeptConnections
from dualwrite.recipes.postgres.statement_watch import TOO_LATE
from dualwrite.recipes.sql.lease_statements import TableLeases
from dualwrite.recipes.sql.pinned_tables import checked_schema
from dualwrite.recipes.writer import Use

ConnectionT = TypeVar("ConnectionT")
TxT = TypeVar("TxT", bound=DualWrite)


class OnDriver(DualWrite, Generic[ConnectionT]):
    """One dual write on the connection of a driver."""

    @property
    def connection(self) -> ConnectionT:
        """The connection whose transaction is the decision. `connection.transaction()` inside is a savepoint.

        For a pool of asyncpg it is the pool's proxy of the connection.
        """
        if self.progress.records.is_closed:
            raise IllegalStateError(TOO_LATE)
        transaction: Any = self.progress.database
        connection: ConnectionT = transaction.connection
        return connection


_KEPT_BESIDE: Final = 2
"""Connections kept for the background of a pool; more are opened when needed, and closed after use."""


class Driver(ABC):
    """A driver's way to make the connections and the database of a backend."""

    connection_name: str
    """The name of a connection in error messages."""
    sources: str
    """The possible sources of a writer, in error messages."""
    database: Callable[..., PostgresDatabase[Any]]
    """Returns the database on connections; the options are those of `PostgresDatabase`."""

    def connections_from(self, source: Any, *, most_kept: int) -> Connections:
        """Return the connections of a conninfo, a pool or a function. Raises ConfigError for anything else."""
        if isinstance(source, str):
            return self._kept(partial(self._connect, source), most_kept)
        if self._is_pool(source):
            return self._connections_of(source)
        if callable(source):
            return self._kept(source, 0)
        raise ConfigError(f"the database of {self.sources}, not {source!r}")

    def connections_beside(self, source: Any, *, most_kept: int) -> Connections:
        """Return connections to the same database that no block can hold."""

        async def make() -> Any:
            if isinstance(source, str):
                connection = await settled(self._connect(source))
            elif self._is_pool(source):
                connection = await self._connect_as(source)
            else:
                connection = await settled(source())
            await self._prepare_beside(connection)
            return connection

        return self._kept(make, most_kept)

    def _kept(self, make: Callable[[], Any], most: int) -> KeptConnections:
        return KeptConnections(make, is_idle=self._is_idle, close=self._close, most=most)

    @abstractmethod
    def is_connection(self, bind: Any) -> bool:
        """Return whether `bind` is a connection on which a block can run."""

    @abstractmethod
    def _is_pool(self, source: Any) -> bool:
        """Return whether a source is a connection pool."""

    @abstractmethod
    def _connections_of(self, pool: Any) -> Connections:
        """Return the connections of a pool, which the caller opens and closes."""

    @abstractmethod
    def _connect(self, conninfo: str) -> Any:
        """Open a connection for blocks; the result may be an awaitable of it."""

    @abstractmethod
    async def _connect_as(self, pool: Any) -> Any:
        """Open a connection like those of a pool, but outside of it."""

    @abstractmethod
    async def _prepare_beside(self, connection: Any) -> None:
        """Let transactions of ours on a connection run at READ COMMITTED."""

    @abstractmethod
    def _is_idle(self, connection: Any) -> bool:
        """Return whether a connection is open and in no transaction."""

    @abstractmethod
    async def _close(self, connection: Any) -> None:
        """Close a connection."""


class PostgresBackend(Generic[ConnectionT, TxT]):
    """A PostgreSQL for the blocks of a writer, one at a time, or several at a time for a pool.

    `source` is a conninfo, a connection pool or a function that makes a connection; `handle` makes a block's handle.
    Under one id the same connections also read and write the state row between blocks, except those of a caller's
    connection pool; a pool's background has separate ones.
    """

    database: PostgresDatabase[Any]
    background: Connections
    has_savepoints: Final = True
    leases_inside_blocks: Final = True
    connect_first: Final = None

    def __init__(
        self,
        source: Any,
        *,
        driver: Driver,
        handle: Callable[[Any, RecordBuffer, Uninterrupted], TxT],
        waiting: Waiting,
        settings: WritingSettings,
        is_pool: bool = False,
    ) -> None:
        self._source = source
        self._driver = driver
        self._handle = handle
        self.waiting: Final = waiting
        self._create_table = settings.create_table
        self._schema = checked_schema(settings.schema)
        self.connections: Final = driver.connections_from(source, most_kept=settings.max_writers if is_pool else 1)
        """The connections for blocks."""
        if is_pool:
            return
        self.background = driver.connections_beside(source, most_kept=0)
        if self.connections.are_limited:
            # The caller's blocks may hold all of its connection pool while they wait for a statement of ours between
            # them.
            self.database = self._new_database(self.background, of_blocks=self.connections)
        else:
            self.database = self._new_database(self.connections, beside=self.background)

    def begin_life(self) -> None:
        self.background = self._driver.connections_beside(self._source, most_kept=_KEPT_BESIDE)
        self.database = self._new_database(self.background, of_blocks=self.connections)

    @property
    def outbox(self) -> PostgresDatabase[Any]:
        return self.database

    def leases(self, prefix: str, *, owner: str, lease_ms: int) -> Leases:
        return TableLeases(self.database, prefix=prefix, owner=owner, lease_ms=lease_ms)

    async def begin(self, bind: ConnectionT | None, records: RecordBuffer, use: Use) -> TxT:
        if bind is not None and not self._driver.is_connection(bind):
            raise IllegalStateError(
                f"this dual write runs on {self._driver.connection_name}, not on {bind!r}; nothing was written"
            )
        before = partial(self._take_slot_before_snapshot, use) if use.needs_slot_early else None
        transaction = await self.database.transaction(bind, records, before)
        try:
            return self._handle(transaction, records, self.waiting.uninterrupted)
        except BaseException:  # an interruption would leave the connection to the garbage collector
            await transaction.rollback()
            await transaction.close()
            raise

    async def _take_slot_before_snapshot(self, use: Use, connection: Any) -> None:
        if await self.database.keeps_a_snapshot(connection):
            await use.take_slot()

    def _new_database(self, connections: Connections, **options: Any) -> PostgresDatabase[Any]:
        return self._driver.database(
            connections,
            create_table=self._create_table,
            schema=self._schema,
            uninterrupted=self.waiting.uninterrupted,
            **options,
        )

    async def close(self) -> None:
        await self.connections.close()
        await self.background.close()
