"""The writers on asyncpg, with one transactional id and with a pool of them; SQLAlchemy is not needed.

    async with AsyncpgDualWriter("postgresql:///shop", bootstrap_servers=..., transactional_id="orders-1") as writer:
        async with writer.transaction() as tx:
            await tx.connection.execute("INSERT INTO orders VALUES ($1, $2)", 1, "lamp")
            tx.send("orders", key=..., value=...)

    async with AsyncpgDualWriterPool(await asyncpg.create_pool(...), prefix="orders", bootstrap_servers=...) as pool:
        async with pool.transaction() as tx:  # in any task
            ...

What happens when the block ends, and why it is safe: `dualwrite.recipes.core.coordinator`. Tables, statements, ids and
leases are those of the other writers on PostgreSQL, so that writers of several kinds may use one transactional id, one
after the other, and pools of several kinds may share a prefix.

Cancellation at any await inside a block: before the database's COMMIT is sent, both sides are rolled back. If COMMIT
was sent but its response did not arrive, the dual write is UNRESOLVED, and `resolve()` or the next use reads the row; a
pool does so in the background. After the response the dual write is committed, and in doubt until the next use commits
Kafka's transaction. Each case raises CancelledError with a note about the outcome, after the connection was returned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Self, Unpack

import asyncpg

from dualwrite.recipes.asyncpg.backend import AsyncpgDriver
from dualwrite.recipes.asyncpg.transaction import AsyncpgTransaction
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.dual_write import DualWrite, Resolution
from dualwrite.recipes.core.waiting import TASKS, shield
from dualwrite.recipes.pool.settings import PoolSettings
from dualwrite.recipes.pool.status import PoolStatus
from dualwrite.recipes.postgres.backend import PostgresOneIdBackend, PostgresPoolBackend
from dualwrite.recipes.writer import AsyncOneIdWriter, AsyncPooledWriter, OneId
from dualwrite.settings import WriterPoolSettings, WriterSettings

__all__ = [
    "AsyncpgDualTransaction",
    "AsyncpgDualWriter",
    "AsyncpgDualWriterPool",
    "PoolStatus",
    "Resolution",
]


class AsyncpgDualTransaction(DualWrite):
    """One dual write; what `transaction()` of the writers here yields. Sending is a plain call: records are kept."""

    def __init__(self, transaction: AsyncpgTransaction, records: RecordBuffer) -> None:
        super().__init__(transaction, records, shield)
        self._connection = transaction.connection

    @property
    def connection(self) -> asyncpg.Connection:
        """The connection whose transaction is the decision, or what its pool handed out for it.

        `connection.transaction()` inside is a savepoint.
        """
        connection: asyncpg.Connection = self._connection
        return connection

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[Self]:
        """Begin a part that may fail by itself: an exception undoes what was written and sent inside, and is raised.

        Code that catches it outside goes on with the rest of the dual write. May be nested.
        """
        async with self.connection.transaction():
            yield self


class AsyncpgDualWriter(AsyncOneIdWriter[asyncpg.Connection, AsyncpgDualTransaction]):
    """Atomic writes to one PostgreSQL and to Kafka, one at a time, under one transactional id.

    `database` is the database that decides and that has the table `kafka_transaction_state` (created when missing
    unless `create_table=False`): a DSN, of which one connection is opened and kept, without prepared statements; an
    `asyncpg.Pool`, which the caller closes; or a function that makes a connection, awaited or not, which is closed
    after use. `lock_timeout_ms` also limits the wait for a connection of an exhausted pool (`PoolTimeoutError`). The
    other settings are those of `AsyncPsycopgDualWriter`.

    One dual write at a time, whatever the task; another one meanwhile raises IllegalStateError. Belongs to the loop in
    which it is first used. How a cancellation ends, anywhere: see the module.
    """

    def __init__(
        self,
        database: str | asyncpg.Pool | Callable[[], asyncpg.Connection | Awaitable[asyncpg.Connection]],
        *,
        transactional_id: str,
        **settings: Unpack[WriterSettings],
    ) -> None:
        one_id = OneId(transactional_id, settings)
        backend = PostgresOneIdBackend[asyncpg.Connection, AsyncpgDualTransaction](
            database,
            driver=AsyncpgDriver(wait_ms=one_id.writing.lock_timeout_ms),
            handle=AsyncpgDualTransaction,
            waiting=TASKS,
            **one_id.writing.tables,
        )
        super().__init__(backend, one_id)

    def transaction(
        self, connection: asyncpg.Connection | None = None
    ) -> AbstractAsyncContextManager[AsyncpgDualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        `connection` is a connection of the caller to the writer's database, or what a pool handed out for one; its
        whole transaction is committed or rolled back with the block, including its earlier statements. It may be in a
        transaction that BEGIN has begun, but not inside a `connection.transaction()`, which would end it. Without it
        the writer uses one of its own connections.

        Records are kept until the block ends, and sent right before the database commits. Those that were sent inside
        a savepoint (`connection.transaction()`, or a SAVEPOINT statement) that is rolled back are dropped with it. A
        record that is refused at `send` dooms the block like a failed statement, even if its error is swallowed.

        Raises what the block raises; IllegalStateError for a connection whose COMMIT is not ours to send; RecipeErrors,
        InvalidRecordError, AbortableError, FencedError, KafkaTimeoutError and asyncpg's own errors, after which neither
        side was changed; OutcomeUnknown if the database commit was sent and its outcome cannot be read. A cancellation
        inside the block, for instance by `asyncio.timeout`, counts as an exception of the block; one that arrives while
        the block ends is raised, with a note about the outcome of the dual write.
        """
        return self.scope(connection)


class AsyncpgDualWriterPool(AsyncPooledWriter[asyncpg.Connection, AsyncpgDualTransaction]):
    """Atomic writes to one PostgreSQL and to Kafka by up to `max_writers` tasks of this process at a time.

    `database` is where blocks get their connections: a DSN, of which up to `max_writers` connections are kept; an
    `asyncpg.Pool`, which the caller closes; or a function that makes a connection, which is closed after use. The
    background uses separate connections to the same database, which do not count towards a pool. `acquire_timeout_ms`
    also limits the wait for a connection of an exhausted pool. Prefix, leases and the other settings are those of
    `AsyncPsycopgDualWriterPool`.

    Belongs to the loop in which it is first used. Not usable in a forked child: make a new one there.
    """

    backend: PostgresPoolBackend[asyncpg.Connection, AsyncpgDualTransaction]

    def __init__(
        self,
        database: str | asyncpg.Pool | Callable[[], asyncpg.Connection | Awaitable[asyncpg.Connection]],
        *,
        prefix: str,
        **settings: Unpack[WriterPoolSettings],
    ) -> None:
        pool = PoolSettings(prefix, settings)
        backend = PostgresPoolBackend[asyncpg.Connection, AsyncpgDualTransaction](
            database,
            driver=AsyncpgDriver(wait_ms=pool.acquire_timeout_ms),
            handle=AsyncpgDualTransaction,
            waiting=TASKS,
            max_writers=pool.max_writers,
            **pool.writing.tables,
        )
        super().__init__(backend, pool)

    def transaction(
        self, connection: asyncpg.Connection | None = None
    ) -> AbstractAsyncContextManager[AsyncpgDualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        As `AsyncpgDualWriter.transaction`, in any task, and as `DualWriterPool.transaction`.
        """
        return self.scope(connection)
