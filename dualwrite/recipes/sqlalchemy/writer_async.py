"""The writer on SQLAlchemy for asyncio: `AsyncDualWriter`, with one transactional id or, as a pool, with many.

    async with AsyncDualWriter(engine, bootstrap_servers="127.0.0.1:9092", transactional_id="orders-1") as writer:
        async with writer.transaction() as tx:
            tx.session.add(Order(...))
            tx.send("orders", key=..., value=...)

    async with AsyncDualWriter(engine, prefix="orders", bootstrap_servers="127.0.0.1:9092") as pool:
        async with pool.transaction() as tx:  # in any task
            ...

The steps, and why they are safe, are those of `DualWriter`: `dualwrite.recipes.core.coordinator` and
`dualwrite.recipes.pool.coordinator`. The same code also talks to the database, in SQLAlchemy's greenlets.

Cancellation at any await inside a block: before the database's COMMIT is sent, both sides are rolled back. If COMMIT
was sent but its response did not arrive, the dual write is UNRESOLVED, and `recover()` or the next use reads the row; a
pool does so in the background. After the response the dual write is committed, and in doubt until the next use commits
Kafka's transaction. Each case raises CancelledError with a note about the outcome, after the connection was returned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self, TypeVar, Unpack, overload

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session, async_session
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only, greenlet_spawn

from dualwrite.errors import IllegalStateError
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.dual_write import DualWrite, Resolution
from dualwrite.recipes.core.settings import check_engine
from dualwrite.recipes.core.waiting import TASKS, shield
from dualwrite.recipes.pool.settings import ids_in
from dualwrite.recipes.pool.status import PoolStatus
from dualwrite.recipes.sqlalchemy.adapter import SqlAlchemyBackend
from dualwrite.recipes.sqlalchemy.drivers import async_connection
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase
from dualwrite.recipes.sqlalchemy.transaction import SqlAlchemyTransaction
from dualwrite.recipes.writer import TaskWriter
from dualwrite.settings import WriterPoolSettings, WriterSettings

__all__ = ["AsyncDualTransaction", "AsyncDualWriter", "PoolStatus", "Resolution"]

ResultT = TypeVar("ResultT")

AsyncBind = AsyncSession | async_scoped_session[AsyncSession] | AsyncConnection


def in_a_greenlet(function: Callable[[], ResultT]) -> Awaitable[ResultT]:
    """Run a blocking function that talks to the database in a greenlet; the loop goes on meanwhile."""
    return greenlet_spawn(function)


def _of_the_greenlets(bind: AsyncBind) -> Session | sa.Connection:
    """Return the Session or Connection behind an asynchronous one."""
    bound = bind() if isinstance(bind, async_scoped_session) else bind
    if isinstance(bound, AsyncSession):
        return bound.sync_session
    if not isinstance(bound, AsyncConnection):
        raise IllegalStateError(
            f"a dual write runs on an AsyncSession or an AsyncConnection, not on {bind!r}; nothing was written"
        )
    if bound.sync_connection is None:
        raise IllegalStateError(
            "this AsyncConnection is not started, so nothing was written: use it in `async with engine.connect()`"
        )
    return bound.sync_connection


class AsyncDualTransaction(DualWrite):
    """One dual write, as yielded by `AsyncDualWriter.transaction()`. `send` needs no await: records are kept."""

    def __init__(self, transaction: SqlAlchemyTransaction, database: SqlAlchemyDatabase, records: RecordBuffer) -> None:
        super().__init__(database.transaction(transaction), records, shield)
        transaction.write = self
        self._transaction = transaction
        self._session = None if transaction.session is None else async_session(transaction.session)

    @property
    def session(self) -> AsyncSession:
        """The AsyncSession of this dual write. Raises IllegalStateError on a bare AsyncConnection."""
        if self._session is None:
            raise IllegalStateError("this dual write runs on an AsyncConnection; use tx.connection")
        return self._session

    @property
    def connection(self) -> AsyncConnection:
        """The connection whose transaction is the decision; within `session.begin_nested()` it is in the savepoint."""
        return async_connection(self._transaction.connection)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[Self]:
        """Begin a part that may fail by itself, as `DualTransaction.savepoint`."""
        async with (self._session or self.connection).begin_nested():
            yield self


class AsyncDualWriter(TaskWriter[AsyncBind, AsyncDualTransaction]):
    """`DualWriter` for coroutines: the same names, settings, rules and errors; methods that wait are coroutines.

    `engine` is an AsyncEngine (tested with psycopg, asyncpg and aiosqlite), and `session_factory` makes AsyncSessions,
    an `async_sessionmaker` for instance. By default the objects of a Session stay readable after the block
    (`expire_on_commit=False`).

    With `transactional_id`, one dual write runs at a time; a second one, in any task, raises IllegalStateError. With
    `prefix` it is a pool, for any number of tasks; not usable in a forked child: make a new one there. Belongs to the
    loop in which it is first used. The module's docstring says how cancellations end.
    """

    backend: SqlAlchemyBackend[AsyncBind, AsyncDualTransaction]

    @overload
    def __init__(
        self,
        engine: AsyncEngine,
        *,
        transactional_id: str,
        session_factory: Callable[[], AsyncSession] | None = None,
        **settings: Unpack[WriterSettings],
    ) -> None: ...

    @overload
    def __init__(
        self,
        engine: AsyncEngine,
        *,
        prefix: str,
        session_factory: Callable[[], AsyncSession] | None = None,
        **settings: Unpack[WriterPoolSettings],
    ) -> None: ...

    def __init__(
        self, engine: AsyncEngine, *, session_factory: Callable[[], AsyncSession] | None = None, **settings: Any
    ) -> None:
        check_engine(engine, AsyncEngine, "create_async_engine")
        ids = ids_in(settings)
        backend = SqlAlchemyBackend[AsyncBind, AsyncDualTransaction](
            engine.sync_engine,
            new_session=session_factory or (lambda: AsyncSession(engine, expire_on_commit=False)),
            behind=_of_the_greenlets,
            handle=AsyncDualTransaction,
            waiting=TASKS,
            carry=in_a_greenlet,
            carry_out=await_only,
            settings=ids.writing,
            is_pool=ids.is_pool,
        )
        super().__init__(backend, ids)

    def transaction(self, bind: AsyncBind | None = None) -> AbstractAsyncContextManager[AsyncDualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        `bind` is an AsyncSession or a started AsyncConnection on the writer's engine that the caller owns. The rules
        for it, and for records, savepoints and errors, are those of `DualWriter.transaction`. A cancellation inside
        the block, for instance by `asyncio.timeout`, counts as an exception of the block; one that arrives while the
        block ends is raised, with a note about the outcome of the dual write.
        """
        return self.scope(bind)
