"""The steps of a dual write in the transaction of a Connection of SQLAlchemy, on each database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from dualwrite.errors import RowLockTimeoutError, TransactionEndedInsideError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.leases import is_outbox
from dualwrite.recipes.core.store import (
    NO_STORED_BLOCKS,
    StoredBlock,
    StoredBlocks,
    manifest_in,
    not_as_locked,
    state_in,
    stayed_locked,
)
from dualwrite.recipes.sql import postgres, state_statements
from dualwrite.recipes.sql.diversion_statements import DIALECTS, DiversionRow
from dualwrite.recipes.sql.outbox_elsewhere import IS_BEING_ADDED, OUTBOX_SQL, OutboxInSteps, SqlOfSteps
from dualwrite.recipes.sql.pinned_tables import Pin
from dualwrite.recipes.sql.postgres_steps import PostgresSteps, Refusals
from dualwrite.recipes.sql.sqlite import sync
from dualwrite.recipes.sqlalchemy.drivers import (
    Carry,
    assert_holds_locks,
    autocommit,
    commit_message,
    driver_connection,
    ended_past_sqlalchemy,
    here,
    value_past_sqlalchemy,
)
from dualwrite.recipes.sqlalchemy.examination import file_of
from dualwrite.recipes.sqlalchemy.mysql_row_lock import (
    LOCK_TIMEOUTS,
    MARK_IS_GONE,
    SET_MARK,
    WITNESS_ID,
    error_code,
    is_still_marked,
    lock_row,
    lock_wait_limit,
)
from dualwrite.recipes.sqlalchemy.own_statements import cached_text
from dualwrite.recipes.sqlalchemy.tables import OnConnection
from dualwrite.recipes.sqlalchemy.transaction import SqlAlchemyTransaction

ResultT = TypeVar("ResultT")


class SqlAlchemyPort(OnConnection):
    """The transaction of a dual write; on a Connection without one (None) only rows are read and written."""

    def __init__(
        self, connection: sa.Connection, pin: Pin, carry: Carry = here, transaction: SqlAlchemyTransaction | None = None
    ) -> None:
        super().__init__(connection, pin, carry)
        self._driver = driver_connection(connection) if transaction is None else transaction.driver
        self._transaction: SqlAlchemyTransaction = transaction  # type: ignore[assignment] # used if there is one

    @property
    def commit_was_sent(self) -> bool:
        return self._transaction.commit_was_sent

    @property
    def was_ended_past(self) -> bool:
        return self._transaction.was_ended_past

    def _note_id(self, transactional_id: str) -> None:
        if self._transaction is not None:
            self._transaction.transactional_id = transactional_id

    def doom(self, error: BaseException) -> None:
        self._transaction.doom(error)

    def assert_intact(self) -> None:
        self._transaction.assert_intact()

    def let_go(self) -> None:
        self._transaction.let_go()

    async def flush(self) -> None:
        transaction = self._transaction
        transaction.assert_intact()
        if transaction.holds_back:
            await self._carry(transaction.flush)

    async def commit(self) -> None:
        await self._carry(self._transaction.commit)

    async def rollback(self) -> None:
        await self._carry(self._transaction.rollback)

    async def close(self) -> None:
        await self._carry(self._transaction.close)

    def close_at_once(self) -> bool:
        if self._carry is not here:
            return False
        self._transaction.close()
        return True


class OnPostgres(SqlAlchemyPort, PostgresSteps):
    """The steps in the transaction of a Connection; only with a dual write on it may COMMIT be sent by a message."""

    errors = (DBAPIError,)
    driver_name = "SQLAlchemy"

    async def first_row(self, sql: str, values: Mapping[str, str | bytes]) -> Sequence[str | None] | None:
        value = await value_past_sqlalchemy(self.connection, self._driver, self.pin.sql(sql), values, self._carry)
        if value is None:
            return await super().first_row(sql, values)
        return None if value[0] is None else value

    def _assert_begun(self) -> None:
        assert_holds_locks(self.connection, self._driver)

    def _ended_past(self) -> TransactionEndedInsideError:
        return ended_past_sqlalchemy(self.connection)

    @property
    def mark(self) -> str:  # type: ignore[override]
        mark: str = getattr(self._driver, postgres.MARK_ATTRIBUTE, "")
        return mark

    @property
    def has_hooks(self) -> bool:
        return self._transaction.has_hooks

    def _commit_behind(
        self, before: postgres.BeforeCommit | None, token: str, refusals: Refusals, *, is_added: bool = False
    ) -> None:
        message = commit_message(self.connection, self._driver, before, token, refusals)
        self._transaction.decides_by(message, is_added=is_added)

    async def witness(self, transactional_id: str) -> str | None:
        """Read the row without a lock, and write to the log."""
        return await self._scalar(postgres.WITNESS, {"id": transactional_id})


class OnOthers(SqlAlchemyPort):
    """The steps in the transaction of a Connection: an UPDATE that changes nothing locks the row everywhere."""

    select = state_statements.SELECT
    """Reads the locked row, as it is now."""
    select_manifest = state_statements.SELECT_MANIFEST

    def _value(self, sql: str, transactional_id: str) -> str | None:
        text: str | None = self.connection.scalar(cached_text(self.pin.sql(sql)), {"id": transactional_id})
        return text

    def _changed(self, sql: str, values: Mapping[str, str | None]) -> int:
        return self.connection.execute(cached_text(self.pin.sql(sql)), values).rowcount

    # -- the state row ------------------------------------------------------------------------------------------------

    async def lock(self, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        self._note_id(transactional_id)
        return await self._carry(partial(self._lock, transactional_id, timeout_ms))

    def _lock(self, transactional_id: str, timeout_ms: int | None) -> PreparedTxnState:
        try:
            text = self._acquire(transactional_id, timeout_ms)
        except DBAPIError as error:
            if not _is_lock_timeout(error):
                raise
            raise stayed_locked(transactional_id, timeout_ms) from error
        assert_holds_locks(self.connection, self._driver)
        return state_in(transactional_id, text)

    def _acquire(self, transactional_id: str, timeout_ms: int | None) -> str | None:
        """Lock the row and return its text, or None if there is no row."""
        self._changed(state_statements.TOUCH, {"id": transactional_id})
        return self._value(self.select, transactional_id)

    async def read(self, transactional_id: str) -> PreparedTxnState:
        return state_in(transactional_id, await self._carry(partial(self._value, self.select, transactional_id)))

    async def read_manifest(self, transactional_id: str) -> str:
        text = await self._carry(partial(self._value, self.select_manifest, transactional_id))
        return manifest_in(transactional_id, text)

    async def write(
        self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState, manifest: str
    ) -> None:
        write = partial(self.write_now, transactional_id, previous=previous, new=new, manifest=manifest)
        await self._carry(write)
        self._transaction.decides(lambda: self._value(self.select, transactional_id) == str(new))

    def write_now(
        self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState, manifest: str
    ) -> None:
        """Write the row if it holds the state `previous`, and is locked by this transaction."""
        values = {"id": transactional_id, "previous": str(previous), "new": str(new), "manifest": manifest or None}
        changed = self._changed(state_statements.WRITE, values)
        self._assert_unbroken()
        if changed != 1:
            raise not_as_locked(transactional_id, previous, past="SQLAlchemy")

    def _assert_unbroken(self) -> None:
        """Raise TransactionEndedInsideError if the transaction is another one, once, before `commit`."""

    async def witness(self, transactional_id: str) -> str | None:
        """Read the row without a lock, and write, so that a commit proves the durability of everything read."""
        return await self._carry(partial(self._witness, transactional_id))

    def _witness(self, transactional_id: str) -> str | None:
        raise NotImplementedError(f"whether a commit is durable cannot be checked on {self.connection.dialect.name}")

    # -- the other tables ---------------------------------------------------------------------------------------------

    def stored_blocks(self, transactional_id: str) -> StoredBlocks:
        return self.outbox if is_outbox(transactional_id) else NO_STORED_BLOCKS

    def diversion(self, name: str, timeout_ms: int | None = None) -> DiversionRow:
        dialect = self.connection.dialect.name
        return DiversionRow(self, DIALECTS["mysql" if dialect == "mariadb" else dialect], name, timeout_ms)

    async def within(
        self, timeout_ms: int | None, late: RowLockTimeoutError, wait: Callable[[], Awaitable[ResultT]]
    ) -> ResultT:
        """Execute statements with a limit for their locks, where the database has one. Raises `late`."""
        limit = nullcontext() if timeout_ms is None else self._limit(timeout_ms)
        await self._carry(limit.__enter__)
        try:
            return await wait()
        except DBAPIError as error:
            if _is_lock_timeout(error):
                raise late from error
            raise
        finally:
            await self._carry(partial(limit.__exit__, None, None, None))

    def _limit(self, timeout_ms: int) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def outbox(self) -> OutboxInSteps:
        sql = OUTBOX_SQL.get(self.connection.dialect.name)
        assert isinstance(sql, SqlOfSteps), "a pool without an outbox asks for none"
        return OutboxInSteps(self, self._has_ended, sql)

    async def add_to_outbox(self, transactional_id: str, content: bytes) -> StoredBlock:
        self._note_id(transactional_id)
        self._transaction.assert_has_not_ended()
        added = await self.outbox.append(transactional_id, content)
        assert_holds_locks(self.connection, self._driver)
        await self._carry(self._assert_unbroken)
        self._transaction.decides(lambda: self._is_there(transactional_id, added), is_added=True)
        return added

    def _is_there(self, transactional_id: str, added: StoredBlock) -> bool:
        return blocking.run(type(self)(self.connection, self.pin).outbox.is_there(transactional_id, added))

    async def _has_ended(self, transactional_id: str, seq: int) -> bool:
        return True  # the state row is locked, and with it the whole database


class OnMySql(OnOthers):
    """MySQL and MariaDB: the statements of `mysql_row_lock.py`."""

    select = f"{state_statements.SELECT} FOR UPDATE"  # a plain SELECT may be of a snapshot older than the lock
    select_manifest = f"{state_statements.SELECT_MANIFEST} FOR UPDATE"

    def _acquire(self, transactional_id: str, timeout_ms: int | None) -> str | None:
        select = self.pin.sql(state_statements.SELECT)
        value = lock_row(self.connection, select, {"id": transactional_id}, timeout_ms)
        if not self._transaction:  # else it was marked when it began
            self.connection.exec_driver_sql(SET_MARK)
        return value

    def _assert_unbroken(self) -> None:
        if not is_still_marked(self.connection):
            raise ended_past_sqlalchemy(self.connection, MARK_IS_GONE)

    def _witness(self, transactional_id: str) -> str | None:
        text = self._value(state_statements.SELECT, transactional_id)
        with lock_wait_limit(self.connection):
            self._changed(state_statements.CHANGE_WITNESS, {"id": WITNESS_ID})
        return text

    def _limit(self, timeout_ms: int) -> AbstractContextManager[None]:
        return lock_wait_limit(self.connection, timeout_ms)

    async def _has_ended(self, transactional_id: str, seq: int) -> bool:
        try:
            await self.rows(IS_BEING_ADDED, {"id": transactional_id, "seq": seq})
        except DBAPIError as error:
            if error_code(error) in LOCK_TIMEOUTS:
                return False
            raise
        return True


class OnSqlite(OnOthers):
    """SQLite, which has one write lock for the whole file: an UPDATE that changes nothing takes it at once.

    A transaction that has already read may no longer be able to take it (SQLITE_BUSY_SNAPSHOT); it then fails here,
    before anything was sent.
    """

    def _lock(self, transactional_id: str, timeout_ms: int | None) -> PreparedTxnState:
        state = super()._lock(transactional_id, timeout_ms)
        if not getattr(self.connection.connection.driver_connection, "in_transaction", True):
            raise autocommit()
        return state

    def _acquire(self, transactional_id: str, timeout_ms: int | None) -> str | None:
        before = self.connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
        if timeout_ms is not None:
            self.connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(timeout_ms)}")
        try:
            return super()._acquire(transactional_id, timeout_ms)
        finally:
            self.connection.exec_driver_sql(f"PRAGMA busy_timeout = {before}")

    def _witness(self, transactional_id: str) -> str | None:
        text = self._value(self.select, transactional_id)
        sync(file_of(self.connection))
        return text


_LOCK_TIMEOUT_SENTENCES: Final = ("database is locked", "database table is locked")
"""How SQLite reports a lock that was not free in time."""


def _is_lock_timeout(error: DBAPIError) -> bool:
    return error_code(error) in LOCK_TIMEOUTS or any(text in str(error.orig) for text in _LOCK_TIMEOUT_SENTENCES)
