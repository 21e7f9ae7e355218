"""PostgreSQL through psycopg as a backend of the writers, and its leases: the same for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import psycopg

from dualwrite.errors import IllegalStateError
from dualwrite.recipes.capabilities import BackendName
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.database_errors import is_conflict
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.leases import Leases
from dualwrite.recipes.core.waiting import Waiting
from dualwrite.recipes.pool.settings import PoolSettings
from dualwrite.recipes.psycopg.adapter import PsycopgDatabase
from dualwrite.recipes.psycopg.connections import Connections, connections_beside, connections_from
from dualwrite.recipes.psycopg.driver import AnyConnection
from dualwrite.recipes.psycopg.grouped import PsycopgGroup
from dualwrite.recipes.psycopg.transaction import PsycopgTransaction, TableFile
from dualwrite.recipes.sql.isolation import keeps_a_snapshot
from dualwrite.recipes.sql.lease_statements import LEASE_TABLE, POSTGRES_NOW_MS, Steps, TableLeases
from dualwrite.recipes.sql.pinned_tables import PinnedTables, checked_schema
from dualwrite.recipes.writer import Use

ConnectionT = TypeVar("ConnectionT", bound=AnyConnection)
TxT = TypeVar("TxT", bound=DualWrite)
ResultT = TypeVar("ResultT")


class PsycopgBackend(Generic[ConnectionT, TxT]):
    """A PostgreSQL for the blocks of a writer, one at a time, or several at a time for a pool.

    `source` is a conninfo, a connection pool or a function that makes a connection; `handle` makes a block's handle.
    """

    name: Final = BackendName.PSYCOPG
    database: PsycopgDatabase

    def __init__(
        self,
        source: Any,
        *,
        connection_class: type[ConnectionT],
        handle: Callable[[PsycopgTransaction, RecordBuffer], TxT],
        waiting: Waiting,
        create_table: bool,
        schema: str | None,
        max_writers: int = 1,
    ) -> None:
        self._source = source
        self._connection_class = connection_class
        self._handle = handle
        self.waiting: Final = waiting
        self._create_table = create_table
        self._schema = checked_schema(schema)
        self.connections: Final = connections_from(source, self._connect, most_kept=max_writers)
        """The connections for blocks."""

    async def begin(self, bind: ConnectionT | None, records: RecordBuffer, use: Use) -> TxT:
        if bind is not None and not isinstance(bind, self._connection_class):
            raise IllegalStateError(
                f"this dual write runs on a psycopg.{self._connection_class.__name__}, not on {bind!r}; nothing was "
                "written"
            )
        before = self._slot_before_snapshot(use) if use.needs_slot_early else None
        return self._handle(await self.database.transaction(bind, records, before), records)

    def _slot_before_snapshot(self, use: Use) -> Callable[[AnyConnection], Awaitable[None]]:
        async def before(connection: AnyConnection) -> None:
            if await self.database.keeps_a_snapshot(connection):
                await use.take_slot()

        return before

    def _connect(self, *arguments: Any, **keywords: Any) -> Any:
        return self._connection_class.connect(*arguments, **keywords)

    async def close(self) -> None:
        await self.connections.close()


class PsycopgOneIdBackend(PsycopgBackend[ConnectionT, TxT]):
    """For a writer under one id: between blocks, its connection also reads and writes the state row."""

    def __init__(
        self,
        source: Any,
        *,
        connection_class: type[ConnectionT],
        handle: Callable[[PsycopgTransaction, RecordBuffer], TxT],
        waiting: Waiting,
        create_table: bool,
        schema: str | None,
    ) -> None:
        super().__init__(
            source,
            connection_class=connection_class,
            handle=handle,
            waiting=waiting,
            create_table=create_table,
            schema=schema,
        )
        self.database = PsycopgDatabase(
            self.connections,
            create_table=self._create_table,
            schema=self._schema,
            uninterrupted=self.waiting.uninterrupted,
            beside=connections_beside(source, self._connect, most_kept=0),
        )


class PsycopgPoolBackend(PsycopgBackend[ConnectionT, TxT]):
    """For a pool: the background has separate connections to the same database."""

    background: Connections
    leases_inside_blocks: Final = True
    connect_first: Final = None

    def assert_groups(self) -> None:
        """Raise nothing: PostgreSQL has savepoints."""

    async def begin_group(self, records: RecordBuffer) -> PsycopgGroup[TxT]:
        transaction = await self.database.transaction(None, records, self._assert_sees_now)
        return PsycopgGroup(transaction, records, self._handle, self.waiting.uninterrupted)

    async def _assert_sees_now(self, connection: AnyConnection) -> None:
        if await self.database.keeps_a_snapshot(connection):
            raise keeps_a_snapshot()

    def begin_life(self) -> None:
        """Create the database and its connections for this process."""
        self.background = connections_beside(self._source, self._connect)
        self.database = PsycopgDatabase(
            self.background,
            create_table=self._create_table,
            schema=self._schema,
            uninterrupted=self.waiting.uninterrupted,
            of_blocks=self.connections,
        )

    def leases(self, settings: PoolSettings) -> Leases:
        """Return the leases of a new owner."""
        return PsycopgLeases(
            self.database,
            prefix=settings.prefix,
            owner=settings.new_owner(),
            lease_ms=settings.lease_ms,
            create_table=self._create_table,
        )

    async def close(self) -> None:
        await super().close()
        await self.background.close()


class _LeaseTransaction:
    """`LeaseTransaction` on psycopg."""

    def __init__(self, transaction: PsycopgTransaction, pinned: PinnedTables) -> None:
        self._transaction = transaction
        self._pinned = pinned

    async def rows(self, sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return await self._transaction.rows(self._pinned.sql(sql), values)

    async def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        return await self._transaction.changed(self._pinned.sql(sql), values)

    async def has_table(self, name: str) -> bool:
        return await self._transaction.has_table(self._pinned.sql(name))


class PsycopgLeases(TableLeases):
    """`Leases` in the table, which `pool_schema.sql` creates."""

    errors: tuple[type[Exception], ...] = (psycopg.Error,)

    def __init__(
        self, database: PsycopgDatabase, *, prefix: str, owner: str, lease_ms: int, create_table: bool
    ) -> None:
        super().__init__(prefix=prefix, owner=owner, lease_ms=lease_ms, now_ms=POSTGRES_NOW_MS)
        self._database = database
        self._table = TableFile(LEASE_TABLE, "pool_schema.sql", create=create_table)
        self._pinned: PinnedTables | None = None

    def _was_beaten(self, error: Exception) -> bool:
        return isinstance(error, psycopg.errors.IntegrityError) or is_conflict(error)

    async def _in_transaction(self, steps: Steps[ResultT]) -> ResultT:
        if self._pinned is None:
            self._pinned = await self._database.ensure_table(self._table)
        pinned = self._pinned
        return await self._database.in_transaction(lambda transaction: steps(_LeaseTransaction(transaction, pinned)))
