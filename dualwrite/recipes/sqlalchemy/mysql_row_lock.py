"""MySQL's and MariaDB's lock on the state row, and the proof that the locking transaction is still running."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

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
_MARK: Final = "dualwrite_row_lock"
_POLL_MS: Final = 20


def error_code(error: DBAPIError) -> int | None:
    """Return the server's error number: the first argument in every MySQL driver."""
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None


def lock_row(connection: sa.Connection, select: str, row: Mapping[str, str], timeout_ms: int | None) -> str | None:
    """Lock the row that `select` finds, mark the transaction, and return the row's value, or None if there is no row.

    A locking read returns the newest row, even under REPEATABLE READ, whose plain reads return an older one.
    """
    value = _locked(
        lambda how: connection.scalar(cached_text(f"{select} FOR UPDATE{how}"), row), connection, timeout_ms
    )
    connection.exec_driver_sql(f"SAVEPOINT {_MARK}")
    return value


def _locked(lock: Callable[[str], str | None], connection: sa.Connection, timeout_ms: int | None) -> str | None:
    if timeout_ms is None:
        return lock("")
    whole_s, rest_ms = divmod(timeout_ms, 1000)
    if not _can_skip(connection.dialect):
        with _lock_wait_limit(connection, whole_s + bool(rest_ms)):
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
    with _lock_wait_limit(connection, whole_s):
        return lock("")


def _can_skip(dialect: sa.Dialect) -> bool:
    since = (10, 6) if getattr(dialect, "is_mariadb", False) else (8, 0, 1)
    return (dialect.server_version_info or ()) >= since


@contextmanager
def _lock_wait_limit(connection: sa.Connection, timeout_s: int) -> Iterator[None]:
    """Limit how long statements wait for locks. The session's setting outlives a transaction, so it is restored."""
    before = connection.exec_driver_sql("SELECT @@SESSION.innodb_lock_wait_timeout").scalar()
    connection.exec_driver_sql(f"SET SESSION innodb_lock_wait_timeout = {max(timeout_s, 1)}")
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(f"SET SESSION innodb_lock_wait_timeout = {before}")


def lock_wait_limit(connection: sa.Connection, timeout_ms: int = INSERT_TIMEOUT_MS) -> AbstractContextManager[None]:
    """Limit waits for locks, to `INSERT_TIMEOUT_MS` where this process itself may hold them.

    Under REPEATABLE READ a SKIP LOCKED that finds no row locks the gap behind the row. So a dual write of a pool that
    had to wait for a slot, and then lost it, would wait for its own transaction when it inserts a row: a deadlock
    invisible to the server.
    """
    return _lock_wait_limit(connection, -(-timeout_ms // 1000))


def is_still_locked(connection: sa.Connection) -> bool:
    """Return whether the transaction that locked the row is still running."""
    return is_still_marked(connection, _MARK)


def is_still_marked(connection: sa.Connection, savepoint: str) -> bool:
    """Return whether the transaction that set the savepoint is still running, and release the savepoint.

    A savepoint ends with its transaction: with COMMIT, with ROLLBACK however it was sent, with the implicit commit of
    DDL and with the implicit rollback of a deadlock. So its existence rules all of these out.
    """
    try:
        connection.exec_driver_sql(f"RELEASE SAVEPOINT {savepoint}")
    except DBAPIError as error:
        if error_code(error) != _NO_SUCH_SAVEPOINT:
            raise
        return False
    return True
