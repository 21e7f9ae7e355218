"""One database transaction of a dual write: whose it is, that it is still the one that holds the lock, how it ends."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.orm import Session

from dualwrite.errors import IllegalStateError, TransactionDoomedError, TransactionEndedInsideError

_log = logging.getLogger(__name__)


class _Binding(Protocol):
    """What a Session and a Connection do differently."""

    session: Session | None

    def connect(self) -> sa.Connection: ...
    def flush(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class _SessionBinding:
    def __init__(self, session: Session, *, owned: bool) -> None:
        self.session: Session | None = session
        self._session = session
        self._owned = owned

    def connect(self) -> sa.Connection:
        if self._session.in_nested_transaction():
            raise IllegalStateError(_NESTED)
        return self._session.connection()

    def flush(self) -> None:
        self._session.flush()

    def commit(self) -> None:
        self._session.commit()

    def rollback(self) -> None:
        self._session.rollback()

    def close(self) -> None:
        if self._owned:
            self._session.close()


class _ConnectionBinding:
    session: Session | None = None

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def connect(self) -> sa.Connection:
        if self._connection.in_nested_transaction():
            raise IllegalStateError(_NESTED)
        if not self._connection.in_transaction():
            self._connection.begin()
        return self._connection

    def flush(self) -> None:
        """A Connection buffers nothing."""

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        """The caller's own connection stays open."""


_NESTED = (
    "a dual write commits the whole database transaction and so cannot start inside a savepoint; "
    "nothing was written: release the savepoint first"
)


class UnitOfWork:
    """The database transaction between the row lock and the decision.

    It refuses to be ended by anybody else: a COMMIT inside the block would publish the data without the records, and
    a ROLLBACK would give the lock away. It also remembers statement errors outside savepoints, because a failed
    Postgres transaction answers COMMIT with a silent rollback, and a swallowed error must not end as a success.
    """

    def __init__(self, bind: Session | sa.Connection, *, owned: bool) -> None:
        self._binding: _Binding = (
            _SessionBinding(bind, owned=owned) if isinstance(bind, Session) else _ConnectionBinding(bind)
        )
        self._committing = False
        self._failed_statement: BaseException | None = None
        self.connection = self._binding.connect()
        self._root = self.connection.get_transaction()
        self._engine = self.connection.engine
        event.listen(self.connection, "commit", self._refuse_commit)
        event.listen(self._engine, "handle_error", self._remember_error)

    @property
    def session(self) -> Session | None:
        """The Session, or None where the dual write runs on a bare Connection."""
        return self._binding.session

    @property
    def failed_statement(self) -> BaseException | None:
        """The first error of a statement outside any savepoint, if there was one."""
        return self._failed_statement

    def flush(self) -> None:
        """Send what the Session still holds back. Raises what the database says to it."""
        self._binding.flush()

    def assert_intact(self) -> None:
        """Raise TransactionDoomedError or TransactionEndedInsideError where this transaction cannot be the decision."""
        if self._failed_statement is not None:
            raise TransactionDoomedError(
                "a statement of this dual write failed and its error was swallowed; neither database nor Kafka was "
                "changed: let the error end the block, or run the statement in a savepoint (session.begin_nested())"
            ) from self._failed_statement
        if self._root is None or not self._root.is_active or self.connection.get_transaction() is not self._root:
            raise TransactionEndedInsideError(
                "the block rolled its database transaction back, which also gave the row lock away; "
                "neither database nor Kafka was changed: leave the ending of the transaction to the dual write"
            )

    def commit(self) -> None:
        """Send COMMIT. Whatever it raises, the outcome must be read from the row."""
        self._committing = True
        self._binding.commit()

    def rollback(self) -> None:
        """Roll back, if it takes dropping the connection. Never raises: the database drops what it cannot reach."""
        try:
            self._binding.rollback()
        except Exception:
            _log.warning("rolling back the database failed; dropping its connection", exc_info=True)
            self._invalidate()

    def close(self) -> None:
        """Give back what this unit of work opened, and stop watching."""
        event.remove(self.connection, "commit", self._refuse_commit)
        event.remove(self._engine, "handle_error", self._remember_error)
        try:
            self._binding.close()
        except Exception:
            _log.warning("closing the session failed; dropping its connection", exc_info=True)
            self._invalidate()

    def _invalidate(self) -> None:
        try:
            self.connection.invalidate()
        except Exception:
            _log.warning("the database connection was already unusable", exc_info=True)

    def _refuse_commit(self, connection: Any) -> None:
        if not self._committing:
            raise TransactionEndedInsideError(
                "commit was called inside a dual write; neither database nor Kafka was changed: "
                "leaving the block commits both"
            )

    def _remember_error(self, context: ExceptionContext) -> None:
        if context.connection is not self.connection or self._failed_statement is not None:
            return
        if not self.connection.in_nested_transaction():
            self._failed_statement = context.original_exception
