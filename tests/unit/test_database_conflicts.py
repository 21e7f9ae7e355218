"""The database errors after which a retry makes sense."""

from __future__ import annotations

import sqlite3

import psycopg
import pymysql
import pytest
import sqlalchemy as sa

from dualwrite.errors import RowLockTimeoutError
from dualwrite.recipes.core.database_errors import is_conflict


def of_sqlite(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (psycopg.errors.SerializationFailure(), True),
        (psycopg.errors.DeadlockDetected(), True),
        (psycopg.errors.LockNotAvailable(), False),
        (psycopg.errors.UniqueViolation(), False),
        (psycopg.OperationalError("the connection is closed"), False),
        (pymysql.err.OperationalError(1213, "Deadlock found"), True),
        (pymysql.err.OperationalError(1020, "Record has changed since last read"), True),
        (pymysql.err.OperationalError(2013, "Lost connection"), False),
        (of_sqlite(sqlite3.SQLITE_BUSY), True),
        (of_sqlite(sqlite3.SQLITE_BUSY_SNAPSHOT), True),
        (of_sqlite(sqlite3.SQLITE_IOERR), False),
        (OSError(1213, "is no error of MySQL"), False),
        (RuntimeError(), False),
    ],
)
def test_the_error_of_the_driver_and_its_translation(said: Exception, expected: bool) -> None:
    wrapped = sa.exc.DBAPIError("UPDATE", {}, said)
    timeout = RowLockTimeoutError("the row stayed locked")
    timeout.__cause__ = wrapped
    assert [is_conflict(error) for error in (said, wrapped, timeout)] == [expected] * 3
