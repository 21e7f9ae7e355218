"""`AsyncDualWriter`: write a database and Kafka in one decision, with SQLAlchemy's AsyncEngine.

    async with AsyncDualWriter(engine, bootstrap_servers="127.0.0.1:9092", transactional_id="orders-1") as writer:
        async with writer.transaction() as tx:
            tx.session.add(Order(...))
            tx.send("orders", key=..., value=...)

The steps, and why they are safe, are those of `DualWriter`: `dualwrite.recipes.core.coordinator`. What talks to the
database is the same code too, carried out in SQLAlchemy's greenlets.

Cancellation, at any await inside: before the database's COMMIT was sent, both sides are rolled back. After it was sent,
and not answered, the write is UNRESOLVED, and `resolve()` or the next use asks the row. After it was answered the write
is committed, and in doubt until the next use commits Kafka. CancelledError is raised in each case, with a note saying
which; and not before the connection is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only, greenlet_spawn

from dualwrite.client.records.validation import Serializers
from dualwrite.errors import IllegalStateError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.awaited_kafka_participant import AwaitingKafkaSide
from dualwrite.recipes.core.awaited_turns import AwaitedTurns
from dualwrite.recipes.core.buffer import DEFAULT_MAX_BUFFERED_BYTES, RecordBuffer
from dualwrite.recipes.core.coordinator import DualWrite, DualWriteCoordinator, Resolution
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.core.settings import Confirm, KafkaSettings, check_engine, follows_later
from dualwrite.recipes.core.shield import shield
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sqlalchemy.adapter import SqlAlchemyDatabase
from dualwrite.recipes.sqlalchemy.transaction import SqlAlchemyTransaction, watch
from dualwrite.recipes.transactional.transactional_async import AsyncTransactional, TaskBlocks

__all__ = ["AsyncDualTransaction", "AsyncDualWriter", "Resolution"]

ResultT = TypeVar("ResultT")

AsyncBind = AsyncSession | async_scoped_session[AsyncSession] | AsyncConnection


def in_a_greenlet(function: Callable[[], ResultT]) -> Awaitable[ResultT]:
    """Carry out a function that talks to the database as if it blocked; the loop goes on meanwhile."""
    return greenlet_spawn(function)


def _connectable(bind: AsyncBind) -> AsyncSession | AsyncConnection:
    bound = bind() if isinstance(bind, async_scoped_session) else bind
    if not isinstance(bound, AsyncSession | AsyncConnection):
        raise IllegalStateError(
            f"a dual write runs on an AsyncSession or an AsyncConnection, not on {bind!r}; nothing was written"
        )
    return bound


def _of_the_greenlets(bound: AsyncSession | AsyncConnection) -> Session | sa.Connection:
    """What the awaited one stands for."""
    if isinstance(bound, AsyncSession):
        return bound.sync_session
    if bound.sync_connection is None:
        raise IllegalStateError(
            "this AsyncConnection is not started, so nothing was written: use it in `async with engine.connect()`"
        )
    return bound.sync_connection


class AsyncDualTransaction(DualWrite):
    """One dual write; what `AsyncDualWriter.transaction()` yields. Sending is a plain call: records are kept."""

    def __init__(
        self,
        work: SqlAlchemyTransaction,
        database: SqlAlchemyDatabase,
        records: RecordBuffer,
        *,
        session: AsyncSession | None,
        connection: AsyncConnection,
    ) -> None:
        super().__init__(database.transaction(work), records, shield)
        work.write = self
        self._session = session
        self._connection = connection

    @property
    def session(self) -> AsyncSession:
        """The AsyncSession of this dual write. Raises IllegalStateError where it runs on a bare AsyncConnection."""
        if self._session is None:
            raise IllegalStateError("this dual write runs on an AsyncConnection; use tx.connection")
        return self._session

    @property
    def connection(self) -> AsyncConnection:
        """The connection whose transaction is the decision; within `session.begin_nested()` it is in the savepoint."""
        return self._connection

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[Self]:
        """A part that may fail by itself; as `DualTransaction.savepoint`."""
        async with (self._session or self._connection).begin_nested():
            yield self


class AsyncBlocks:
    """Begins dual writes on an AsyncEngine, and gives back what they opened; how they end is for somebody else."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        database: SqlAlchemyDatabase,
        session_factory: Callable[[], AsyncSession] | None,
        max_buffered_bytes: int,
        serializers: Serializers,
    ) -> None:
        self._engine = engine
        self._database = database
        self._session_factory = session_factory or (lambda: AsyncSession(engine, expire_on_commit=False))
        self._max_buffered_bytes = max_buffered_bytes
        self._serializers = serializers
        self._open = TaskBlocks()

    @property
    def current(self) -> AsyncDualTransaction | None:
        """The dual write whose block this task is in, the innermost."""
        return self._open.current

    @asynccontextmanager
    async def begun(self, bind: AsyncBind | None) -> AsyncIterator[AsyncDualTransaction]:
        """A dual write that somebody else ends; what interrupts it hears how, and what it opened is given back."""
        tx = await self._begin(bind)
        try:
            try:
                with self._open.inside(tx):
                    yield tx
            finally:
                tx._records.close()
                await shield(tx._database.close())
        except BaseException as error:
            tx.tell(error)
            raise

    def new_buffer(self) -> RecordBuffer:
        """For the records of one dual write."""
        return RecordBuffer(self._max_buffered_bytes, self._serializers)

    async def _begin(self, bind: AsyncBind | None) -> AsyncDualTransaction:
        bound = _connectable(self._session_factory() if bind is None else bind)
        awaited = _of_the_greenlets(bound)
        records = self.new_buffer()
        try:
            session = bound if isinstance(bound, AsyncSession) else None
            connection = bound if isinstance(bound, AsyncConnection) else await bound.connection()
            engine, owned = self._engine.sync_engine, bind is None
            work = await in_a_greenlet(lambda: SqlAlchemyTransaction(awaited, engine, records, owned=owned))
        except BaseException:
            if bind is None:
                await shield(bound.close())
            raise
        return AsyncDualTransaction(work, self._database, records, session=session, connection=connection)


class AsyncDualWriter:
    """`DualWriter` for coroutines: the same names, settings, rules and errors; what waits is awaited.

    `engine` is an AsyncEngine (tested with psycopg, asyncpg and aiosqlite), and `session_factory` makes AsyncSessions,
    an `async_sessionmaker` for instance. Without one the objects of a Session stay readable after the block
    (`expire_on_commit=False`).

    One dual write at a time, whatever the task; another one meanwhile raises IllegalStateError. Belongs to the loop in
    which it is first used. How a cancellation ends, anywhere: see the module.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        transactional_id: str,
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
        watch(engine.sync_engine)
        settings = KafkaSettings(transactional_id, producer_settings)
        self._engine = engine.sync_engine
        self._producer_settings = settings.producer
        self._database = SqlAlchemyDatabase(
            engine.sync_engine, create_table=create_table, schema=schema, carry=in_a_greenlet
        )
        self._blocks = AsyncBlocks(
            engine,
            database=self._database,
            session_factory=session_factory,
            max_buffered_bytes=max_buffered_bytes,
            serializers=settings.serializers,
        )
        self._writes = DualWriteCoordinator(
            settings.transactional_id,
            database=self._database,
            kafka=AwaitingKafkaSide(settings.producer),
            sleep=asyncio.sleep,
            lock_timeout_ms=lock_timeout_ms,
            resolve_timeout_ms=resolve_timeout_ms,
            kafka_follows_later=follows_later(confirm),
            pause=pause,
            uninterrupted=shield,
        )
        self._turns = AwaitedTurns(self._writes, lock_timeout_ms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def transactional_id(self) -> str:
        """The name that this writer was given, by which the database knows its row."""
        return self._writes.transactional_id

    @property
    def kafka_transactional_id(self) -> str | None:
        """What Kafka sees of it: with the suffix of the database. None before the first use, which asks for that."""
        return self._writes.kafka_transactional_id

    @property
    def state(self) -> SlotState:
        """What this writer knows about its transactional id."""
        return self._writes.state

    @property
    def in_doubt(self) -> PreparedTxnState:
        """The dual write that the database committed and whose Kafka commit is not confirmed yet; else empty.

        As `DualWriter.in_doubt`.
        """
        return self._writes.in_doubt

    @asynccontextmanager
    async def transaction(self, bind: AsyncBind | None = None) -> AsyncIterator[AsyncDualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        `bind` is an AsyncSession or a started AsyncConnection of the caller's, on the writer's engine. What holds of
        it, of records, savepoints and errors is what `DualWriter.transaction` says. A cancellation, by
        `asyncio.timeout` for instance, is an exception of the block; one that comes while the block ends is raised,
        with a note that tells what became of the dual write.
        """
        with self._turns.exclusively():
            await self._writes.get_ready()
            async with self._blocks.begun(bind) as tx:
                try:
                    yield tx
                except BaseException:
                    await self._writes.roll_back(tx)
                    raise
                await self._writes.commit(tx)

    # -- the dual writes of sessions that are committed elsewhere (sessions.py) ---------------------------------

    _leases_at_commit = False
    _uninterrupted = staticmethod(shield)

    def _carry_out(self, steps: Coroutine[Any, Any, ResultT]) -> ResultT:
        return await_only(steps)

    async def _ready_for_sessions(self) -> None:
        await self._writes.ensure_row()

    def _new_buffer(self) -> RecordBuffer:
        return self._blocks.new_buffer()

    async def _commit_of_session(self, write: DualWrite) -> None:
        async with self._turns.in_turn():
            await self._writes.commit(write)

    @property
    def transactional(self) -> AsyncTransactional:
        """Decorates a coroutine function whose call is a dual write: `@writer.transactional`, or with settings."""
        return AsyncTransactional(self)

    async def recover(self) -> Resolution:
        """Complete what a crash left open under this transactional id, by the row; harmless at any time.

        As `DualWriter.recover`. When it is cancelled, nothing is lost: the next one does what is left.
        """
        with self._turns.exclusively():
            return await self._writes.recover()

    async def resolve(self) -> Resolution:
        """Find out what became of a commit that raised OutcomeUnknown, or that was cancelled, and let Kafka follow.

        As `DualWriter.resolve`.
        """
        return await self.recover()

    async def close(self) -> None:
        """Give up the transactional id. What is in doubt stays so, safely, until the id is next used or recovered."""
        await self._writes.close()
