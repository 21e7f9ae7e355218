"""A dual write that could not begin, which dooms the transaction it was to be part of."""

from __future__ import annotations

from dualwrite.errors import TransactionDoomedError
from dualwrite.outcome import Outcome, note_outcome


class FailedBegin:
    """The error of the first record of a transaction, until a savepoint from before it is rolled back.

    There is no record buffer that could remember it, so the savepoints are followed by Django's names.
    """

    def __init__(self, error: BaseException) -> None:
        self._error = error
        note_outcome(error, Outcome.ROLLED_BACK)
        self._later: set[str] = set()

    def savepoint(self, name: str) -> None:
        """Note a savepoint that was set after the failure, so that rolling back to it does not undo that."""
        self._later.add(name)

    def is_undone_by(self, name: str) -> bool:
        """Return whether rolling back to a savepoint undoes all that the record was to be published with."""
        return name not in self._later

    def doomed(self) -> TransactionDoomedError:
        """Return the error for a COMMIT of the transaction."""
        doomed = TransactionDoomedError(
            f"a record was not accepted, because its dual write could not begin ({type(self._error).__name__}), and "
            "the error was swallowed; neither database nor Kafka is changed: let the error end the block, or send in "
            "an inner transaction.atomic() that it ends"
        )
        doomed.__cause__ = self._error
        note_outcome(doomed, Outcome.ROLLED_BACK)
        return doomed
