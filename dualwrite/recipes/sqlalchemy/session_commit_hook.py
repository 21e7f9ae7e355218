"""A database transaction that the application ends itself, and whose COMMIT is the decision of a dual write.

SQLAlchemy's events come too early or too late for that: an event before COMMIT cannot see the response, an event after
COMMIT does not fire if the response is lost, and none can turn an error into the success that it was. So the decision
is made where the dialect sends COMMIT (`drivers.notify_of_ends`); all steps before and after behave as without a dual
write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.sqlalchemy.binding import Binding
from dualwrite.recipes.sqlalchemy.transaction import SqlAlchemyTransaction


class _Arrival(Binding):
    """A binding whose transaction the application ends: it has flushed and requested COMMIT."""

    send_commit: Callable[[], None]

    def commit(self) -> None:
        self.send_commit()

    def rollback(self) -> None:
        """Roll back past SQLAlchemy, which is in the middle of a COMMIT and handles its failure afterwards."""
        if not self._connection.invalidated:
            self._connection.dialect.do_rollback(self._connection.connection)


class FollowedTransaction(SqlAlchemyTransaction):
    """The transaction on a Connection, from the first record on. At its end, `decide` or `drop` of `write` is called.

    One exception: no event reports a hook of the application that fails between the last flush and COMMIT. Then
    `is_over` becomes true without notice, and its caller must call `rolled_back`.
    """

    may_begin_in_savepoint = True
    write: Any

    def __init__(
        self,
        connection: sa.Connection,
        engine: sa.Engine,
        records: RecordBuffer,
        new_write: Callable[[FollowedTransaction], object],
    ) -> None:
        self._arrival = _Arrival(connection, owned=False)
        self._has_ended = False
        self._initialise(self._arrival, engine, records)
        new_write(self)
        self._begin_to_watch()

    def commit(self) -> None:
        self._assert_not_doomed()
        self.commit_was_sent = True
        super().commit()

    def arrive(self, send_commit: Callable[[], None]) -> None:
        """Decide: COMMIT was requested, and `send_commit` sends it."""
        self.assert_ours()
        self._arrival.send_commit = send_commit
        self.has_arrived = self._has_ended = True
        try:
            self.write.decide()
        finally:
            self.close()

    def before_rollback(self) -> None:
        super().before_rollback()
        self.rolled_back()

    def rolled_back(self) -> None:
        if self._has_ended or self._belongs_to_the_parent:
            return
        self._has_ended = True
        self.write.drop()
        self.close()
