"""Whether an error is trouble of the database, or the fault of the data.

Trouble is any state in which no transaction succeeds, or a good one may fail. All other errors (a violated constraint,
a value that does not fit) are the fault of the data.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa

from dualwrite.recipes.core.database_errors import MYSQL_DRIVERS, driver_of, sqlstate_of

_TROUBLE_SQLSTATE_CLASSES: Final = frozenset(
    {
        "08",  # connection exception
        "25",  # invalid transaction state: read-only after a failover, idle too long, failed by an earlier statement
        "28",  # invalid authorization
        "3D",  # invalid catalog name
        "3F",  # invalid schema name
        "40",  # transaction rollback: serialization failure, deadlock
        "53",  # insufficient resources: disk full, out of memory, too many connections
        "55",  # object not in prerequisite state: lock not available
        "57",  # operator intervention: statement timeout, shutdown, starting up
        "58",  # system error: input and output
        "F0",  # configuration file
        "HV",  # foreign data wrapper: another server
        "XX",  # internal error, corruption
    }
)
# An incomplete deployment: no record could be written.
_TROUBLE_SQLSTATES: Final = frozenset(
    {
        "42501",  # insufficient_privilege
        "42P01",  # undefined_table
        "42703",  # undefined_column
        "42883",  # undefined_function
    }
)
_TROUBLE_MYSQL_NUMBERS: Final = frozenset(
    {
        # conflicts and limits of time
        1020,  # ER_CHECKREAD
        1205,  # ER_LOCK_WAIT_TIMEOUT
        1206,  # ER_LOCK_TABLE_FULL
        1213,  # ER_LOCK_DEADLOCK
        1317,  # ER_QUERY_INTERRUPTED
        1412,  # ER_TABLE_DEF_CHANGED
        1613,  # ER_XA_RBTIMEOUT
        1614,  # ER_XA_RBDEADLOCK
        1637,  # ER_TOO_MANY_CONCURRENT_TRXS
        1689,  # ER_LOCK_ABORTED
        1969,  # MariaDB: ER_STATEMENT_TIMEOUT
        3024,  # ER_QUERY_TIMEOUT
        3058,  # ER_USER_LOCK_DEADLOCK
        3101,  # ER_TRANSACTION_ROLLBACK_DURING_COMMIT
        3572,  # ER_LOCK_NOWAIT
        # resources
        3,  # EE_WRITE
        1021,  # ER_DISK_FULL
        1026,  # ER_ERROR_ON_WRITE
        1030,  # ER_GET_ERRNO
        1037,  # ER_OUTOFMEMORY
        1038,  # ER_OUT_OF_SORTMEMORY
        1040,  # ER_CON_COUNT_ERROR
        1041,  # ER_OUT_OF_RESOURCES
        1114,  # ER_RECORD_FILE_FULL
        1180,  # ER_ERROR_DURING_COMMIT
        1181,  # ER_ERROR_DURING_ROLLBACK
        1203,  # ER_TOO_MANY_USER_CONNECTIONS
        1226,  # ER_USER_LIMIT_REACHED
        # read-only, not ready, or shutting down
        1047,  # ER_UNKNOWN_COM_ERROR, by which Galera reports that a node is not ready
        1053,  # ER_SERVER_SHUTDOWN
        1290,  # ER_OPTION_PREVENTS_STATEMENT
        1792,  # ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
        1836,  # ER_READ_ONLY_MODE
        3100,  # ER_RUN_HOOK_ERROR, with which group replication refuses
        # the connection
        1129,  # ER_HOST_IS_BLOCKED
        1152,  # ER_ABORTING_CONNECTION
        1158,  # ER_NET_READ_ERROR
        1159,  # ER_NET_READ_INTERRUPTED
        1160,  # ER_NET_ERROR_ON_WRITE
        1161,  # ER_NET_WRITE_INTERRUPTED
        1184,  # ER_NEW_ABORTING_CONNECTION
        1927,  # MariaDB: ER_CONNECTION_KILLED
        2002,  # CR_CONNECTION_ERROR
        2003,  # CR_CONN_HOST_ERROR
        2006,  # CR_SERVER_GONE_ERROR
        2013,  # CR_SERVER_LOST
        2014,  # CR_COMMANDS_OUT_OF_SYNC
        2055,  # CR_SERVER_LOST_EXTENDED
        4031,  # ER_CLIENT_INTERACTION_TIMEOUT
        # rights and tables that are missing
        1044,  # ER_DBACCESS_DENIED_ERROR
        1045,  # ER_ACCESS_DENIED_ERROR
        1049,  # ER_BAD_DB_ERROR
        1054,  # ER_BAD_FIELD_ERROR
        1142,  # ER_TABLEACCESS_DENIED_ERROR
        1143,  # ER_COLUMNACCESS_DENIED_ERROR
        1146,  # ER_NO_SUCH_TABLE
        1227,  # ER_SPECIFIC_ACCESS_DENIED_ERROR
    }
)
# SQLite's primary result codes
_TROUBLE_SQLITE_CODES: Final = frozenset(
    {
        sqlite3.SQLITE_INTERNAL,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_ABORT,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_SCHEMA,
        sqlite3.SQLITE_NOLFS,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_NOTADB,
    }
)
# SQLite errors that only their message identifies
_TROUBLE_SQLITE_SENTENCES: Final = ("no such table", "no such column", "no such function")
# Raised by SQLAlchemy itself: no pooled connection became free, or an earlier statement failed
_TROUBLE_OF_SQLALCHEMY: Final = (sa.exc.TimeoutError, sa.exc.DisconnectionError, sa.exc.PendingRollbackError)
# Network errors from drivers that do not wrap them
_TROUBLE_OF_NETWORKS: Final = (ConnectionError, TimeoutError)
# PEP 249 classes of driver errors without a code
_TROUBLE_KINDS: Final = frozenset({"OperationalError", "InterfaceError", "InternalError"})
_DRIVERS: Final = MYSQL_DRIVERS | {"psycopg", "psycopg2", "asyncpg", "pg8000", "pyodbc", "oracledb", "pymssql"}


def is_database_trouble(error: BaseException) -> bool:
    """Return whether `error`, or any of its causes, is trouble of the database or its connection."""
    return any(_is_trouble(each) for each in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__


def _is_trouble(error: BaseException) -> bool:
    if isinstance(error, (*_TROUBLE_OF_SQLALCHEMY, *_TROUBLE_OF_NETWORKS)):
        return True
    if isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated:
        return True
    driver_error = getattr(error, "orig", None) or error
    if isinstance(driver_error, _TROUBLE_OF_NETWORKS):
        return True
    number = _mysql_number_of(driver_error)
    if number is not None:
        return number in _TROUBLE_MYSQL_NUMBERS
    sqlstate = sqlstate_of(driver_error)
    if sqlstate is not None:
        return sqlstate[:2] in _TROUBLE_SQLSTATE_CLASSES or sqlstate in _TROUBLE_SQLSTATES
    if driver_of(driver_error) == "sqlite3":
        return _is_sqlite_trouble(driver_error)
    is_of_database = isinstance(error, sa.exc.DBAPIError) or driver_of(driver_error) in _DRIVERS
    kinds = {each.__name__ for each in (*type(error).__mro__, *type(driver_error).__mro__)}
    return is_of_database and not kinds.isdisjoint(_TROUBLE_KINDS)


def _is_sqlite_trouble(driver_error: BaseException) -> bool:
    code = getattr(driver_error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in _TROUBLE_SQLITE_CODES:
        return True
    sentence = str(driver_error).lower()
    return any(each in sentence for each in _TROUBLE_SQLITE_SENTENCES)


def _mysql_number_of(driver_error: BaseException) -> int | None:
    if driver_of(driver_error) not in MYSQL_DRIVERS:
        return None
    number: Any = getattr(driver_error, "errno", None)
    if number is None and driver_error.args:
        number = driver_error.args[0]
    return number if isinstance(number, int) and number > 0 else None
