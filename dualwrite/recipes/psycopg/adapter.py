"""PostgreSQL with psycopg as the database of dual writes: its transactions, tables and identity."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import psycopg

from dualwrite.errors import IllegalStateError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.database_errors import is_conflict
from dualwrite.recipes.core.database_safety import POSTGRES_NAMES, POSTGRES_SETTINGS_QUERY, answer_for, of_postgres
from dualwrite.recipes.core.store import not_durable
from dualwrite.recipes.core.waiting import Uninterrupted
from dualwrite.recipes.psycopg.connection_guard import is_idle
from dualwrite.recipes.psycopg.connections import Connections
from dualwrite.recipes.psycopg.driver import AnyConnection, isolation_name
from dualwrite.recipes.psycopg.transaction import Pin, PsycopgTransaction, TableFile
from dualwrite.recipes.sql.database_identity import IDENTITY_TABLE, MOST_ATTEMPTS, DatabaseIdentity, identity_is_missing
from dualwrite.recipes.sql.isolation import sees_now
from dualwrite.recipes.sql.pinned_tables import (
    STATE_TABLE,
    PinnedTables,
    checked_schema,
    find_schema,
    find_state_table,
    quoted,
)
from dualwrite.recipes.sql.redo_statements import REDO_TABLE
from dualwrite.recipes.sql.socket_timeout import SocketTimeout

ResultT = TypeVar("ResultT")

_DEFAULT_ISOLATION: Final = "SELECT current_setting('default_transaction_isolation')"

# Errors of CREATE TABLE IF NOT EXISTS if another session creates the table at the same time: the table, its row type,
# or a catalog row already exists.
_CREATED_BY_OTHERS: Final = (
    psycopg.errors.DuplicateTable,
    psycopg.errors.DuplicateObject,
    psycopg.errors.UniqueViolation,
)

Steps = Callable[[PsycopgTransaction], Coroutine[Any, Any, ResultT]]
Before = Callable[[AnyConnection], Awaitable[None]]


class PsycopgDatabase:
    """`Database` on the connections of a writer. The blocks of a pool use separate connections, `of_blocks`."""

    errors: tuple[type[Exception], ...] = (psycopg.Error,)

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
        """`beside`: connections that are available while blocks hold all others; by default the same ones."""
        self._connections = connections
        self._of_blocks = connections if of_blocks is None else of_blocks
        self._beside = connections if beside is None else beside
        self._create_table = create_table
        self._schema = checked_schema(schema)
        self._pin = Pin()
        self._identity: DatabaseIdentity | None = None
        self._uninterrupted = uninterrupted
        self.location: str | None = None
        """The database that our own connections lead to; None before that was queried."""
        self._default_isolation: str | None = None
        self._keeps_a_snapshot = False
        self._is_examined = False

    async def ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        identity = await self._query_identity()
        await self._in_transaction_that_creates(lambda transaction: transaction.make_row(transactional_id))
        return identity

    async def prepare_to_store(self, transactional_id: str) -> None:
        table = TableFile(REDO_TABLE, "redo_schema.sql", create=self._create_table, option=" --redo")

        async def steps(transaction: PsycopgTransaction) -> None:
            await transaction.need(table, self._pin.tables)
            await transaction.make_head(transactional_id)

        await self._pin_tables()
        await self._in_transaction_that_creates(steps)
        self._pin.has_redo_table = True

    async def _examine(self, transaction: PsycopgTransaction) -> None:
        """Check once for guarantees that the database lacks. Raises UnsafeDatabaseError if a writer cannot use it."""
        if self._is_examined:
            return
        answer_for(of_postgres({"host": transaction.connection.info.host}))
        (row,) = await transaction.rows(POSTGRES_SETTINGS_QUERY, {})
        known = {name: str(value) for name, value in zip(POSTGRES_NAMES, row, strict=True) if value is not None}
        answer_for(of_postgres(known))
        self._is_examined = True

    async def ensure_table(self, table: TableFile) -> PinnedTables:
        """Return where a table is. Raises StateRowError if it is missing and may not be created."""

        async def steps(transaction: PsycopgTransaction) -> PinnedTables:
            pinned = await transaction.query(find_schema(self._schema, table.name))
            await transaction.need(table, pinned)
            return pinned

        return await self._in_transaction_that_creates(steps)

    async def _query_identity(self) -> DatabaseIdentity:
        """Return the identity that this database adds to its transactional ids; inserted if missing, queried once."""
        await self._pin_tables()
        if self._identity is None:
            self._identity = await self._found_or_made()
        return self._identity

    async def _found_or_made(self) -> DatabaseIdentity:
        for _ in range(MOST_ATTEMPTS):
            found = await self.in_transaction(PsycopgTransaction.identity)
            if found is not None:
                return found
            try:
                await self.in_transaction(PsycopgTransaction.make_identity)
            except _CREATED_BY_OTHERS:
                continue  # another process inserted it at the same moment
            except psycopg.Error as error:
                if not is_conflict(error):
                    raise
        raise identity_is_missing()

    async def _pin_tables(self) -> None:
        """Find our tables, or create them, once. Raises StateRowError if they are missing, and StateTableError."""
        if self._pin.tables is None:
            self._pin.tables = await self._in_transaction_that_creates(self._found_tables)

    async def _found_tables(self, transaction: PsycopgTransaction) -> PinnedTables:
        await self._examine(transaction)
        given = None if self._schema is None else PinnedTables(self._schema, quoted(self._schema))
        pinned = await transaction.query(find_state_table(self._schema))
        if pinned is None:
            await transaction.need(TableFile(STATE_TABLE, "schema.sql", create=self._create_table), given)
            pinned = await transaction.query(find_state_table(self._schema))
            assert pinned is not None, "it has just been created"
        await transaction.need_manifest(pinned, add=self._create_table)
        await transaction.need(TableFile(IDENTITY_TABLE, "schema.sql", create=self._create_table), pinned)
        return pinned

    async def _in_transaction_that_creates(self, steps: Steps[ResultT]) -> ResultT:
        try:
            return await self.in_transaction(steps)
        except _CREATED_BY_OTHERS:
            return await self.in_transaction(steps)  # another process created it at the same moment

    async def in_transaction(self, steps: Steps[ResultT]) -> ResultT:
        """Carry out `steps` in a transaction of their own, and commit it."""
        transaction = await self.begin()
        try:
            result = await steps(transaction)
            await transaction.commit()
        finally:
            await self._uninterrupted(_end(transaction))
        return result

    async def begin(self) -> PsycopgTransaction:
        return await self._begin(self._connections, RecordBuffer())

    async def make_durable(self, transactional_id: str, row: PreparedTxnState, *, timeout_ms: int) -> None:
        transaction = await self._begin(self._beside, RecordBuffer())
        cut = SocketTimeout(transaction.connection, timeout_ms / 1000)
        try:
            with cut:
                seen = await transaction.read_to_prove_durable(transactional_id)
                if seen != str(row):
                    raise not_durable(transactional_id, row, f"another connection finds {seen!r} in its row")
                await transaction.commit()
        except psycopg.OperationalError as error:
            if not cut.has_fired:
                raise
            raise not_durable(transactional_id, row, f"a commit was not answered within {timeout_ms} ms") from error
        finally:
            await self._uninterrupted(_end(transaction))

    async def transaction(
        self, connection: AnyConnection | None, records: RecordBuffer, before: Before | None = None
    ) -> PsycopgTransaction:
        """Begin the transaction of a block, on the caller's connection or on one of ours.

        `before` is awaited with the connection before the transaction begins.
        """
        if connection is None:
            return await self._begin(self._of_blocks, records, before)
        transaction = PsycopgTransaction(connection, records, None, self._pin)
        was_idle = is_idle(connection)
        try:
            if before is not None:
                await before(connection)
            await self._assert_here(await transaction.begin_and_locate())
        except BaseException:
            if was_idle:
                await self._uninterrupted(transaction.rollback())
            transaction.let_go()
            raise
        return transaction

    async def keeps_a_snapshot(self, connection: AnyConnection) -> bool:
        """Return whether a transaction on the connection sees only data committed before its first statement."""
        level = connection.isolation_level
        if level is not None:
            return not sees_now(isolation_name(level))
        if self._default_isolation is None:
            await self.default_isolation()
        return self._keeps_a_snapshot

    async def default_isolation(self) -> str:
        """Return the isolation level of connections without an explicit one. Queried once."""
        if self._default_isolation is None:
            (answer,) = await self.in_transaction(lambda transaction: transaction.rows(_DEFAULT_ISOLATION, {}))
            self._default_isolation = str(answer[0])
            self._keeps_a_snapshot = not sees_now(self._default_isolation)
        return self._default_isolation

    async def assert_holds(self, transaction: PsycopgTransaction) -> None:
        """Raise IllegalStateError if a transaction runs in another database than our own connections."""
        await self._assert_here(await transaction.location())

    async def _assert_here(self, location: str) -> None:
        if location != self.location and location != await self._query_location():
            raise IllegalStateError(_OTHER_DATABASE)

    async def _query_location(self) -> str:
        """Query where our own connections lead now: a restarted server counts as another one."""
        self.location = await self.in_transaction(PsycopgTransaction.location)
        return self.location

    async def _begin(
        self, connections: Connections, records: RecordBuffer, before: Before | None = None
    ) -> PsycopgTransaction:
        """Begin a transaction on one of our connections. One that was lost while idle fails here and is replaced."""
        attempts_left = connections.attempts
        while True:
            attempts_left -= 1
            connection = await connections.acquire()
            try:
                if before is not None:
                    await before(connection)
                place = None if connections is self._connections else self
                transaction = PsycopgTransaction(connection, records, connections, self._pin, place)
            except BaseException:
                await self._uninterrupted(connections.release(connection))
                raise
            try:
                await transaction.begin()
                return transaction
            except BaseException as error:
                was_lost = isinstance(error, psycopg.OperationalError) and connection.closed
                await self._uninterrupted(transaction.close())
                if not was_lost or not attempts_left:
                    raise


async def _end(transaction: PsycopgTransaction) -> None:
    await transaction.rollback()
    await transaction.close()


_OTHER_DATABASE = (
    "the connection leads to another database than this writer's own connections, which would be used to look up the "
    "outcome of a lost commit; nothing was written: let both lead to the same database"
)
