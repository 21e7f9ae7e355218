"""The database transaction of a dual write on PostgreSQL with asyncpg, and the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from dualwrite.errors import IllegalStateError
from dualwrite.recipes.asyncpg import driver
from dualwrite.recipes.asyncpg.connection_guard import Watch, assert_can_begin
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.postgres.adapter import PostgresDatabase
from dualwrite.recipes.postgres.connections import Connections
from dualwrite.recipes.postgres.statement_watch import NOT_READY
from dualwrite.recipes.postgres.transaction import PostgresTransaction
from dualwrite.recipes.sql.pinned_tables import Pin
from dualwrite.recipes.sql.postgres import ISOLATION


class AsyncpgTransaction(PostgresTransaction):
    """`DatabaseTransaction` on a connection that is returned to `of`, or left to the caller if that is None."""

    errors = driver.ERRORS
    driver_name = "asyncpg"
    _message_class = driver.AsyncpgCommitMessage
    _watch: Watch

    def __init__(
        self, connection: Any, records: RecordBuffer, of: Connections | None, pin: Pin, must_be_in: Any = None
    ) -> None:
        self._raw = driver.unwrapped(connection)
        assert_can_begin(self._raw)
        driver.keep_alive(self._raw)
        super().__init__(connection, Watch(self._raw, records), of, pin, must_be_in)

    async def begin(self) -> None:
        try:
            await super().begin()
        except (asyncpg.InFailedSQLTransactionError, asyncpg.InterfaceError) as error:
            if self.is_lost:
                raise
            raise IllegalStateError(NOT_READY) from error

    @property
    def is_idle(self) -> bool:
        return driver.is_idle(self._raw)

    @property
    def is_lost(self) -> bool:
        return bool(self._raw.is_closed())

    @property
    def host(self) -> str:
        return driver.host_of(self._raw)

    @property
    def _cannot_roll_back(self) -> bool:
        return self.is_lost or self._watch.running > 0

    def _begin_statement(self) -> str:
        return driver.begin_statement(self._raw)

    async def _send_rollback(self) -> None:
        if not self.is_idle or driver.is_cancelling(self._raw):
            await driver.roll_back(self._raw)

    def _drop(self) -> None:
        self._raw.terminate()

    # -- statements of our own, which the watch does not see ---------------------------------------------------------

    async def script(self, sql: str) -> None:
        self._assert_ours()
        await driver.execute(self._raw, sql)

    async def rows(self, sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        self._assert_ours()
        rows, _ = await driver.fetch(self._raw, self.pin.sql(sql), values)
        return rows

    async def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        self._assert_ours()
        _, status = await driver.fetch(self._raw, self.pin.sql(sql), values)
        return int(status.rpartition(" ")[2])


class AsyncpgDatabase(PostgresDatabase[AsyncpgTransaction]):
    errors = driver.ERRORS
    transaction_class = AsyncpgTransaction

    async def _isolation_of(self, connection: Any) -> str | None:
        raw = driver.unwrapped(connection)
        if driver.is_idle(raw):
            return None
        try:
            found, _ = await driver.fetch(raw, ISOLATION, {})
        except asyncpg.InFailedSQLTransactionError as error:
            raise IllegalStateError(NOT_READY) from error
        return str(found[0][0])
