"""The database transaction of a dual write on PostgreSQL with psycopg, and the database, for threads and asyncio."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import psycopg
from psycopg.abc import PQGen
from psycopg.pq.abc import PGresult

from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.waiting import settled
from dualwrite.recipes.postgres.adapter import PostgresDatabase
from dualwrite.recipes.postgres.connections import Connections
from dualwrite.recipes.postgres.transaction import PostgresTransaction
from dualwrite.recipes.psycopg.commit_message import PsycopgCommitMessage
from dualwrite.recipes.psycopg.connection_guard import IDLE, Watch, assert_can_begin, is_busy
from dualwrite.recipes.psycopg.driver import (
    AnyConnection,
    Values,
    answered,
    begin_statement,
    drop,
    executed,
    first_text,
    first_texts,
    isolation_name,
    pyformat,
)
from dualwrite.recipes.psycopg.own_adapters import cursor_of
from dualwrite.recipes.sql.pinned_tables import Pin
from dualwrite.recipes.sql.postgres import LOCATION


class PsycopgTransaction(PostgresTransaction):
    """`DatabaseTransaction` on a connection that is returned to `of`, or left to the caller if that is None."""

    errors = (psycopg.Error,)
    driver_name = "psycopg"
    _message_class = PsycopgCommitMessage
    connection: AnyConnection
    _watch: Watch

    def __init__(
        self, connection: AnyConnection, records: RecordBuffer, of: Connections | None, pin: Pin, must_be_in: Any = None
    ) -> None:
        assert_can_begin(connection)
        super().__init__(connection, Watch(connection, records), of, pin, must_be_in)
        self._raw = connection
        self._cursor: Any = None
        self._is_awaited = isinstance(connection, psycopg.AsyncConnection)

    async def begin_and_locate(self) -> str:
        response = await self.script(f"{self._beginning()}; SELECT {LOCATION}")
        location = first_text(self.connection, response)
        assert location is not None, "concat_ws never returns NULL"
        self._watch.start()
        return location

    @property
    def is_idle(self) -> bool:
        return self.connection.pgconn.transaction_status == IDLE

    @property
    def is_lost(self) -> bool:
        return self.connection.closed

    @property
    def host(self) -> str:
        return self.connection.info.host

    @property
    def _cannot_roll_back(self) -> bool:
        return self.connection.closed or is_busy(self.connection) or self._watch.running > 0

    def _begin_statement(self) -> str:
        return begin_statement(self.connection)

    async def _send_rollback(self) -> None:
        rollback: Any = type(self.connection).rollback  # the watch is still in front of the connection's own
        await settled(rollback(self.connection))

    def _drop(self) -> None:
        drop(self.connection)

    # -- statements of our own, which the watch does not see ---------------------------------------------------------

    async def first_row(self, sql: str, values: Values) -> Sequence[str | None] | None:
        connection = self.connection
        return first_texts(connection, await self._answer(executed(connection, self.pin.sql(sql), values)))

    async def _execute(self, sql: str, parameters: Mapping[str, Any]) -> Any:
        """Execute a statement with a cursor free of the application's settings."""
        self._assert_ours()
        sql = self.pin.sql(sql)
        if self._cursor is None:
            self._cursor = cursor_of(self.connection)
        return await settled(self._cursor.execute(pyformat(sql) if parameters else sql, parameters or None))

    async def rows(self, sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        found: Sequence[Sequence[Any]] = await settled((await self._execute(sql, values)).fetchall())
        return found

    async def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        return int((await self._execute(sql, values)).rowcount)

    def script(self, sql: str) -> Coroutine[Any, Any, PGresult]:
        """Execute statements without parameters in one round trip, without a cursor. Return the last response."""
        return self._answer(answered(self.connection, sql))

    async def _answer(self, steps: PQGen[PGresult]) -> PGresult:
        if os.getpid() != self._process_id:
            self._assert_ours()
        connection: Any = self.connection
        if self._is_awaited:
            await connection.lock.acquire()  # `async with` would cost two more calls
            try:
                answer: PGresult = await connection.wait(steps)
            finally:
                connection.lock.release()
        else:
            with connection.lock:
                answer = connection.wait(steps)
        return answer


class PsycopgDatabase(PostgresDatabase[PsycopgTransaction]):
    errors = (psycopg.Error,)
    transaction_class = PsycopgTransaction

    async def _isolation_of(self, connection: AnyConnection) -> str | None:
        level = connection.isolation_level
        return None if level is None else isolation_name(level)
