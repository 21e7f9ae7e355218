"""Classify and describe database errors by the exceptions of their drivers; imports no driver."""

from __future__ import annotations

import logging
from typing import Final

from dualwrite.errors import IllegalStateError, TransactionDoomedError, TransactionEndedInsideError
from dualwrite.recipes.core.store import owner_of

# SQLSTATE (PostgreSQL and others): serialization_failure, deadlock_detected
_SQLSTATES: Final = frozenset({"40001", "40P01"})
# MySQL, MariaDB: ER_LOCK_DEADLOCK, and ER_CHECKREAD for a row that changed after the snapshot
_MYSQL_NUMBERS: Final = frozenset({1213, 1020})
# SQLite: SQLITE_BUSY and its extended codes, of which SQLITE_BUSY_SNAPSHOT never ends by waiting
_SQLITE_BUSY: Final = 5

MYSQL_DRIVERS: Final = frozenset({"pymysql", "MySQLdb", "mysql", "mariadb", "asyncmy", "aiomysql"})


def is_conflict(error: BaseException) -> bool:
    """Return whether the same transaction may succeed: after a serialization failure or a deadlock."""
    return _is_conflict(error) or (error.__cause__ is not None and _is_conflict(error.__cause__))


def _is_conflict(error: BaseException) -> bool:
    error = driver_error(error)
    sqlstate = sqlstate_of(error)
    if sqlstate is not None:
        return sqlstate in _SQLSTATES
    sqlite_code = getattr(error, "sqlite_errorcode", None)
    if sqlite_code is not None:
        return bool(sqlite_code & 0xFF == _SQLITE_BUSY)
    number = error.args[0] if error.args else None
    return driver_of(error) in MYSQL_DRIVERS and number in _MYSQL_NUMBERS


def driver_error(error: BaseException) -> BaseException:
    """Return the driver's error that SQLAlchemy's wraps, or `error` itself."""
    return getattr(error, "orig", None) or error


def sqlstate_of(error: BaseException) -> str | None:
    found: str | None = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return found


def driver_of(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message: drivers quote the statement below it."""
    return str(driver_error(error)).strip().partition("\n")[0]


def warn_of_drop(log: logging.Logger, transactional_id: str | None, what: str, error: BaseException) -> None:
    """Log in one line that `what` failed and its connection is dropped, which is harmless."""
    log.warning(
        "%s: %s failed (%s); dropping its connection; the database rolls back its open transaction",
        owner_of(transactional_id),
        what,
        first_line(error) or type(error).__name__,
    )
    log.debug("The error after which a connection was dropped:", exc_info=error)


# ---- blocks that cannot go on, on any driver -----------------------------------------------------------------------


def partly_failed(failure: BaseException | None, savepoint: str) -> TransactionDoomedError:
    """Return the error of a dual write of which a part has failed; `savepoint` is the call that sets one."""
    what = "" if failure is None else f" ({type(failure).__name__})"
    error = TransactionDoomedError(
        f"a part of this dual write failed{what} and its error was swallowed; neither database nor Kafka was changed: "
        f"let the error end the block, or run a statement that may fail in a savepoint ({savepoint})"
    )
    error.__cause__ = failure
    return error


def inside_another() -> IllegalStateError:
    return IllegalStateError(
        "this connection already carries a dual write, and its transaction cannot decide a second one; nothing was "
        "written: send all records in one block"
    )


def closed_inside() -> TransactionEndedInsideError:
    return TransactionEndedInsideError(
        "the connection of the dual write was closed or lost inside the block, and its transaction with it; "
        "neither database nor Kafka was changed"
    )
