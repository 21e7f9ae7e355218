"""A database that SQLAlchemy reaches, as the steps of a dual write need it; blocking or awaited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.sql.database_identity import DatabaseIdentity
from dualwrite.recipes.sqlalchemy.commit_wait import interrupted_by
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyStateStore
from dualwrite.recipes.sqlalchemy.transaction import SqlAlchemyTransaction, for_own_use

ResultT = TypeVar("ResultT")


class Carry(Protocol):
    """Carries out a function that talks to the database: in this thread, or where a loop must not be blocked."""

    def __call__(self, function: Callable[[], ResultT]) -> Awaitable[ResultT]: ...


async def here(function: Callable[[], ResultT]) -> ResultT:
    """In this thread, which waits."""
    return function()


async def _carried(carry: Carry, function: Callable[[], ResultT]) -> ResultT:
    return await carry(function)


class SqlAlchemyPort:
    """`DatabaseTransaction` on a `SqlAlchemyTransaction`."""

    can_lock_and_write: Final = False  # COMMIT is sent by SQLAlchemy, and proves nothing

    def __init__(self, work: SqlAlchemyTransaction, store: SqlAlchemyStateStore, carry: Carry) -> None:
        self._work = work
        self._store = store
        self._carry = carry

    @property
    def commit_was_sent(self) -> bool:
        return self._work.commit_was_sent

    def doom(self, error: BaseException) -> None:
        self._work.doom(error)

    def assert_intact(self) -> None:
        self._work.assert_intact()

    async def flush(self) -> None:
        await self._carry(self._work.flush)

    async def lock(self, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        self._work.transactional_id = transactional_id
        return await self._carry(
            lambda: self._store.lock(self._work.connection, transactional_id, timeout_ms=timeout_ms)
        )

    async def read(self, transactional_id: str) -> PreparedTxnState:
        return await self._carry(lambda: self._store.read(self._work.connection, transactional_id))

    async def write(self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState) -> None:
        await self._carry(
            lambda: self._store.write(self._work.connection, transactional_id, previous=previous, new=new)
        )
        self._work.decides(self._store.raise_durability)

    async def lock_and_write(self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState) -> bool:
        return False

    async def commit(self) -> None:
        if self._work.connection.dialect.driver == "asyncpg":
            await interrupted_by(self._work.drop, _carried(self._carry, self._work.commit))
        else:
            await self._carry(self._work.commit)

    async def rollback(self) -> None:
        await self._carry(self._work.rollback)

    async def close(self) -> None:
        await self._carry(self._work.close)

    def close_at_once(self) -> bool:
        if self._carry is not here:
            return False
        self._work.close()
        return True


class SqlAlchemyDatabase:
    """`Database` on an engine."""

    # asyncpg's refused connections come through as the OSError that they are
    errors: tuple[type[Exception], ...] = (SQLAlchemyError, OSError)

    def __init__(
        self,
        engine: sa.Engine,
        *,
        create_table: bool,
        schema: str | None = None,
        carry: Carry = here,
        only_recovers: bool = False,
    ) -> None:
        """`only_recovers`: what the database cannot promise is then no reason to leave open what was decided."""
        self._engine = for_own_use(engine)
        self._create_table = create_table
        self._only_recovers = only_recovers
        self._carry = carry
        self._store = SqlAlchemyStateStore(self._engine, schema)

    async def ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        return await self._carry(lambda: self._ensure_row(transactional_id))

    def _ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        if not self._only_recovers:
            self._store.examine()
        if self._create_table:
            self._store.create_tables()
            self._create_table = False
        return self._store.ensure_row(transactional_id)

    async def make_durable(self, transactional_id: str, row: PreparedTxnState, *, timeout_ms: int) -> None:
        await self._carry(lambda: self._store.make_durable(transactional_id, row, timeout_ms=timeout_ms))

    async def begin(self) -> SqlAlchemyPort:
        return await self._carry(lambda: self.transaction(self._new_work()))

    def _new_work(self) -> SqlAlchemyTransaction:
        return SqlAlchemyTransaction(self._engine.connect(), self._engine, RecordBuffer(), owned=True)

    def transaction(self, work: SqlAlchemyTransaction) -> SqlAlchemyPort:
        """`work`, which somebody began, as the steps see it."""
        return SqlAlchemyPort(work, self._store, self._carry)
