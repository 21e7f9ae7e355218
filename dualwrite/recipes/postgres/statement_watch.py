"""A watch's record of its dual write's statements: refused endings, failures and savepoints.

The subclass of each driver sees the statements, and knows the state of its connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import ClassVar, Final, TypeVar

from dualwrite.errors import IllegalStateError, TransactionEndedInsideError
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.database_errors import partly_failed
from dualwrite.recipes.sql.transaction_control import POSTGRES, Savepoint, checked

ErrorT = TypeVar("ErrorT", bound=BaseException)


class StatementWatch(ABC):
    """Watches the connection of one dual write from begin to end, and notifies `records` of savepoints."""

    refusals: ClassVar[tuple[type[Exception], ...]]
    """The driver's errors for statements that the server has not executed."""
    _records: RecordBuffer
    _refused_ending: BaseException | None = None
    _is_closed = False
    is_retired = False
    """Whether the block is over, and the connection refuses statements until the next one begins on it."""
    running = 0
    """The number of statements that were begun, and may be waiting for their turn.

    A statement is counted before it asks whether the watch is closed, and `assert_intact` counts after it was closed.
    """

    @abstractmethod
    def start(self) -> None:
        """Start watching, once the transaction has begun."""

    @abstractmethod
    def stop(self) -> None:
        """Restore the connection; harmless when repeated."""

    @abstractmethod
    def assert_intact(self) -> None:
        """Raise a RecipeError or IllegalStateError if the transaction cannot be the decision."""

    def assert_executed_at_once(self) -> None:  # noqa: B027 - most drivers have no pipelines
        """Refuse a savepoint statement in a pipeline: it would be queued, and skipped if an earlier one has failed."""

    def close(self) -> None:
        """Refuse further statements: the decision is being made, and the records of the block are complete."""
        self._is_closed = True

    def retire(self) -> None:
        """Go on refusing statements of tasks or threads that the block has left behind, and let go of its records."""
        self._is_closed = self.is_retired = True
        self._records = RecordBuffer()

    def doom(self, error: BaseException) -> None:
        """Allow the transaction, or its current savepoint, only to be rolled back, even if `error` is swallowed."""
        if not self.is_retired:
            self._records.refuse(error)

    def assert_savepoints_known(self) -> None:
        """Raise TransactionEndedInsideError after a rollback past the block's first savepoint."""
        if self._records.rolled_back_beyond:
            raise TransactionEndedInsideError(_BEYOND)

    def assert_open(self) -> None:
        if self._is_closed:
            raise IllegalStateError(TOO_LATE)

    def assert_nothing_refused(self) -> None:
        failure = self._refused_ending or self._records.refused
        if failure is not None:
            raise doomed_by(failure)

    # -- statements ----------------------------------------------------------------------------------------------

    # No `with`: it would be a large part of the cost of a short statement.

    def before(self, text: str) -> Savepoint | None:
        """Check a statement that is counted as running. Return what it does to a savepoint, for `after`."""
        try:
            savepoint = checked(text, POSTGRES)
        except TransactionEndedInsideError as error:
            self.refuse_ending(error)
            raise
        if self._is_closed:
            self.assert_open()
        if savepoint is not None:
            self.assert_executed_at_once()
        return savepoint

    def before_other(self, text: str) -> None:
        """Check a statement whose effect on savepoints is not tracked."""
        if self.before(text) is not None:
            raise self.refuse_ending(IllegalStateError(_BY_EXECUTE))

    def after(self, savepoint: Savepoint) -> None:
        savepoint.follow(self._records)

    def failed(self, error: BaseException, savepoint: Savepoint | None) -> None:
        """Let the transaction, or its current savepoint, only be rolled back, even if `error` is swallowed.

        The server may have executed the statement, or a part of it, before an interruption or an error of the client.
        """
        if savepoint is None or isinstance(error, self.refusals):
            self.doom(error)
        else:
            self.refuse_ending(error)  # which savepoints are set is not known any more

    def refuse_ending(self, error: ErrorT) -> ErrorT:
        """Doom the dual write even if a savepoint is rolled back, and return the error; harmless once it is over.

        A caller that meant to end the transaction must not go on with it.
        """
        if not self.is_retired:
            self._refused_ending = error
        return error


doomed_by: Final = partial(partly_failed, savepoint="connection.transaction()")

NESTED: Final = (
    "the connection is inside connection.transaction(), which commits or rolls back at its end; a dual write commits "
    "the whole transaction, so nothing was written: make the dual write the outermost block"
)
NOT_READY: Final = (
    "the transaction of the connection has failed already, or a COPY or another statement is in progress; nothing was "
    "written: roll it back or finish it first"
)
ENDED: Final = (
    "the transaction was ended inside the block, bypassing the connection's own methods, which also released the row "
    "lock; Kafka was not changed, and the database keeps only changes that a COMMIT made permanent: let the dual "
    "write end the transaction"
)
_BEYOND: Final = (
    "the transaction was rolled back to an earlier savepoint, which this block did not set or which was not tracked; "
    "neither database nor Kafka was changed: roll back to savepoints of this block, set with connection.transaction() "
    "or execute()"
)
UNFINISHED: Final = (
    "the block ended inside connection.transaction(), or while another statement, a COPY or a stream was in progress; "
    "neither database nor Kafka was changed: finish it inside the block"
)
TOO_LATE: Final = (
    "this dual write has ended, so the statement was not sent: let the block wait for the tasks or threads that use "
    "its connection"
)
_BY_EXECUTE: Final = (
    "a savepoint statement was sent by a method other than execute(), where it cannot be tracked; it was not "
    "executed, and neither database nor Kafka was changed: use connection.transaction() or execute()"
)
