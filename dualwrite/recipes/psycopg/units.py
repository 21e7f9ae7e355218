"""Units of work of several callers in one database transaction, one after the other; each may fail by itself."""

from __future__ import annotations

from typing import Final, Self

from dualwrite.errors import IllegalStateError
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.psycopg.adapter import PsycopgTransaction

# PostgreSQL keeps 64 subtransactions of a transaction at hand for all other sessions; with more of them every snapshot
# of every session becomes slower.
MOST_UNITS: Final = 64


class UnitsOfWork:
    """The units in one transaction. Each but the first has a savepoint before it; the first has the transaction."""

    def __init__(self, transaction: PsycopgTransaction, records: RecordBuffer) -> None:
        self._transaction = transaction
        self._records = records
        self._stands = False
        """Whether the newest savepoint is where a unit was undone: it serves the next one too."""
        self._savepoints = 0
        self.begun = 0

    @classmethod
    def of(cls, write: DualWrite) -> Self:
        """Return the units of one dual write, none so far."""
        transaction = write.progress.database
        assert isinstance(transaction, PsycopgTransaction)
        return cls(transaction, write.progress.records)

    @property
    def has_room(self) -> bool:
        """Whether what another unit may send is not refused because of what these have sent."""
        return not self._records.is_half_full

    async def begin(self) -> None:
        """The next unit begins here."""
        if self._needs_savepoint:
            await self._transaction.savepoint(self._next_savepoint)
        self._has_begun()

    def begin_at_once(self) -> bool:
        """The same, where nothing has to be waited for. False: nothing is done."""
        if self._needs_savepoint and not self._transaction.savepoint_ahead(self._next_savepoint):
            return False
        self._has_begun()
        return True

    @property
    def _needs_savepoint(self) -> bool:
        return self.begun > 0 and not self._stands

    def _has_begun(self) -> None:
        if self._needs_savepoint:
            self._savepoints += 1
            self._records.savepoint(self._savepoint)
        self.begun += 1
        self._stands = False

    # Each has a name of its own: where one could not be set, rolling back to it must fail, and not undo another unit.

    @property
    def _savepoint(self) -> str:
        return f"dualwrite_unit_{self._savepoints}"

    @property
    def _next_savepoint(self) -> str:
        return f"dualwrite_unit_{self._savepoints + 1}"

    def assert_intact(self) -> None:
        """Raise a RecipeError or IllegalStateError where a part of the unit failed and that was swallowed."""
        self._transaction.assert_intact()

    async def undo(self) -> bool:
        """Take the unit that ended last back, statements and records. False: the transaction has no other one.

        Raises IllegalStateError where a statement of the unit is still under way, and psycopg's errors: then nothing
        of the transaction can go on.
        """
        if self.begun == 1:
            return False
        if self._transaction.is_busy:
            raise IllegalStateError(_UNFINISHED)
        await self._transaction.roll_back_to_savepoint(self._savepoint)
        self._records.roll_back_to_savepoint(self._savepoint)
        self._transaction.forgive()
        self._stands = True
        return True


_UNFINISHED: Final = (
    "another unit of this group ended while a COPY, a stream or another statement of it was under way; neither "
    "database nor Kafka was changed: finish such things inside the unit, and repeat this one"
)
