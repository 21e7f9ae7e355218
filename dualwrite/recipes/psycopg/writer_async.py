"""The writer on psycopg for asyncio: `PsycopgDualWriter` with `async with` and `await`.

Cancellations end as `dualwrite.recipes.sqlalchemy.writer_async` says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, TypeAlias, Unpack, overload

import psycopg

from dualwrite.recipes.core.dual_write import Resolution
from dualwrite.recipes.core.waiting import TASKS
from dualwrite.recipes.pool.settings import ids_in
from dualwrite.recipes.pool.status import PoolStatus
from dualwrite.recipes.postgres.backend import OnDriver, PostgresBackend
from dualwrite.recipes.psycopg.backend import PsycopgDriver
from dualwrite.recipes.writer import TaskWriter
from dualwrite.settings import WriterPoolSettings, WriterSettings

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

__all__ = ["AsyncPsycopgDualTransaction", "AsyncPsycopgDualWriter", "PoolStatus", "Resolution"]

Source: TypeAlias = (
    "str | AsyncConnectionPool[Any] "
    "| Callable[[], psycopg.AsyncConnection[Any] | Awaitable[psycopg.AsyncConnection[Any]]]"
)
"""The sources of connections."""


class AsyncPsycopgDualTransaction(OnDriver[psycopg.AsyncConnection[Any]]):
    """One dual write, as yielded by `AsyncPsycopgDualWriter.transaction()`. `send` needs no await."""

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[Self]:
        """Begin a part that may fail by itself, as `PsycopgDualTransaction.savepoint`."""
        async with self.connection.transaction():
            yield self


class AsyncPsycopgDualWriter(TaskWriter[psycopg.AsyncConnection[Any], AsyncPsycopgDualTransaction]):
    """`PsycopgDualWriter` for coroutines: the same names, settings, rules and errors; methods that wait are coroutines.

    `database` is a conninfo, an AsyncConnectionPool, or a function that makes an AsyncConnection, awaited or not.

    With `transactional_id`, one dual write runs at a time; a second one, in any task, raises IllegalStateError. With
    `prefix` it is a pool, for any number of tasks; not usable in a forked child: make a new one there. Belongs to the
    loop in which it is first used.
    """

    backend: PostgresBackend[psycopg.AsyncConnection[Any], AsyncPsycopgDualTransaction]

    @overload
    def __init__(
        self,
        database: Source,
        *,
        transactional_id: str,
        prepare_threshold: int | None = None,
        **settings: Unpack[WriterSettings],
    ) -> None: ...

    @overload
    def __init__(
        self,
        database: Source,
        *,
        prefix: str,
        prepare_threshold: int | None = None,
        **settings: Unpack[WriterPoolSettings],
    ) -> None: ...

    def __init__(self, database: Source, *, prepare_threshold: int | None = None, **settings: Any) -> None:
        ids = ids_in(settings)
        backend = PostgresBackend[psycopg.AsyncConnection[Any], AsyncPsycopgDualTransaction](
            database,
            driver=PsycopgDriver(psycopg.AsyncConnection, prepare_threshold),
            handle=AsyncPsycopgDualTransaction,
            waiting=TASKS,
            settings=ids.writing,
            is_pool=ids.is_pool,
        )
        super().__init__(backend, ids)

    def transaction(
        self, connection: psycopg.AsyncConnection[Any] | None = None
    ) -> AbstractAsyncContextManager[AsyncPsycopgDualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        `connection` is a connection of the caller to the writer's database. The rules for it, and for records,
        savepoints and errors, are those of `PsycopgDualWriter.transaction`. A cancellation inside the block, for
        instance by `asyncio.timeout`, counts as an exception of the block; one that arrives while the block ends is
        raised, with a note about the outcome of the dual write.
        """
        return self.scope(connection)
