"""The writer on asyncpg, with one transactional id or a pool of them; SQLAlchemy is not needed.

    async with AsyncpgDualWriter("postgresql:///shop", bootstrap_servers=..., transactional_id="orders-1") as writer:
        async with writer.transaction() as tx:
            await tx.connection.execute("INSERT INTO orders VALUES ($1, $2)", 1, "lamp")
            tx.send("orders", key=..., value=...)

    async with AsyncpgDualWriter(await asyncpg.create_pool(...), prefix="orders", bootstrap_servers=...) as pool:
        async with pool.transaction() as tx:  # in any task
            ...

How a block ends, and why that is safe: `dualwrite.recipes.core.coordinator`. Tables, statements, ids and leases are
those of the other writers on PostgreSQL. So writers of several kinds may use one transactional id, one after the other,
and pools of several kinds may share a prefix. Cancellations end as `dualwrite.recipes.sqlalchemy.writer_async` says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self, TypeAlias, Unpack, overload

import asyncpg

from dualwrite.recipes.asyncpg.backend import AsyncpgDriver
from dualwrite.recipes.core.dual_write import Resolution
from dualwrite.recipes.core.waiting import TASKS
from dualwrite.recipes.pool.settings import PoolSettings, ids_in
from dualwrite.recipes.pool.status import PoolStatus
from dualwrite.recipes.postgres.backend import OnDriver, PostgresBackend
from dualwrite.recipes.writer import TaskWriter
from dualwrite.settings import WriterPoolSettings, WriterSettings

__all__ = ["AsyncpgDualTransaction", "AsyncpgDualWriter", "PoolStatus", "Resolution"]

Source: TypeAlias = str | asyncpg.Pool | Callable[[], asyncpg.Connection | Awaitable[asyncpg.Connection]]
"""The sources of connections."""


class AsyncpgDualTransaction(OnDriver[asyncpg.Connection]):
    """One dual write, as yielded by `AsyncpgDualWriter.transaction()`. `send` needs no await."""

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[Self]:
        """Begin a part that may fail by itself, as `PsycopgDualTransaction.savepoint`."""
        async with self.connection.transaction():
            yield self


class AsyncpgDualWriter(TaskWriter[asyncpg.Connection, AsyncpgDualTransaction]):
    """`AsyncPsycopgDualWriter` on asyncpg: the same settings, tables, rules and errors, one transactional id or a pool.

    `database` is the database that decides: a DSN, of which one connection (for a pool up to `max_writers`) is opened
    and kept, without prepared statements; an `asyncpg.Pool`, which the caller closes; or a function that makes a
    connection, awaited or not, which is closed after use. The background of a pool uses separate connections to the
    same database, which do not count towards an `asyncpg.Pool`. `lock_timeout_ms`, or `acquire_timeout_ms` of a pool,
    also limits the wait for a connection of an exhausted `asyncpg.Pool` (`PoolTimeoutError`).
    """

    backend: PostgresBackend[asyncpg.Connection, AsyncpgDualTransaction]

    @overload
    def __init__(self, database: Source, *, transactional_id: str, **settings: Unpack[WriterSettings]) -> None: ...

    @overload
    def __init__(self, database: Source, *, prefix: str, **settings: Unpack[WriterPoolSettings]) -> None: ...

    def __init__(self, database: Source, **settings: Any) -> None:
        ids = ids_in(settings)
        wait_ms = ids.acquire_timeout_ms if isinstance(ids, PoolSettings) else ids.writing.lock_timeout_ms
        backend = PostgresBackend[asyncpg.Connection, AsyncpgDualTransaction](
            database,
            driver=AsyncpgDriver(wait_ms=wait_ms),
            handle=AsyncpgDualTransaction,
            waiting=TASKS,
            settings=ids.writing,
            is_pool=ids.is_pool,
        )
        super().__init__(backend, ids)

    def transaction(
        self, connection: asyncpg.Connection | None = None
    ) -> AbstractAsyncContextManager[AsyncpgDualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        `connection` is a connection of the caller to the writer's database, or a pool's proxy of one; its whole
        transaction is committed or rolled back with the block, including its earlier statements. It may be in a
        transaction begun by BEGIN, but not inside a `connection.transaction()`, which would end it. Without it the
        writer uses one of its own connections.

        The rules for records, savepoints, errors and pools are those of `PsycopgDualWriter.transaction`, with asyncpg's
        own errors. A cancellation inside the block, for instance by `asyncio.timeout`, counts as an exception of the
        block; one that arrives while the block ends is raised, with a note about the outcome of the dual write.
        """
        return self.scope(connection)
