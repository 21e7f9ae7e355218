"""`AsyncPsycopgDualWriter`: write PostgreSQL and Kafka in one decision, with psycopg's AsyncConnection.

    async with AsyncPsycopgDualWriter("dbname=shop", bootstrap_servers=..., transactional_id="orders-1") as writer:
        async with writer.transaction() as tx:
            await tx.connection.execute("INSERT INTO orders VALUES (%s, %s)", (1, "lamp"))
            tx.send("orders", key=..., value=...)

The steps, and what talks to the database, are those of `PsycopgDualWriter`, awaited.

Cancellation, at any await inside: before the database's COMMIT was sent, both sides are rolled back. After it was sent,
and not answered, the write is UNRESOLVED, and `resolve()` or the next use asks the row. After it was answered the write
is committed, and in doubt until the next use commits Kafka. CancelledError is raised in each case, with a note saying
which; and not before the connection is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psycopg

from dualwrite.errors import IllegalStateError
from dualwrite.recipes.core.awaited_kafka_participant import AwaitingKafkaSide
from dualwrite.recipes.core.buffer import DEFAULT_MAX_BUFFERED_BYTES, RecordBuffer
from dualwrite.recipes.core.coordinator import DualWrite, Resolution
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.core.settings import Confirm
from dualwrite.recipes.core.shield import shield
from dualwrite.recipes.psycopg.adapter import PsycopgTransaction
from dualwrite.recipes.psycopg.writer_base import PsycopgWriterBase

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

__all__ = ["AsyncPsycopgDualTransaction", "AsyncPsycopgDualWriter", "Resolution"]


class AsyncPsycopgDualTransaction(DualWrite):
    """One dual write; what `AsyncPsycopgDualWriter.transaction()` yields. Sending is a plain call: records are kept."""

    def __init__(self, transaction: PsycopgTransaction, records: RecordBuffer) -> None:
        super().__init__(transaction, records, shield)
        self._connection = transaction.connection

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        """The connection whose transaction is the decision. `connection.transaction()` inside is a savepoint."""
        assert isinstance(self._connection, psycopg.AsyncConnection)
        return self._connection

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[Self]:
        """A part that may fail by itself; as `PsycopgDualTransaction.savepoint`."""
        async with self.connection.transaction():
            yield self


def awaited_connection(connection: Any) -> psycopg.AsyncConnection[Any] | None:
    """One of the caller's, if any. Raises IllegalStateError for something else."""
    if connection is not None and not isinstance(connection, psycopg.AsyncConnection):
        raise IllegalStateError(
            f"this dual write runs on a psycopg.AsyncConnection, not on {connection!r}; nothing was written"
        )
    return connection


class TransactionScope:
    """A dual write that somebody else ends; what interrupts it hears how, and what it opened is given back."""

    __slots__ = ("_beginning", "_database", "_tx")

    def __init__(self, beginning: Awaitable[tuple[PsycopgTransaction, RecordBuffer]]) -> None:
        self._beginning = beginning

    async def __aenter__(self) -> AsyncPsycopgDualTransaction:
        self._database, records = await self._beginning
        self._tx = AsyncPsycopgDualTransaction(self._database, records)
        return self._tx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._tx._records.close()
            if not self._database.close_at_once():
                await shield(self._database.close())
        except BaseException as failed:
            self._tx.tell(failed)
            raise
        if error is not None:
            self._tx.tell(error)


class AsyncPsycopgDualWriter(PsycopgWriterBase):
    """`PsycopgDualWriter` for coroutines: the same names, settings, rules and errors; what waits is awaited.

    `database` is a conninfo, an AsyncConnectionPool, or a function that makes an AsyncConnection, awaited or not.

    One dual write at a time, whatever the task; another one meanwhile raises IllegalStateError. Belongs to the loop in
    which it is first used. How a cancellation ends, anywhere: see the module.
    """

    def __init__(
        self,
        database: str
        | AsyncConnectionPool[Any]
        | Callable[[], psycopg.AsyncConnection[Any] | Awaitable[psycopg.AsyncConnection[Any]]],
        *,
        transactional_id: str,
        lock_timeout_ms: int | None = 60_000,
        resolve_timeout_ms: int = 30_000,
        max_buffered_bytes: int = DEFAULT_MAX_BUFFERED_BYTES,
        create_table: bool = True,
        schema: str | None = None,
        confirm: Confirm = "kafka",
        pause: PauseHook | None = None,
        **producer_settings: Any,
    ) -> None:
        super().__init__(
            database,
            connect=psycopg.AsyncConnection.connect,
            kafka_side=AwaitingKafkaSide,
            sleep=asyncio.sleep,
            uninterrupted=shield,
            transactional_id=transactional_id,
            lock_timeout_ms=lock_timeout_ms,
            resolve_timeout_ms=resolve_timeout_ms,
            max_buffered_bytes=max_buffered_bytes,
            create_table=create_table,
            schema=schema,
            confirm=confirm,
            pause=pause,
            producer_settings=producer_settings,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def transaction(
        self, connection: psycopg.AsyncConnection[Any] | None = None
    ) -> AsyncIterator[AsyncPsycopgDualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        `connection` is one of the caller's, to the writer's database. What holds of it, of records, savepoints and
        errors is what `PsycopgDualWriter.transaction` says. A cancellation, by `asyncio.timeout` for instance, is an
        exception of the block; one that comes while the block ends is raised, with a note that tells what became of
        the dual write.
        """
        with self._writes.exclusively():
            await self._writes.get_ready()
            async with TransactionScope(self._begin(awaited_connection(connection))) as tx:
                try:
                    yield tx
                except BaseException:
                    await self._writes.roll_back(tx)
                    raise
                await self._writes.commit(tx)

    async def recover(self) -> Resolution:
        """Complete what a crash left open under this transactional id, by the row; harmless at any time.

        As `PsycopgDualWriter.recover`. When it is cancelled, nothing is lost: the next one does what is left.
        """
        with self._writes.exclusively():
            return await self._writes.recover()

    async def resolve(self) -> Resolution:
        """Find out what became of a commit that raised OutcomeUnknown, or that was cancelled, and let Kafka follow.

        As `PsycopgDualWriter.resolve`.
        """
        return await self.recover()

    async def close(self) -> None:
        """Give up the transactional id. What is in doubt stays so, safely, until the id is next used or recovered."""
        await self._close()
