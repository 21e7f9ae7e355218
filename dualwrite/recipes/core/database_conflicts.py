"""Which of a database's refusals are about others, so that the same transaction may succeed when it is repeated.

Drivers alone are looked at: nothing here needs SQLAlchemy.
"""

from __future__ import annotations

from typing import Final

# SQLSTATE (PostgreSQL and others): serialization_failure, deadlock_detected
_SQLSTATES: Final = frozenset({"40001", "40P01"})
# MySQL, MariaDB: ER_LOCK_DEADLOCK, and ER_CHECKREAD for what changed after a snapshot
_MYSQL_NUMBERS: Final = frozenset({1213, 1020})
# SQLite: SQLITE_BUSY in any of its kinds, of which SQLITE_BUSY_SNAPSHOT never goes by waiting
_SQLITE_BUSY: Final = 5

MYSQL_DRIVERS: Final = frozenset({"pymysql", "MySQLdb", "mysql", "mariadb", "asyncmy", "aiomysql"})


def is_conflict(error: BaseException) -> bool:
    """Whether `error`, or what it was raised from, is a serialization failure or a deadlock."""
    return _says_conflict(error) or (error.__cause__ is not None and _says_conflict(error.__cause__))


def _says_conflict(error: BaseException) -> bool:
    said = getattr(error, "orig", None) or error  # SQLAlchemy's wraps what the driver raised
    sqlstate = sqlstate_of(said)
    if sqlstate is not None:
        return sqlstate in _SQLSTATES
    sqlite_code = getattr(said, "sqlite_errorcode", None)
    if sqlite_code is not None:
        return bool(sqlite_code & 0xFF == _SQLITE_BUSY)
    number = said.args[0] if said.args else None
    return driver_of(said) in MYSQL_DRIVERS and number in _MYSQL_NUMBERS


def sqlstate_of(said: BaseException) -> str | None:
    """The SQLSTATE that a driver's error carries; None where it has none."""
    found: str | None = getattr(said, "sqlstate", None) or getattr(said, "pgcode", None)
    return found


def driver_of(said: BaseException) -> str:
    """The package of the driver that raised `said`."""
    return type(said).__module__.partition(".")[0]
