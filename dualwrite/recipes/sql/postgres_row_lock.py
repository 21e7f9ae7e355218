"""How PostgreSQL locks the state row, as statements that somebody carries out; parameters are written `:name`."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final

from dualwrite.recipes.sql.pinned_tables import OID

SAME_TABLE: Final = f"kafka_transaction_state.tableoid = {OID}"
"""Not of a table that was made after the one that was pinned."""

SELECT: Final = (
    f"SELECT prepared_transaction_state FROM kafka_transaction_state WHERE transactional_id = :id AND {SAME_TABLE}"
)
SELECT_LOCKED: Final = f"{SELECT} FOR UPDATE"

STILL_HELD: Final = (
    "CASE WHEN kafka_transaction_state.xmax = CAST(pg_current_xact_id() AS xid) THEN true ELSE EXISTS ("
    "SELECT 1 FROM pg_locks WHERE pg_locks.locktype = 'transactionid' AND pg_locks.pid = pg_backend_pid()"
    " AND pg_locks.granted AND pg_locks.transactionid = kafka_transaction_state.xmax) END"
)
"""True of the row where the present transaction has locked it.

A locked row names its locker in `xmax`. So the last statement of a dual write can prove that the transaction which
locked the row is still the one that runs, even where somebody sent ROLLBACK as a text or through a forked process.
After a savepoint that was not released the locker is a subtransaction, whose id only this backend holds a lock on.
"""

MARK: Final = "dualwrite.transaction"
"""A setting that lives as long as the transaction in which it was made, and is undone by a savepoint from before it.

So the last statement can prove that the transaction is still the one in which the block began, whatever was sent by
whatever way.
"""

MARK_ATTRIBUTE: Final = "_dualwrite_mark"
"""Of a driver's connection: the mark of the transaction that it began last, where that has one."""

IS_MARKED: Final = f"(:mark = '' OR current_setting('{MARK}', true) = :mark)"
"""True in the transaction that bears `:mark`; and where that is empty, because it could not be set."""

LOCK_NOT_AVAILABLE: Final = "55P03"
"""The SQLSTATE of a lock that was not free in time."""

UNDEFINED_TABLE: Final = "42P01"
"""The SQLSTATE of a table that is not there (any more)."""

_FREE: Final = f"{SELECT_LOCKED} SKIP LOCKED"
_LOCK_TIMEOUT: Final = "SELECT current_setting('lock_timeout')"
_SET_LOCK_TIMEOUT: Final = "SELECT set_config('lock_timeout', :value, true)"

Statement = tuple[str, Mapping[str, str]]
"""SQL and its parameters."""


def lock_row(transactional_id: str, timeout_ms: int | None) -> Generator[Statement, str | None, str | None]:
    """Yields statements and is sent the one value that each gives; returns the row's text, None where there is no row.

    The statements are to be carried out as `PinnedTables.sql` writes them.

    SKIP LOCKED first, because it neither waits nor fails the transaction; then wait with a time limit, after which the
    transaction's own is put back.
    """
    row = {"id": transactional_id}
    free = yield _FREE, row
    if free is not None:
        return free
    if timeout_ms is None:
        return (yield SELECT_LOCKED, row)
    before = yield _LOCK_TIMEOUT, {}
    yield _SET_LOCK_TIMEOUT, {"value": f"{max(timeout_ms, 1)}ms"}  # 0 would mean to wait for ever
    waited_for = yield SELECT_LOCKED, row
    yield _SET_LOCK_TIMEOUT, {"value": str(before)}
    return waited_for
