"""The state row of a transactional id, whatever database it is in: what fits into it, and what is said of a wrong one.

The row holds the prepared state of the last dual write that the database committed under the id (KIP-939's recipe).
"""

from __future__ import annotations

from typing import Final

from dualwrite.errors import NotDurableError, RowLockTimeoutError, StateRowError
from dualwrite.prepared_state import PreparedTxnState

MAX_TRANSACTIONAL_ID_LENGTH: Final = 255
"""In characters; Kafka itself allows more, but some databases have no longer primary keys."""


def owner_of(transactional_id: str | None) -> str:
    """Whose database transaction it is, as log lines begin; None before it has asked for a row."""
    return "a dual write before its lock" if transactional_id is None else f"transactional id {transactional_id}"


def state_in(transactional_id: str, text: str | None) -> PreparedTxnState:
    """What a locked row says. Raises StateRowError for None, which stands for no row, and for what is no state."""
    if text is None:
        raise StateRowError(
            f"kafka_transaction_state has no row for transactional id {transactional_id!r}; nothing was written: "
            "it was deleted after this writer had created it, and must not be while the id is in use; or this "
            "transaction reads a snapshot from before it was created: then begin a new one"
        )
    try:
        return PreparedTxnState(text)
    except ValueError as error:
        raise StateRowError(
            f"kafka_transaction_state cannot be read for transactional id {transactional_id!r}: {error}; nothing was "
            "written: something else writes to this table. Put back what stood there, or, where `dualwrite top` shows "
            "nothing open under this id, an empty text"
        ) from error


def not_exact(transactional_id: str, found: str) -> StateRowError:
    """The database takes another id for this one, by its collation."""
    return StateRowError(
        f"kafka_transaction_state takes transactional id {transactional_id!r} for {found!r}, so that both would share "
        "a row; nothing was written: give the column transactional_id a collation that compares exactly (MySQL: "
        "utf8mb4_bin)"
    )


def missing_table(table: str, *, otherwise: str, option: str = "") -> StateRowError:
    """`otherwise`: what makes it where the command `dualwrite` is not at hand; `option` of the command."""
    return StateRowError(
        f"the table {table} does not exist in this database; nothing was written: create it with "
        f"`dualwrite init-db{option}` or {otherwise}"
    )


def stayed_locked(transactional_id: str, timeout_ms: int | None) -> RowLockTimeoutError:
    """The lock was not free in time."""
    return RowLockTimeoutError(
        f"the state row of transactional id {transactional_id!r} stayed locked for {timeout_ms} ms by another "
        "database transaction; nothing was decided or written: try again when its owner has finished or died"
    )


def not_durable(transactional_id: str, row: PreparedTxnState, why: str) -> NotDurableError:
    """What the row says was not confirmed to outlast a failure."""
    return NotDurableError(
        f"transactional id {transactional_id!r}: the database shows the decision {row}, and whether it is durable is "
        f"not known ({why}); Kafka was told nothing, nothing else was written, and the transaction stays in doubt "
        "until the id is next used or recovered: let the synchronous standby come back, or take it out of "
        "synchronous_standby_names"
    )


def wait_given_up(transactional_id: str | None) -> NotDurableError:
    """COMMIT was carried out on the primary, and answered before a synchronous standby had it."""
    return NotDurableError(
        f"{owner_of(transactional_id)}: the wait of COMMIT for a synchronous standby was cancelled, so that it is in "
        "effect on the primary and a failover may lose it; Kafka is not told before it is durable"
    )


def not_as_locked(transactional_id: str, previous: PreparedTxnState, *, past: str) -> StateRowError:
    """The row changed under the lock, or the lock is gone; `past` names the library that would have refused it."""
    return StateRowError(
        f"the state row of transactional id {transactional_id!r} no longer holds {str(previous)!r} under the "
        "lock of this transaction, so the dual write was given up: something writes to this table, or sent "
        f"COMMIT or ROLLBACK past {past}; a COMMIT has made the statements before it permanent, without "
        "the records"
    )
