"""The database transaction of a group of blocks on SQLAlchemy: one Connection, and a Session for each block.

The first block's Session takes part in the transaction itself, so that a block which stays alone sends what it would
send by itself; each further one in a savepoint. `join_transaction_mode="rollback_only"` lets a Session end without
ending what it takes part in. So `after_commit` hooks and the expiry of objects follow the decision of the group, in the
block's own thread or task, whereas `before_commit` hooks run when the block ends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from dualwrite.errors import IllegalStateError, TransactionDoomedError, TransactionEndedInsideError
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.dual_write import DualWrite, DualWriteProgress
from dualwrite.recipes.core.store import DatabaseTransaction
from dualwrite.recipes.core.waiting import Uninterrupted
from dualwrite.recipes.sql.settings_changed import changes_settings
from dualwrite.recipes.sql.socket_timeout import SocketCut
from dualwrite.recipes.sqlalchemy.drivers import Carry, begin_nested_by, has_failed, read_ahead, savepoint_ahead
from dualwrite.recipes.sqlalchemy.transaction import SqlAlchemyTransaction, follow_session, forget_session

if TYPE_CHECKING:
    from dualwrite.recipes.psycopg.driver import PipelinedStatement

TxT = TypeVar("TxT", bound=DualWrite)


class GroupedTransaction(SqlAlchemyTransaction):
    """The transaction of a group; what it remembers of failures is its running block's."""

    _savepoints = 0
    _savepoint = ""
    """Each one has its own name: if it was not set, rolling back to it must fail rather than undo another block."""
    _ahead: PipelinedStatement | None = None
    """The last savepoint that was sent without waiting for its response."""
    has_changed_settings = False
    """Whether a statement has changed settings, which hold for the rest of the transaction."""
    block_savepoint: sa.NestedTransaction | None = None
    """The savepoint before the running block; None for the first one."""
    is_preparing = False
    """Whether a Session commits because its block has ended."""

    def follow(self, records: RecordBuffer) -> None:
        """Notify `records` of savepoints and refusals from now on."""
        self._records = records

    def forgive(self) -> None:
        """Forget failures, because a rollback to the block's savepoint has undone them."""
        self._failure = None
        self._second_database = False

    def begin_block(self, records: RecordBuffer, session: Session, *, first: bool) -> None:
        """Begin a block, behind a savepoint unless it is the first one, and let `session` take part in it."""
        self.follow(records)
        self.block_savepoint = None if first else begin_nested_by(self.connection, self._send_savepoint)
        if session.in_transaction():
            raise IllegalStateError(_SESSION_HAS_BEGUN)
        follow_session(session, self)
        session.bind = self.connection
        session.join_transaction_mode = "rollback_only"
        session.connection()

    def _send_savepoint(self) -> str:
        self._savepoints += 1
        self._savepoint = savepoint = f"dualwrite_block_{self._savepoints}"
        ahead = savepoint_ahead(self.connection, savepoint)
        if ahead is None:
            self.connection.exec_driver_sql(f"SAVEPOINT {savepoint}")
        else:
            self._ahead = ahead
            self._records.savepoint(savepoint)
        return savepoint

    def _forget_ahead(self) -> None:
        """Restore the connection after a savepoint whose error no longer matters."""
        if self._ahead is not None and not self._ahead.is_pending:
            self._ahead.forget()

    def rollback(self) -> None:
        self._forget_ahead()
        super().rollback()

    def end_block(self, session: Session) -> None:
        """Send what the Session holds back. Raises if the block cannot go into the decision."""
        self._assert_block_intact()
        root = session.get_transaction()
        if root is not None:
            self.is_preparing = True
            try:
                root._prepare_impl()  # noqa: SLF001 - commit() without its end, which follows the group's decision
            finally:
                self.is_preparing = False
        if self._ahead is not None and self._ahead.is_pending:  # the block has sent nothing
            read_ahead(self.connection)
        self._assert_block_intact()
        if self._is_in_savepoint():
            raise IllegalStateError(_SAVEPOINT_OPEN)

    def _assert_block_intact(self) -> None:
        self.assert_intact()
        if self._records.rolled_back_beyond:
            raise TransactionEndedInsideError(_ENDED_FOR_ALL)
        if self._has_been_undone:
            raise TransactionEndedInsideError(_ROLLED_BACK)
        if has_failed(self.connection):
            raise TransactionDoomedError(_SWALLOWED)

    def undo_block(self, session: Session) -> None:
        """Roll the block back to its savepoint. Raises if the whole transaction must end."""
        savepoint = self.block_savepoint
        if savepoint is None or self._has_left_the_block or not self._records.knows_savepoint(self._savepoint):
            raise TransactionEndedInsideError(_ENDED_FOR_ALL)
        self._forget_ahead()
        if savepoint.is_active:
            self._roll_back_to(savepoint, session)
            self.block_savepoint = None
        else:
            with suppress(TransactionEndedInsideError):  # `before_statement` lets nothing be sent
                session.rollback()
            self.block_savepoint = None
            # The block may have gone on past SQLAlchemy, which nothing else would undo.
            self.connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {self._savepoint}")
        if has_failed(self.connection) or self._has_left_the_block:
            raise TransactionEndedInsideError(_ENDED_FOR_ALL)
        self.forgive()

    def _roll_back_to(self, savepoint: sa.NestedTransaction, session: Session) -> None:
        session.rollback()
        while savepoint.is_active:  # so the newest one is this or inside it, and not a neighbour's
            newest = self.connection.get_nested_transaction()
            assert newest is not None, "one that is active is among those of its Connection"
            newest.rollback()

    @property
    def _has_left_the_block(self) -> bool:
        """Whether the block has undone more than itself."""
        return self.is_over or self._records.rolled_back_beyond

    @property
    def _has_been_undone(self) -> bool:
        """Whether the block has rolled back to its savepoint, or released it."""
        return self.block_savepoint is not None and not self.block_savepoint.is_active

    def session_begins(self, session: Session) -> None:
        """Keep a Session that begins anew from taking part in a neighbour's savepoint, which it would roll back."""
        if self._has_been_undone:
            session.join_transaction_mode = "create_savepoint"  # which `before_statement` refuses

    def session_began(self, connection: sa.Connection) -> None:
        """Raise if the Session begins anew, or on another connection."""
        self.refuse_second_database(connection)
        if self.is_over or self._has_been_undone:
            raise self._ended(_ROLLED_BACK)

    def session_commits(self, session: Session) -> None:
        """Raise TransactionEndedInsideError unless a savepoint of the Session is released, or its block has ended."""
        if not self.is_preparing and not session.in_nested_transaction():
            raise self._ended(_COMMITTED)

    def _ended(self, sentence: str) -> TransactionEndedInsideError:
        error = TransactionEndedInsideError(sentence)
        self._doom_all(error)
        return error

    def before_statement(self, statement: str) -> None:
        if self._has_been_undone:
            raise self._ended(_ROLLED_BACK)
        if changes_settings(statement):
            self.has_changed_settings = True
        super().before_statement(statement)

    def _is_in_savepoint(self) -> bool:
        return self.connection.get_nested_transaction() not in (None, self.block_savepoint)


class SqlAlchemyGroup(Generic[TxT]):
    """`GroupTransaction` on SQLAlchemy."""

    def __init__(
        self,
        transaction: GroupedTransaction,
        port: DatabaseTransaction,
        records: RecordBuffer,
        *,
        carry: Carry,
        uninterrupted: Uninterrupted,
        new_block: Callable[[RecordBuffer], TxT],
        session_of: Callable[[TxT], Session],
    ) -> None:
        """`new_block` makes a block's handle with a Session of its own, which `session_of` returns."""
        self.progress: Final = DualWriteProgress(port, records, uninterrupted)
        self._transaction = transaction
        self._carry = carry
        self._new_block = new_block
        self._session_of = session_of
        self._socket: SocketCut | None = None
        self._joined: dict[Session, Any] = {}
        """What the Sessions are bound to outside the group."""

    @property
    def takes_more(self) -> bool:
        return not self._transaction.has_changed_settings

    def new_block(self, records: RecordBuffer) -> TxT:
        return self._new_block(records)

    async def begin_block(self, tx: TxT, *, first: bool) -> None:
        if not first and self._socket is None:
            self._socket = SocketCut(self._transaction.connection.connection.driver_connection)
        self._transaction.write = tx
        session, records = self._session_of(tx), tx.progress.records
        self._joined[session] = session.bind, session.join_transaction_mode
        await self._carry(partial(self._transaction.begin_block, records, session, first=first))

    async def end_block(self, tx: TxT) -> None:
        await self._carry(partial(self._transaction.end_block, self._session_of(tx)))
        self._follow_no_block()

    async def undo_block(self, tx: TxT) -> None:
        await self._carry(partial(self._transaction.undo_block, self._session_of(tx)))
        self._follow_no_block()

    def _follow_no_block(self) -> None:
        self._transaction.write = None
        self._transaction.follow(self.progress.records)

    async def close_block(self, tx: TxT) -> None:
        await self._carry(partial(self._close_block, tx))

    def _close_block(self, tx: TxT) -> None:
        session = self._session_of(tx)
        forget_session(session)
        if session.in_transaction():
            if tx.outcome in (Outcome.COMMITTED, Outcome.STORED):
                session.commit()
            else:  # not rollback(), which would send something on a connection that may serve another thread
                session.dispatch.after_rollback(session)
        session.close()
        session.bind, session.join_transaction_mode = self._joined.pop(session, (session.bind, "conditional_savepoint"))

    def cut(self) -> None:
        if self._socket is not None:
            self._socket.cut()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


_SESSION_HAS_BEGUN: Final = (
    "session_factory returned a Session that has begun a transaction already, which is not that of the block's group; "
    "nothing was written: return a new Session, or use transaction(alone=True)"
)
_ROLLED_BACK: Final = (
    "the block rolled its database transaction back; neither database nor Kafka was changed: let an exception leave "
    "the block, or roll back a part of it with session.begin_nested()"
)
_COMMITTED: Final = (
    "commit was called inside a dual write; neither database nor Kafka was changed: leaving the block commits both"
)
_SAVEPOINT_OPEN: Final = (
    "the block ended inside a savepoint of its Connection; neither database nor Kafka was changed: release the "
    "savepoint inside the block"
)
_SWALLOWED: Final = (
    "a statement of this block failed and its error was swallowed; neither database nor Kafka was changed: let the "
    "error end the block, or run a statement that may fail in a savepoint (session.begin_nested())"
)
_ENDED_FOR_ALL: Final = (
    "a block of this group undid more than itself, or cannot be undone alone: it ended the transaction on its "
    "Connection, released its savepoint, or rolled back to one that is not its own; neither database nor Kafka was "
    "changed: repeat this block"
)
