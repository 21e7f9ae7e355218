"""What a database must be able to do to take the decision of a dual write."""

from __future__ import annotations

from typing import Protocol, TypeVar

from dualwrite.prepared_state import PreparedTxnState

TransactionT_contra = TypeVar("TransactionT_contra", contravariant=True)


class PreparedStateStore(Protocol[TransactionT_contra]):
    """One row per transactional id, read and written inside the caller's own database transaction.

    Two promises make the dual write safe. First, `lock` excludes every other transaction that locks the same id until
    this transaction ends, however it ends. Second, what `write` wrote becomes visible exactly when the rest of
    the transaction does.
    """

    def ensure_row(self, transactional_id: str) -> None:
        """Create the row, empty, in a transaction of its own; harmless when it exists."""

    def lock(
        self, transaction: TransactionT_contra, transactional_id: str, *, timeout_ms: int | None
    ) -> PreparedTxnState:
        """Lock the row until the end of `transaction` and return the state in it.

        Waits `timeout_ms` at the most (None: as long as the database is set to). Raises RowLockTimeoutError, and
        StateRowError where there is no row.
        """

    def read(self, transaction: TransactionT_contra, transactional_id: str) -> PreparedTxnState:
        """Read the row again, as it is now, inside the `transaction` that has it locked; fails where that is over."""

    def write(
        self,
        transaction: TransactionT_contra,
        transactional_id: str,
        *,
        previous: PreparedTxnState,
        new: PreparedTxnState,
    ) -> None:
        """Replace `previous` by `new`.

        Raises StateRowError where `previous` is not what the row holds, or `transaction` not the one that locked it.
        """
