"""`AsyncDualWriterPool`: dual writes by many tasks and processes at once, each under a transactional id of its own.

    async with AsyncDualWriterPool(engine, prefix="orders", bootstrap_servers="127.0.0.1:9092") as pool:
        async with pool.transaction() as tx:  # in any task
            tx.session.add(Order(...))
            tx.send("orders", key=..., value=...)

The steps are those of `DualWriterPool`, in `dualwrite.recipes.pool.coordinator`; cancellation ends as it does in
`dualwrite.recipes.sqlalchemy.writer_async`, and a slot that it leaves unfinished is resolved in the background.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.util import await_only

from dualwrite.recipes.core.awaited_kafka_participant import AwaitingKafkaSide
from dualwrite.recipes.core.buffer import DEFAULT_MAX_BUFFERED_BYTES, RecordBuffer
from dualwrite.recipes.core.coordinator import DualWrite, Resolution, roll_back_database
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.core.settings import Confirm, check_engine
from dualwrite.recipes.core.shield import shield
from dualwrite.recipes.pool.coordinator import PoolCoordinator
from dualwrite.recipes.pool.isolation import keeps_a_snapshot, locks_whole_database
from dualwrite.recipes.pool.runtime import TaskRuntime
from dualwrite.recipes.pool.settings import PoolSettings
from dualwrite.recipes.pool.status import PoolStatus
from dualwrite.recipes.sqlalchemy.adapter import SqlAlchemyDatabase
from dualwrite.recipes.sqlalchemy.background_engine import FirstConnection, background_engine
from dualwrite.recipes.sqlalchemy.lease_table import SqlAlchemyLeases
from dualwrite.recipes.sqlalchemy.transaction import watch
from dualwrite.recipes.sqlalchemy.writer_async import AsyncBind, AsyncBlocks, AsyncDualTransaction, in_a_greenlet
from dualwrite.recipes.transactional.transactional_async import AsyncTransactional

__all__ = ["AsyncDualTransaction", "AsyncDualWriterPool", "PoolStatus", "Resolution"]

ResultT = TypeVar("ResultT")


class AsyncDualWriterPool:
    """`DualWriterPool` for coroutines: the same names, settings, rules and errors; what waits is awaited.

    Belongs to the loop in which it is first used. Not usable in a forked child: make a new one there.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        prefix: str,
        max_writers: int = 8,
        acquire_timeout_ms: int = 30_000,
        lease_ms: int = 15_000,
        session_factory: Callable[[], AsyncSession] | None = None,
        lock_timeout_ms: int | None = 60_000,
        resolve_timeout_ms: int = 30_000,
        max_buffered_bytes: int = DEFAULT_MAX_BUFFERED_BYTES,
        create_table: bool = True,
        schema: str | None = None,
        confirm: Confirm = "kafka",
        pause: PauseHook | None = None,
        **producer_settings: Any,
    ) -> None:
        check_engine(engine, AsyncEngine, "create_async_engine")
        settings = PoolSettings(
            prefix,
            max_writers=max_writers,
            acquire_timeout_ms=acquire_timeout_ms,
            lease_ms=lease_ms,
            lock_timeout_ms=lock_timeout_ms,
            resolve_timeout_ms=resolve_timeout_ms,
            confirm=confirm,
            pause=pause,
            producer_settings=producer_settings,
        )
        self._producer_settings = producer_settings
        self._prefix = settings.prefix
        self._engine = engine.sync_engine
        self._background_engine = background_engine(self._engine)
        self._first_connection = FirstConnection(self._engine)
        watch(self._engine)
        watch(self._background_engine)
        self._database = SqlAlchemyDatabase(
            self._background_engine, create_table=create_table, schema=schema, carry=in_a_greenlet
        )
        self._blocks = AsyncBlocks(
            engine,
            database=self._database,
            session_factory=session_factory,
            max_buffered_bytes=max_buffered_bytes,
            serializers=settings.serializers,
        )
        leases = SqlAlchemyLeases(
            self._background_engine,
            prefix=prefix,
            owner=settings.new_owner(),
            lease_ms=lease_ms,
            create_table=create_table,
            schema=schema,
            carry=in_a_greenlet,
        )
        self._writes = PoolCoordinator(
            settings,
            leases=leases,
            new_writes=settings.writes_maker(
                database=self._database, new_kafka=AwaitingKafkaSide, sleep=asyncio.sleep, uninterrupted=shield
            ),
            runtime=TaskRuntime(),
            leases_inside_blocks=not locks_whole_database(self._engine.dialect),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def prefix(self) -> str:
        """What the transactional ids of this pool begin with; a dash and a number follow."""
        return self._prefix

    @property
    def status(self) -> PoolStatus:
        """What goes on now, and the sums since the pool was made. Cheap."""
        return self._writes.status()

    @asynccontextmanager
    async def transaction(self, bind: AsyncBind | None = None) -> AsyncIterator[AsyncDualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        As `AsyncDualWriter.transaction`, in any task, and as `DualWriterPool.transaction`.
        """
        await in_a_greenlet(self._first_connection.make)
        with self._writes.block() as block:
            if locks_whole_database(self._engine.dialect):
                await self._writes.take_slot(block)
            async with self._blocks.begun(bind) as tx:
                try:
                    connection = tx.connection.sync_connection
                    if connection is not None and keeps_a_snapshot(connection):
                        await self._writes.take_slot(block)
                    yield tx
                except BaseException:
                    await roll_back_database(tx)
                    raise
                await self._writes.commit(block, tx)

    # -- the dual writes of sessions that are committed elsewhere (sessions.py) ---------------------------------

    _leases_at_commit = True
    _uninterrupted = staticmethod(shield)

    def _carry_out(self, steps: Coroutine[Any, Any, ResultT]) -> ResultT:
        return await_only(steps)

    async def _ready_for_sessions(self) -> None:
        """The Session has a connection already, so the first one was made."""

    def _new_buffer(self) -> RecordBuffer:
        return self._blocks.new_buffer()

    async def _commit_of_session(self, write: DualWrite) -> None:
        with self._writes.block() as block:
            await self._writes.commit(block, write)

    @property
    def transactional(self) -> AsyncTransactional:
        """Decorates a coroutine function whose call is a dual write: `@pool.transactional`, or with settings."""
        return AsyncTransactional(self)

    async def recover(self) -> list[Resolution]:
        """Complete what was left open under the ids of this prefix that no living process has; harmless at any time.

        As `DualWriterPool.recover`.
        """
        await in_a_greenlet(self._first_connection.make)
        return await self._writes.recover()

    async def close(self, timeout_s: float = 30.0) -> None:
        """Let no block begin, wait `timeout_s` seconds at the most for those that run, and give all ids back.

        As `DualWriterPool.close`.
        """
        await self._writes.close(timeout_s)
        if self._background_engine is not self._engine:
            await in_a_greenlet(self._background_engine.dispose)
