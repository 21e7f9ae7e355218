"""A database transaction that the application ends itself, and whose COMMIT is the decision of a dual write.

SQLAlchemy's events come too early or too late for that: an event before COMMIT cannot see the response, an event after
COMMIT does not fire if the response is lost, and none can turn an error into the success that it was. So this module
wraps the dialect's `do_commit`. Every COMMIT passes through it: `Session.commit()`, the end of `with Session.begin()`
and `Connection.commit()`. Everything before it (hooks, flushes) is over, and nothing after it (expiring objects,
`after_commit`, closing) has begun, so these behave as without a dual write.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.orm import Session

from dualwrite.errors import IllegalStateError
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.sqlalchemy.drivers import in_transaction
from dualwrite.recipes.sqlalchemy.transaction import SqlAlchemyTransaction, watch

_log = logging.getLogger(__name__)

# The transaction whose COMMIT this thread or task is about to send: the event with the Connection comes right before
# the call that receives only the driver's connection. (A context variable, which a task shares with its greenlets: if
# other listeners of the event await something, other tasks run in between.)
_arrived: ContextVar[FollowedTransaction | None] = ContextVar("dualwrite_arrived", default=None)

_followed: weakref.WeakSet[sa.Dialect] = weakref.WeakSet()
_following = threading.Lock()


def follow_commits(engine: sa.Engine) -> None:
    """Follow transactions on `engine` to their COMMIT, from now on. Harmless when repeated."""
    watch(engine)
    with _following:
        if engine.dialect not in _followed:
            _followed.add(engine.dialect)
            _follow(engine.dialect)


def _follow(dialect: sa.Dialect) -> None:
    send_commit = dialect.do_commit

    def do_commit(dbapi_connection: Any) -> None:
        transaction = _arrived.get()
        _arrived.set(None)
        if transaction is None or transaction.connection.connection is not dbapi_connection:
            send_commit(dbapi_connection)
        else:
            transaction.arrive(lambda: send_commit(dbapi_connection))

    dialect.do_commit = do_commit  # type: ignore[method-assign]


class Follower(Protocol):
    """What the end of the transaction is reported to."""

    def decide(self) -> None:
        """Carry out the requested COMMIT as part of a dual write. Errors raised here are raised by COMMIT."""

    def drop(self) -> None:
        """Note that the transaction is rolled back."""


class _Arrival:
    """A binding whose transaction the application closes, after it has flushed and requested COMMIT."""

    session: Session | None = None
    is_open = False

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.send_commit: Callable[[], None] | None = None

    def connect(self) -> sa.Connection:
        return self._connection

    def commit(self) -> None:
        assert self.send_commit is not None, "COMMIT was not requested"
        self.send_commit()

    def rollback(self) -> None:
        """Roll back past SQLAlchemy, which is in the middle of a COMMIT and handles its failure afterwards."""
        if not self._connection.invalidated:
            self._connection.dialect.do_rollback(self._connection.connection)

    def close(self) -> None:
        """Close nothing: nothing was opened here."""


class FollowedTransaction(SqlAlchemyTransaction):
    """The transaction on a Connection, from the first record on. Its end is reported to `follower`.

    One exception: no event reports a hook of the application that fails between the last flush and COMMIT. Then
    `is_over` becomes true without notice, and the caller that sees it calls `rolled_back`.
    """

    may_begin_in_savepoint = True

    def __init__(
        self,
        connection: sa.Connection,
        engine: sa.Engine,
        records: RecordBuffer,
        follower: Callable[[FollowedTransaction], Follower],
    ) -> None:
        self._arrival = _Arrival(connection)
        self._has_ended = False
        self._initialise(self._arrival, engine, records)
        self._driver_has_begun = in_transaction(self.driver) is True
        self._follower = follower(self)

    def commit(self) -> None:
        """Send COMMIT. After an error with `commit_was_sent` set, the outcome must be read from the state row."""
        self._assert_not_doomed()
        self.commit_was_sent = True
        super().commit()

    def arrive(self, send_commit: Callable[[], None]) -> None:
        """Decide: COMMIT was requested, and `send_commit` sends it."""
        if self._belongs_to_the_parent:
            raise IllegalStateError(_OF_THE_PARENT)
        self._arrival.send_commit = send_commit
        self._has_ended = True
        try:
            self._follower.decide()
        finally:
            self.close()

    def rolled_back(self) -> None:
        if self._has_ended or self._belongs_to_the_parent:
            return
        self._has_ended = True
        if _arrived.get() is self:
            _arrived.set(
                None
            )  # a later listener refused the COMMIT: the next COMMIT in this thread belongs to another transaction
        self._follower.drop()
        self.close()

    def before_commit(self) -> None:
        _arrived.set(self)


_OF_THE_PARENT = (
    "this database transaction belongs to the process that forked; nothing was written here: let the parent end it, "
    "and use separate sessions in the child"
)
