"""The dual write of one transaction of a Django connection.

It runs on Django's driver connection, as a block of a pool runs on its caller's connection, but Django ends it:
`wrapper.py` calls `decide` where Django would send COMMIT, and `drop` where it would send ROLLBACK.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

from dualwrite.errors import DualWriteError, IllegalStateError
from dualwrite.outcome import Outcome
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

Captured = Callable[[Iterable[BufferedRecord]], object]
"""Called with the records of a committed transaction instead of publishing them."""


class Followed(Protocol):
    """Tracks the transaction of a driver's connection from its first record on."""

    def assert_intact(self) -> None:
        """Raise a RecipeError or IllegalStateError if the transaction cannot be the decision."""

    def let_go(self) -> None:
        """Give the connection back to Django, which rolls back."""


class Begun(NamedTuple):
    """A transaction whose COMMIT will be a dual write."""

    steps: DatabaseTransaction
    followed: Followed


class DjangoDualWrite(DualWrite):
    """The dual write of one database transaction, from its first record on."""

    def __init__(self, begun: Begun, records: RecordBuffer) -> None:
        super().__init__(begun.steps, records)
        self._followed = begun.followed
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
        """The records so far, without rolled back ones."""
        return self.progress.records.records

    def decide(self) -> None:
        """Commit both sides, because Django commits. On an error both are rolled back, or the outcome is unknown."""
        if self.belongs_to_the_parent:
            raise IllegalStateError(_OF_THE_PARENT)
        write = self.progress
        try:
            blocking.run(commit_at_end(write, self._commit_records))
        except BaseException as error:
            if write.outcome is None and not write.database.commit_was_sent:
                blocking.run(roll_back_database(write))
            self.tell(error)
            raise
        finally:
            self.leave()

    async def _commit_records(self, write: DualWriteProgress) -> None:
        raise NotImplementedError

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


class PublishedWrite(DjangoDualWrite):
    """A dual write under a transactional id of the process's pool."""

    def __init__(self, begun: Begun, records: RecordBuffer, pool: Pool) -> None:
        super().__init__(begun, records)
        self._slots = pool.slots

    async def _commit_records(self, write: DualWriteProgress) -> None:
        await self._slots.commit_in_turn(write)


class CapturedWrite(DjangoDualWrite):
    """A transaction of a test, whose records are kept for the test and not published; Kafka is not needed."""

    def __init__(self, begun: Begun, records: RecordBuffer, captured: Captured | None = None) -> None:
        """Begin; `captured` receives the records, or is None in a transaction that the test never commits."""
        super().__init__(begun, records)
        self._captured = captured

    async def _commit_records(self, write: DualWriteProgress) -> None:
        if self._captured is None:
            raise IllegalStateError(_OF_A_TEST)
        await flush_block(write)
        await commit_database_alone(write)
        self._captured(self.entries)


_OF_THE_PARENT: Final = (
    "this database transaction belongs to the process that forked; nothing was written here: let the parent end it, "
    "and use a new connection in the child"
)
_OF_A_TEST: Final = (
    "records were sent in the transaction around a TestCase, and that transaction is being committed, which would lose "
    "them; neither side was changed: use TransactionTestCase for code that commits"
)
