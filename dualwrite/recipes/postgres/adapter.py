"""PostgreSQL as the database of dual writes, for any driver: its transactions, tables and identity."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar

from dualwrite.decisions.database_safety import POSTGRES_NAMES, POSTGRES_SETTINGS_QUERY, answer_for, of_postgres
from dualwrite.errors import IllegalStateError
from dualwrite.guarded import cleaning_up_after, pass_on_signal
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.database_errors import sqlstate_of
from dualwrite.recipes.core.own_transactions import in_own_transaction
from dualwrite.recipes.core.store import not_durable
from dualwrite.recipes.core.waiting import Uninterrupted
from dualwrite.recipes.postgres.connections import Connections
from dualwrite.recipes.postgres.transaction import PostgresTransaction
from dualwrite.recipes.sql.database import ResultT, SqlDatabase, Steps
from dualwrite.recipes.sql.identity_table import IDENTITY_TABLE
from dualwrite.recipes.sql.pinned_tables import (
    STATE_TABLE,
    Pin,
    PinnedTables,
    checked_schema,
    find_schema,
    find_state_table,
    quoted,
)
from dualwrite.recipes.sql.postgres import sees_now
from dualwrite.recipes.sql.socket_timeout import SocketTimeout

_DEFAULT_ISOLATION: Final = "SELECT current_setting('default_transaction_isolation')"

# SQLSTATEs of CREATE TABLE IF NOT EXISTS if another session creates the table at the same time: the table, its row
# type, or a catalog row already exists.
_CREATED_BY_OTHERS: Final = ("42P07", "42710", "23505")

TransactionT = TypeVar("TransactionT", bound=PostgresTransaction)
Before = Callable[[Any], Awaitable[None]]


class PostgresDatabase(SqlDatabase, Generic[TransactionT]):
    """`Database` on the connections of a writer. The blocks of a pool use separate connections, `of_blocks`."""

    transaction_class: ClassVar[Any]
    """Called with a connection, its records, the connections that take it back, the pin and the required place."""

    def __init__(
        self,
        connections: Connections,
        *,
        create_table: bool,
        schema: str | None = None,
        uninterrupted: Uninterrupted,
        of_blocks: Connections | None = None,
        beside: Connections | None = None,
    ) -> None:
        """Connect the database; `beside` are connections that stay available while blocks hold all others."""
        super().__init__(schema=checked_schema(schema))
        self._connections = connections
        self._of_blocks = connections if of_blocks is None else of_blocks
        self._beside = connections if beside is None else beside
        self._create_table = create_table
        self._uninterrupted = uninterrupted
        self.location: str | None = None
        """The database of our own connections; None before it was queried."""
        self._default_isolation: str | None = None
        self._is_examined = False

    def was_inserted_by_others(self, error: Exception) -> bool:
        pass_on_signal(error)
        return sqlstate_of(error) in _CREATED_BY_OTHERS

    async def _outside_transactions(self, sql: str) -> None:
        connection = await self._connections.acquire()
        try:
            await self.transaction_class(connection, RecordBuffer(), None, self.pin).script(sql)
        finally:
            await self._uninterrupted(self._connections.release(connection))

    async def _examine(self, transaction: TransactionT) -> None:
        """Examine the database once. Raises UnsafeDatabaseError if a writer cannot use it."""
        if self._is_examined:
            return
        answer_for(of_postgres({"host": transaction.host}))
        (row,) = await transaction.rows(POSTGRES_SETTINGS_QUERY, {})
        known = {name: str(value) for name, value in zip(POSTGRES_NAMES, row, strict=True) if value is not None}
        answer_for(of_postgres(known))
        self._is_examined = True

    async def ensure_table(self, table: str, pinned: PinnedTables | None = None) -> PinnedTables:
        async def steps(transaction: TransactionT) -> PinnedTables:
            where = pinned
            if where is None:
                where = await transaction.query(find_schema(self._schema, table))
            await transaction.need(table, where, create=self._create_table)
            return where

        return await self._in_transaction_that_creates(steps)

    async def _pin_tables(self) -> None:
        if self.pin.tables is None:
            self.pin.tables = await self._in_transaction_that_creates(self._found_tables)

    async def _found_tables(self, transaction: TransactionT) -> PinnedTables:
        await self._examine(transaction)
        given = None if self._schema is None else PinnedTables(self._schema, quoted(self._schema))
        pinned = await transaction.query(find_state_table(self._schema))
        if pinned is None:
            await transaction.need(STATE_TABLE, given, create=self._create_table)
            pinned = await transaction.query(find_state_table(self._schema))
            assert pinned is not None, "it has just been created"
        await transaction.need(IDENTITY_TABLE, pinned, create=self._create_table)
        return pinned

    async def _in_transaction_that_creates(self, steps: Steps[ResultT]) -> ResultT:
        try:
            return await self.in_transaction(steps)
        except self.errors as error:
            if not self.was_inserted_by_others(error):
                raise
            return await self.in_transaction(steps)  # another process created it at the same moment

    async def in_transaction(self, steps: Steps[ResultT], pin: Pin | None = None) -> ResultT:
        async def carried_out(transaction: TransactionT) -> ResultT:
            transaction.pin = pin or transaction.pin
            result = await steps(transaction)
            await transaction.commit()
            return result

        return await in_own_transaction(self.begin, carried_out, self._uninterrupted)

    async def begin(self) -> TransactionT:
        return await self._begin(self._connections, RecordBuffer())

    async def make_durable(self, transactional_id: str, row: PreparedTxnState, *, timeout_ms: int) -> None:
        async def prove(transaction: TransactionT) -> None:
            cut = SocketTimeout(transaction.connection, timeout_ms / 1000)
            try:
                with cut:
                    seen = await transaction.read_to_prove_durable(transactional_id)
                    if seen != str(row):
                        raise not_durable(transactional_id, row, f"another connection finds {seen!r} in its row")
                    await transaction.commit()
            except self.errors as error:
                if not cut.has_fired:
                    raise
                why = f"a commit got no response within {timeout_ms} ms"
                raise not_durable(transactional_id, row, why) from error

        await in_own_transaction(partial(self._begin, self._beside, RecordBuffer()), prove, self._uninterrupted)

    async def transaction(self, connection: Any, records: RecordBuffer, before: Before | None = None) -> TransactionT:
        """Begin a block's transaction, on the caller's connection or one of ours, which `before` gets first."""
        if connection is None:
            return await self._begin(self._of_blocks, records, before)
        if before is not None:
            await before(connection)
        transaction: TransactionT = self.transaction_class(connection, records, None, self.pin)
        records.unwatch = transaction.let_go
        was_idle = transaction.is_idle
        try:
            await self._assert_here(await transaction.begin_and_locate())
        except BaseException:
            if was_idle:
                await self._uninterrupted(transaction.rollback())
            transaction.let_go()
            raise
        return transaction

    async def keeps_a_snapshot(self, connection: Any) -> bool:
        """Return whether a transaction on the connection sees only data committed before its first statement."""
        level = await self._isolation_of(connection)
        return not sees_now(level or self._default_isolation or await self.default_isolation())

    @abstractmethod
    async def _isolation_of(self, connection: Any) -> str | None:
        """Return the isolation level set on the connection, by its SQL name; None if none is set."""

    async def default_isolation(self) -> str:
        """Return the isolation level of connections without an explicit one. Queried once."""
        if self._default_isolation is None:
            (answer,) = await self.in_transaction(lambda transaction: transaction.rows(_DEFAULT_ISOLATION, {}))
            self._default_isolation = str(answer[0])
        return self._default_isolation

    async def assert_holds(self, transaction: TransactionT) -> None:
        await self._assert_here(await transaction.location())

    async def _assert_here(self, location: str) -> None:
        if location != self.location and location != await self._query_location():
            raise IllegalStateError(_OTHER_DATABASE)

    async def _query_location(self) -> str:
        """Query the current location of our own connections: a restarted server counts as another one."""
        self.location = await self.in_transaction(PostgresTransaction.location)
        return self.location

    async def _begin(
        self, connections: Connections, records: RecordBuffer, before: Before | None = None
    ) -> TransactionT:
        """Begin a transaction on one of our connections. Replaces connections that were lost while idle."""
        attempts = 0
        while True:
            attempts += 1
            connection = await connections.acquire()
            try:
                if before is not None:
                    await before(connection)
                place = None if connections is self._connections else self
                transaction: TransactionT = self.transaction_class(connection, records, connections, self.pin, place)
            except BaseException as error:
                with cleaning_up_after(error):
                    await self._uninterrupted(connections.release(connection))
                raise
            try:
                await transaction.begin()
                return transaction
            except BaseException as error:
                was_lost = isinstance(error, self.errors) and transaction.is_lost
                with cleaning_up_after(error):
                    await self._uninterrupted(transaction.close())
                if not was_lost or attempts >= connections.attempts:
                    raise


_OTHER_DATABASE = (
    "the connection leads to another database than this writer's own connections, which would look up the outcome of "
    "a commit without a response; nothing was written: connect both to the same database"
)
