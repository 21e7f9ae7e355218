"""What a database must be able to do to take the decision of a dual write.

The methods are coroutines so that the steps of a dual write are written once (`coordinator.py`). Where the database is
reached by blocking calls, they never suspend, and `blocking.run` carries them out without a loop.
"""

from __future__ import annotations

from typing import Protocol

from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.sql.database_identity import DatabaseIdentity


class DatabaseTransaction(Protocol):
    """One database transaction, and the state rows as seen inside it.

    Two promises make the dual write safe. First, once `lock` has returned, no other transaction that had locked the
    same id before can be committed any more, so that what the row says is final for all of them; and whoever locks it
    later does the same to this one. A row lock keeps that by letting them wait until this transaction has ended,
    however it ends; a store without such locks by a version that each `lock` changes and each `commit` compares.
    Second, what `write` wrote becomes visible exactly when the rest of the transaction does.
    """

    @property
    def commit_was_sent(self) -> bool:
        """Whether COMMIT may have reached the database; while it has not, a rollback is certain."""

    @property
    def can_lock_and_write(self) -> bool:
        """Whether `lock_and_write` may return True; asked before the work that it needs."""

    def doom(self, error: BaseException) -> None:
        """From now on this transaction can only be rolled back, even if `error` is swallowed."""

    def assert_intact(self) -> None:
        """Raise a RecipeError or IllegalStateError where this transaction cannot be the decision."""

    async def flush(self) -> None:
        """Send what is held back. Raises what the database says to it."""

    async def lock(self, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        """Lock the row until the end of the transaction and return the state in it.

        Waits `timeout_ms` at the most (None: as long as the database is set to). Raises RowLockTimeoutError, and
        StateRowError where there is no row.
        """

    async def read(self, transactional_id: str) -> PreparedTxnState:
        """Read the locked row again, as it is now; fails where the transaction that locked it is over."""

    async def write(self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState) -> None:
        """Replace `previous` by `new`.

        Raises StateRowError where `previous` is not what the row holds, or this transaction not the one that locked it.
        """

    async def lock_and_write(self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState) -> bool:
        """`lock` and `write` at once, where that saves a statement: `commit` then proves that the lock was held until
        then, and `write` may replace `new` again.

        False, and nothing is done, where the row is locked or does not hold `previous`, or where `commit` could prove
        nothing.
        """

    async def commit(self) -> None:
        """Send COMMIT. What it raises after `commit_was_sent` leaves an outcome that must be read from the row."""

    async def rollback(self) -> None:
        """Roll back, if it takes dropping the connection. Raises no database error: what is unreachable is dropped."""

    async def close(self) -> None:
        """Give back what this transaction opened."""

    def close_at_once(self) -> bool:
        """`close`, where that waits for nothing. Return False, and do nothing, where it would have to wait."""


class Database(Protocol):
    """Where the state rows are."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What it raises when it cannot be reached or refuses a statement."""

    async def ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        """Create the row, empty, in a transaction of its own; harmless when it exists.

        Returns what this database adds to its transactional ids, which is asked once. Raises DatabaseMovedError where
        the rows were made in another database.
        """

    async def begin(self) -> DatabaseTransaction:
        """A transaction of its own, on a connection of its own."""

    async def make_durable(self, transactional_id: str, row: PreparedTxnState, *, timeout_ms: int) -> None:
        """Return once the row, which was read as `row`, can be lost by nothing that the database promises to survive.

        What can be read is not always durable: a COMMIT whose wait for a synchronous standby was cancelled, or whose
        server was restarted meanwhile, shows on the primary only. Where that can be, this commits a change of its own
        after it has seen `row`, on a connection that waits for nobody, and relies on that commit alone.

        Raises NotDurableError where that is not so within `timeout_ms`, and the database's own errors.
        """
