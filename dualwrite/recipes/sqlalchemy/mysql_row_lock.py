"""MySQL's and MariaDB's lock on the state row, and the proof that a transaction is still the one that began."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.database_errors import driver_error, is_conflict
from dualwrite.recipes.sql.transaction_control import Savepoint, Step
from dualwrite.recipes.sqlalchemy.own_statements import cached_text

LOCK_WAIT_TIMEOUT: Final = 1205
LOCK_NOWAIT: Final = 3572
LOCK_TIMEOUTS: Final = frozenset({LOCK_WAIT_TIMEOUT, LOCK_NOWAIT})
"""Error numbers for a lock that was not free in time; MariaDB uses the first for NOWAIT too."""

INSERT_TIMEOUT_MS: Final = 2_000

WITNESS_ID: Final = "dualwrite/witness"
"""A row without a transactional id: changing it makes a commit that comes after everything visible.

In the server's log, and in the log of a replica that confirms it, a commit comes after everything its transaction has
seen. It needs a separate row, because the caller holds the lock on the row in question.
"""

_NO_SUCH_SAVEPOINT: Final = 1305
_POLL_MS: Final = 20


def error_code(error: BaseException) -> int | None:
    """Return the server's error number: the first argument in every MySQL driver."""
    arguments = driver_error(error).args
    return arguments[0] if arguments and isinstance(arguments[0], int) else None


def lock_row(connection: sa.Connection, select: str, row: Mapping[str, str], timeout_ms: int | None) -> str | None:
    """Lock the row that `select` finds, and return its value, or None if there is no row.

    A locking read returns the newest row, even under REPEATABLE READ, whose plain reads return an older one.
    """

    def lock(how: str) -> str | None:
        value: str | None = connection.scalar(cached_text(f"{select} FOR UPDATE{how}"), row)
        return value

    if timeout_ms is None:
        return lock("")
    whole_s, rest_ms = divmod(timeout_ms, 1000)
    if not _can_skip(connection.dialect):
        with lock_wait_limit(connection, timeout_ms):
            return lock("")
    value = lock(" SKIP LOCKED")
    while value is None and rest_ms > 0:  # the server itself counts in whole seconds only
        connection.exec_driver_sql(f"DO SLEEP({min(rest_ms, _POLL_MS) / 1000})")
        rest_ms -= _POLL_MS
        value = lock(" SKIP LOCKED")
    if value is not None:
        return value
    if whole_s == 0:
        return lock(" NOWAIT")  # no row, or no lock?
    with lock_wait_limit(connection, whole_s * 1000):
        return lock("")


def _can_skip(dialect: sa.Dialect) -> bool:
    since = (10, 6) if getattr(dialect, "is_mariadb", False) else (8, 0, 1)
    return (dialect.server_version_info or ()) >= since


@contextmanager
def lock_wait_limit(connection: sa.Connection, timeout_ms: int = INSERT_TIMEOUT_MS) -> Iterator[None]:
    """Limit waits for locks, to `INSERT_TIMEOUT_MS` where this process itself may hold them.

    Under REPEATABLE READ a SKIP LOCKED that finds no row locks the gap behind the row. So a dual write of a pool that
    had to wait for a slot, and then lost it, would wait for its own transaction when it inserts a row: a deadlock
    invisible to the server. The session's setting outlives a transaction, so it is restored.
    """
    before = connection.exec_driver_sql("SELECT @@SESSION.innodb_lock_wait_timeout").scalar()
    connection.exec_driver_sql(f"SET SESSION innodb_lock_wait_timeout = {max(-(-timeout_ms // 1000), 1)}")
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(f"SET SESSION innodb_lock_wait_timeout = {before}")


# ---- the mark -------------------------------------------------------------------------------------------------------

MARK: Final = "dualwrite_block"
"""The savepoint that exists if, and only if, the transaction in which it was set is still running.

A savepoint ends with its transaction: with COMMIT, with ROLLBACK however it was sent, with the implicit commit of DDL
and with the implicit rollback of a deadlock, even if a driver reports that only when it closes a cursor, and a library
ignores it.
"""

SET_MARK: Final = f"SAVEPOINT {MARK}"

MARK_IS_GONE: Final = (
    "the transaction in which this block began was ended inside the block, by a statement that bypassed the dual write "
    "or by the server (a deadlock whose error was swallowed); Kafka was not changed, and the database keeps only "
    "changes that a COMMIT made permanent: let errors end the block, and let the dual write end its transaction"
)


def is_still_marked(connection: sa.Connection) -> bool:
    """Return whether the marked transaction is still running, and release the mark."""
    try:
        connection.exec_driver_sql(f"RELEASE SAVEPOINT {MARK}")
    except DBAPIError as error:
        if error_code(error) != _NO_SUCH_SAVEPOINT:
            raise
        return False
    return True


def takes_the_mark(savepoint: Savepoint, records: RecordBuffer) -> bool:
    """Return whether releasing, or rolling back to, a savepoint has ended the mark, because the mark is later.

    The savepoint then proves the same as the mark, which is to be set anew. To be called before `records` follow.
    """
    return savepoint.step is not Step.SET and savepoint.name != MARK and not records.knows_savepoint(savepoint.name)


# ---- a transaction that was rolled back before a dual write began in it ---------------------------------------------

_UNDONE: Final = "_dualwrite_undone"


def note_undone(owner: Any, error: BaseException, transaction: object = None) -> None:
    """Note in `owner` an error with which the server may have rolled the whole transaction back.

    Later statements are in a new one, and nothing says so. Of lock timeouts the first is noted: it stands for all.
    """
    undoes = is_conflict(error)
    if undoes or (error_code(error) == LOCK_WAIT_TIMEOUT and _noted(owner, transaction) is None):
        vars(owner)[_UNDONE] = transaction, error


def forget_undone(owner: Any) -> None:
    vars(owner).pop(_UNDONE, None)


def undone_by(owner: Any, connection: sa.Connection, transaction: object = None) -> BaseException | None:
    """Return the error with which the server has rolled the transaction back, None if it has not."""
    error = _noted(owner, transaction)
    if error is None or is_conflict(error):
        return error
    return error if connection.exec_driver_sql("SELECT @@innodb_rollback_on_timeout").scalar() else None


def _noted(owner: Any, transaction: object) -> BaseException | None:
    of, error = vars(owner).get(_UNDONE, (None, None))
    return error if of is transaction else None
