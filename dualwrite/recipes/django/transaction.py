"""The dual write of one transaction of a Django connection.

It runs on Django's driver connection, as a block of a pool runs on its caller's connection, but Django ends it:
`wrapper.py` calls `decide` where Django would send COMMIT, and `drop` where it would send ROLLBACK.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from django.db.backends.base.base import BaseDatabaseWrapper

from dualwrite.errors import DualWriteError, IllegalStateError, TransactionDoomedError
from dualwrite.outcome import Outcome, note_outcome
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.buffer import BufferedRecord, RecordBuffer
from dualwrite.recipes.core.dual_write import (
    DualWrite,
    DualWriteProgress,
    commit_at_end,
    commit_database_alone,
    flush_block,
    note_rollback,
    roll_back_database,
)
from dualwrite.recipes.core.store import DatabaseTransaction
from dualwrite.recipes.writer import ThreadWriter

_log = logging.getLogger(__name__)

Pool = ThreadWriter[Any, Any]
"""The pool of transactional ids of one process and database."""


class Begun(DatabaseTransaction, Protocol):
    """A transaction whose COMMIT will be a dual write: it is followed on Django's connection."""

    def assert_intact(self) -> None:
        """Raise a RecipeError or IllegalStateError if the transaction cannot be the decision."""

    def let_go(self) -> None:
        """Give the connection back to Django, which rolls back."""


class DjangoDualWrite(DualWrite):
    """The dual write of one database transaction, from its first record on; `commit` ends it."""

    def __init__(
        self, begun: Begun, records: RecordBuffer, commit: Callable[[DualWriteProgress], Coroutine[Any, Any, None]]
    ) -> None:
        super().__init__(begun, records)
        self._followed = begun
        self._commit = commit
        self._process_id = os.getpid()
        self._has_left = False
        """Whether Django has its connection back."""

    @property
    def belongs_to_the_parent(self) -> bool:
        """Whether this is a forked child, which shares the socket of the transaction."""
        return os.getpid() != self._process_id

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to end: Django has its connection back, or it is the parent's."""
        return self._has_left or self.belongs_to_the_parent

    def assert_intact(self) -> None:
        self._followed.assert_intact()

    @property
    def was_undone(self) -> bool:
        """Whether a savepoint from before the first record was rolled back, and everything after it.

        The mark of the transaction is gone too, so a later record needs a new dual write. A failure that dooms the
        transaction in spite of such a rollback, such as a refused COMMIT of the block, stays with this one.
        """
        records = self.progress.records
        if records or not records.rolled_back_beyond:
            return False
        try:
            self._followed.assert_intact()
        except DualWriteError:
            return False
        return True

    @property
    def entries(self) -> list[BufferedRecord]:
        return self.progress.records.records

    def decide(self) -> None:
        """Commit both sides, because Django commits. On an error both are rolled back, or the outcome is unknown."""
        if self.belongs_to_the_parent:
            raise IllegalStateError(_OF_THE_PARENT)
        write = self.progress
        try:
            blocking.run(commit_at_end(write, self._commit))
        except BaseException as error:
            if write.outcome is None and not write.database.commit_was_sent:
                blocking.run(roll_back_database(write))
            self.tell(error)
            raise
        finally:
            self.leave()

    def drop(self) -> None:
        """Drop the records, because the transaction is rolled back; the connection is Django's again."""
        records = self.progress.records
        if records:
            _log.debug("%d records are dropped, because their database transaction is rolled back", len(records))
        if self.belongs_to_the_parent:
            self.progress.outcome = Outcome.ROLLED_BACK
            self.leave()
        else:
            self._followed.let_go()
            if not self.progress.database.commit_was_sent:
                note_rollback(self.progress)
            records.close()
            self._has_left = True

    def leave(self) -> None:
        """Give the connection back to Django; harmless when repeated."""
        self.progress.records.close()
        blocking.run(self.progress.database.close())
        self._has_left = True


captured: Final[dict[str, list[list[BufferedRecord]]]] = {}
"""By alias, the lists of the open `captured_records()`, for all threads: a live server has its own."""

_NEVER_COMMITTED: Final[list[BufferedRecord]] = []
"""Stands for a list of the records of the transaction around a TestCase."""


def capture_of(connection: BaseDatabaseWrapper) -> list[BufferedRecord] | None:
    """Return the list for a transaction that sends its first record now; None if its records are published."""
    if any(getattr(atomic, "_from_testcase", False) for atomic in connection.atomic_blocks):
        return _NEVER_COMMITTED
    lists = captured.get(connection.alias)
    return lists[-1] if lists else None


async def commit_captured(kept: list[BufferedRecord], write: DualWriteProgress) -> None:
    """Commit the transaction of a test, whose records are kept and not published; Kafka is not needed."""
    if kept is _NEVER_COMMITTED:
        raise IllegalStateError(_OF_A_TEST)
    await flush_block(write)
    await commit_database_alone(write)
    kept.extend(write.records.records)


class FailedBegin:
    """The error with which the dual write of a transaction could not begin, until an earlier savepoint is rolled back.

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
        doomed = TransactionDoomedError(
            f"a record was not accepted because of an error ({type(self._error).__name__}), and "
            "the error was swallowed; neither database nor Kafka is changed: let the error end the block, or send "
            "inside an inner transaction.atomic()"
        )
        doomed.__cause__ = self._error
        note_outcome(doomed, Outcome.ROLLED_BACK)
        return doomed


_OF_THE_PARENT: Final = (
    "this database transaction belongs to the process that forked; nothing was written here: let the parent end it, "
    "and use a new connection in the child"
)
_OF_A_TEST: Final = (
    "records were sent in the transaction around a TestCase, and that transaction is being committed, which would lose "
    "them; neither side was changed: use TransactionTestCase for code that commits"
)
