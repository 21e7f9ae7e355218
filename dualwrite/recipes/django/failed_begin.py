"""A dual write that could not begin, and so dooms its transaction."""

from __future__ import annotations

from dualwrite.errors import TransactionDoomedError
from dualwrite.outcome import Outcome, note_outcome


class FailedBegin:
    """The error of a transaction's first record, until an earlier savepoint is rolled back.

    There is no record buffer to remember it, so the savepoints are tracked by Django's names.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error
        note_outcome(error, Outcome.ROLLED_BACK)
        self._later: set[str] = set()

    def savepoint(self, name: str) -> None:
        """Note a savepoint that was set after the failure: rolling back to it does not undo that."""
        self._later.add(name)

    def is_undone_by(self, name: str) -> bool:
        """Return whether rolling back to a savepoint undoes everything that was to be committed with the record."""
        return name not in self._later

    def doomed(self) -> TransactionDoomedError:
        """Return the error for a COMMIT of the transaction."""
        doomed = TransactionDoomedError(
            f"a record was not accepted, because its dual write could not begin ({type(self._error).__name__}), and "
            "the error was swallowed; neither database nor Kafka is changed: let the error end the block, or send "
            "inside an inner transaction.atomic()"
        )
        doomed.__cause__ = self._error
        note_outcome(doomed, Outcome.ROLLED_BACK)
        return doomed
