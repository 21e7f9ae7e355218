"""The guard of an asyncpg connection during a dual write: refuses to end the transaction, and tracks savepoints.

It puts an object in front of the connection's protocol, for the duration of the block. Every statement passes through
it, from every sender: the connection, a pool's proxy of it, a prepared statement, a cursor, or a
`connection.transaction()`, which is a savepoint inside a dual write and says so in SQL. If the server ends the
transaction by other means, the message that commits detects that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncpg

from dualwrite.errors import IllegalStateError
from dualwrite.recipes.asyncpg import driver
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.database_errors import closed_inside, inside_another
from dualwrite.recipes.core.store import ended_past
from dualwrite.recipes.postgres.statement_watch import ENDED, NESTED, UNFINISHED, StatementWatch
from dualwrite.recipes.sql.transaction_control import Savepoint, Step


def assert_can_begin(raw: Any) -> None:
    """Raise IllegalStateError if COMMIT on this connection is not ours to send."""
    substitute = driver.substitute_of(raw)
    if substitute is not None:
        if not isinstance(substitute, WatchedProtocol) or not substitute.watch.is_retired:
            raise inside_another()
        substitute.watch.stop()
    if driver.is_in_transaction_block(raw):
        raise IllegalStateError(NESTED)


class Watch(StatementWatch):
    refusals = (asyncpg.PostgresError, asyncpg.InterfaceError)

    def __init__(self, raw: Any, records: RecordBuffer) -> None:
        self._records = records
        self._raw = raw
        self._substitute: driver.Substitute | None = None
        self._block: Any = None

    def start(self) -> None:
        self._substitute = WatchedProtocol(driver.protocol_of(self._raw), self)
        driver.put_in_front(self._raw, self._substitute)
        self._block = driver.open_block(self._raw)

    def stop(self) -> None:
        if self._substitute is not None:
            driver.take_away(self._raw, self._substitute)
            driver.close_block(self._raw, self._block)
            self._substitute = None

    def assert_intact(self) -> None:
        self.assert_nothing_refused()
        if self._raw.is_closed():
            raise closed_inside()
        savepoints = self._records.savepoints
        if self.running > 0 or (savepoints and any(_is_of_a_block(savepoint) for savepoint in savepoints)):
            raise IllegalStateError(UNFINISHED)
        if not self._raw.is_in_transaction():
            raise ended_past(ENDED)

    # -- statements ----------------------------------------------------------------------------------------------

    def after(self, savepoint: Savepoint) -> None:
        super().after(savepoint)
        if savepoint.step is Step.ROLL_BACK_TO and _is_of_a_block(savepoint):
            # the `connection.transaction()` is over, although its savepoint, which has no records now, remains set
            self._records.release_savepoint(savepoint.name)


def _is_of_a_block(savepoint: Any) -> bool:
    name: str = savepoint.name
    return name.startswith(driver.SAVEPOINT_PREFIX)


class WatchedProtocol(driver.Substitute):
    """Reports the statements of a connection to the watch of its dual write."""

    __slots__ = ("watch",)

    def __init__(self, genuine: Any, watch: Watch) -> None:
        super().__init__(genuine)
        self.watch: Final = watch

    async def query(self, query: str, *arguments: Any, **keywords: Any) -> Any:
        return await self._watched(self.watch.before(query), self.genuine.query, query, *arguments, **keywords)

    async def bind_execute(self, state: Any, *arguments: Any, **keywords: Any) -> Any:
        savepoint = self.watch.before(state.query)
        return await self._watched(savepoint, self.genuine.bind_execute, state, *arguments, **keywords)

    async def bind_execute_many(self, state: Any, *arguments: Any, **keywords: Any) -> Any:
        return await self._other(state.query, self.genuine.bind_execute_many, state, *arguments, **keywords)

    async def bind(self, state: Any, *arguments: Any, **keywords: Any) -> Any:
        return await self._other(state.query, self.genuine.bind, state, *arguments, **keywords)

    async def execute(self, state: Any, *arguments: Any, **keywords: Any) -> Any:
        return await self._other(state.query, self.genuine.execute, state, *arguments, **keywords)

    async def copy_out(self, copy_stmt: str, *arguments: Any, **keywords: Any) -> Any:
        return await self._other(copy_stmt, self.genuine.copy_out, copy_stmt, *arguments, **keywords)

    async def copy_in(self, copy_stmt: str, *arguments: Any, **keywords: Any) -> Any:
        return await self._other(copy_stmt, self.genuine.copy_in, copy_stmt, *arguments, **keywords)

    async def prepare(self, stmt_name: str, query: str, *arguments: Any, **keywords: Any) -> Any:
        # The statement is checked when it is executed. But if the server refuses it here, the transaction has failed
        # too.
        self.watch.assert_open()
        return await self._watched(None, self.genuine.prepare, stmt_name, query, *arguments, **keywords)

    async def _other(self, text: str, send: Callable[..., Awaitable[Any]], *arguments: Any, **keywords: Any) -> Any:
        self.watch.before_other(text)
        return await self._watched(None, send, *arguments, **keywords)

    async def _watched(
        self, savepoint: Savepoint | None, send: Callable[..., Awaitable[Any]], *arguments: Any, **keywords: Any
    ) -> Any:
        watch = self.watch
        watch.running += 1
        try:
            answer = await send(*arguments, **keywords)
            if savepoint is not None:
                watch.after(savepoint)
        except BaseException as error:
            watch.failed(error, savepoint)
            raise
        finally:
            watch.running -= 1
        return answer
