"""`AsyncPsycopgDualWriterPool`: dual writes by many tasks and processes at once, with psycopg's AsyncConnection.

    async with AsyncPsycopgDualWriterPool("dbname=shop", prefix="orders", bootstrap_servers=...) as pool:
        async with pool.transaction() as tx:  # in any task
            await tx.connection.execute("INSERT INTO orders VALUES (%s, %s)", (1, "lamp"))
            tx.send("orders", key=..., value=...)

The steps are those of `DualWriterPool`, in `dualwrite.recipes.pool.coordinator`; cancellation ends as it does in
`dualwrite.recipes.psycopg.writer_async`, and a slot that it leaves unfinished is resolved in the background.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psycopg

from dualwrite.recipes.core.awaited_kafka_participant import AwaitingKafkaSide
from dualwrite.recipes.core.buffer import DEFAULT_MAX_BUFFERED_BYTES
from dualwrite.recipes.core.coordinator import Resolution, roll_back_database
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.core.settings import Confirm
from dualwrite.recipes.core.shield import shield
from dualwrite.recipes.pool.runtime import TaskRuntime
from dualwrite.recipes.pool.settings import PoolSettings
from dualwrite.recipes.pool.status import PoolStatus
from dualwrite.recipes.psycopg.pool_base import PsycopgPoolBase
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualTransaction, TransactionScope, awaited_connection

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool

__all__ = ["AsyncPsycopgDualTransaction", "AsyncPsycopgDualWriterPool", "PoolStatus", "Resolution"]


class AsyncPsycopgDualWriterPool(PsycopgPoolBase):
    """`PsycopgDualWriterPool` for coroutines: the same names, settings, rules and errors; what waits is awaited.

    `database` is a conninfo, an AsyncConnectionPool, or a function that makes an AsyncConnection, awaited or not.

    Belongs to the loop in which it is first used. Not usable in a forked child: make a new one there.
    """

    def __init__(
        self,
        database: str
        | AsyncConnectionPool[Any]
        | Callable[[], psycopg.AsyncConnection[Any] | Awaitable[psycopg.AsyncConnection[Any]]],
        *,
        prefix: str,
        max_writers: int = 8,
        acquire_timeout_ms: int = 30_000,
        lease_ms: int = 15_000,
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
            runtime=TaskRuntime,
            settings=PoolSettings(
                prefix,
                max_writers=max_writers,
                acquire_timeout_ms=acquire_timeout_ms,
                lease_ms=lease_ms,
                lock_timeout_ms=lock_timeout_ms,
                resolve_timeout_ms=resolve_timeout_ms,
                confirm=confirm,
                pause=pause,
                producer_settings=producer_settings,
            ),
            max_buffered_bytes=max_buffered_bytes,
            create_table=create_table,
            schema=schema,
        )
        self._begin_life()

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

        As `AsyncPsycopgDualWriter.transaction`, in any task, and as `DualWriterPool.transaction`.
        """
        with self._writes.block() as block:
            async with TransactionScope(self._begin(block, awaited_connection(connection))) as tx:
                try:
                    yield tx
                except BaseException:
                    await roll_back_database(tx)
                    raise
                await self._writes.commit(block, tx)

    async def recover(self) -> list[Resolution]:
        """Complete what was left open under the ids of this prefix that no living process has; harmless at any time.

        As `DualWriterPool.recover`.
        """
        return await self._writes.recover()

    async def close(self, timeout_s: float = 30.0) -> None:
        """Let no block begin, wait `timeout_s` seconds at the most for those that run, and give all ids back.

        As `DualWriterPool.close`.
        """
        await self._close(timeout_s)
