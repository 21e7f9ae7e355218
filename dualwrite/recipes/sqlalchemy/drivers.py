"""The parts of SQLAlchemy that depend on the driver: errors that are trouble, deciding COMMITs, states of connections.

Trouble is any state in which no transaction succeeds, or a good one may fail. All other errors (a violated constraint,
a value that does not fit) are the fault of the data.

A COMMIT that decides must not be cancelled, and the server's warnings are noted (`psycopg/driver.py` says why). The
functions below read the driver's own record of its transaction, and send the
statements that would be too slow through SQLAlchemy. `tests/unit/test_sqlalchemy_internals.py` fails when SQLAlchemy or
a driver changes internals that this module relies on.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar

import sqlalchemy as sa

from dualwrite.errors import IllegalStateError, TransactionEndedInsideError
from dualwrite.guarded import pass_on_signal
from dualwrite.recipes.core.database_errors import MYSQL_DRIVERS, driver_of, sqlstate_of
from dualwrite.recipes.core.store import ended_past
from dualwrite.recipes.sql.commit_message import CommitMessage, MessageBeforeCommit, Refusals
from dualwrite.recipes.sql.postgres import MARK, MARK_ATTRIBUTE
from dualwrite.recipes.sqlalchemy.own_statements import own_text

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


ResultT = TypeVar("ResultT")

_PSYCOPG_IDLE = 0  # psycopg.pq.TransactionStatus.IDLE, which is libpq's PQTRANS_IDLE
_MYSQL_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS of the protocol, from the last response without rows

DRIVERS_THAT_MARK = ("psycopg", "psycopg_async")

ON_CONNECTION: Final = "_dualwrite_transaction"
"""Attribute of a Connection, and of SQLAlchemy's proxy of its driver connection: the dual write that runs on it.

An execution option would cost twelve calls for each dual write.
"""

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
        2,  # SQLITE_INTERNAL
        3,  # SQLITE_PERM
        4,  # SQLITE_ABORT
        5,  # SQLITE_BUSY
        6,  # SQLITE_LOCKED
        7,  # SQLITE_NOMEM
        8,  # SQLITE_READONLY
        9,  # SQLITE_INTERRUPT
        10,  # SQLITE_IOERR
        11,  # SQLITE_CORRUPT
        13,  # SQLITE_FULL
        14,  # SQLITE_CANTOPEN
        15,  # SQLITE_PROTOCOL
        17,  # SQLITE_SCHEMA
        22,  # SQLITE_NOLFS
        23,  # SQLITE_AUTH
        26,  # SQLITE_NOTADB
    }
)
# SQLite errors that only their message identifies
_TROUBLE_SQLITE_SENTENCES: Final = (
    "no such table",
    "no such column",
    "no such function",
    "is locked",
    "disk i/o error",
    "disk is full",
    "readonly database",
    "unable to open database",
)
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


class Carry(Protocol):
    """Carries out a function that talks to the database: in this thread, or without blocking the loop."""

    def __call__(self, function: Callable[[], ResultT]) -> Awaitable[ResultT]: ...


async def here(function: Callable[[], ResultT]) -> ResultT:
    """Call a function in this thread, blocking it."""
    return function()


# ---- a COMMIT that decides ------------------------------------------------------------------------------------------


def commit_message(connection: sa.Connection, sql: str, token: str, refusals: Refusals) -> CommitMessage:
    """Return the message for the driver of a Connection. Imports drivers late: they may not be installed."""
    driver, of = driver_connection(connection), connection.dialect.driver
    if of in DRIVERS_THAT_MARK:
        from dualwrite.recipes.psycopg.driver import PsycopgCommitMessage

        return PsycopgCommitMessage(driver, sql, token, refusals)
    if of == "asyncpg":
        from dualwrite.recipes.asyncpg.driver import AsyncpgCommitMessage

        return AsyncpgCommitMessage(driver, sql, token, refusals)
    return MessageBeforeCommit(sql, token, refusals)


def deciding(connection: sa.Connection) -> CommitMessage:
    """Return a context in which COMMIT on a Connection is not cancelled, and the server's warnings are noted."""
    return commit_message(connection, "COMMIT", "", {})


# ---- the transaction of a driver's connection -----------------------------------------------------------------------


def ended_past_sqlalchemy(connection: sa.Connection) -> TransactionEndedInsideError:
    """Return the error for a transaction ended past SQLAlchemy, and note the end in its dual write."""
    transaction = vars(connection).get(ON_CONNECTION)
    if transaction is not None:
        transaction.was_ended_past = True
    return ended_past(_ENDED_PAST)


_ENDED_PAST: Final = (
    "the transaction in which this block began was ended bypassing SQLAlchemy; Kafka was not changed, and the "
    "database keeps only changes that a COMMIT made permanent: let the dual write end the transaction"
)


def notify_of_ends(dialect: sa.Dialect) -> None:
    """Let the dual write of a connection carry out its COMMIT, and know of its ROLLBACK, from now on.

    Every COMMIT of SQLAlchemy passes `do_commit`: `Session.commit()`, the end of `with Session.begin()` and
    `Connection.commit()`. By then everything before it (hooks, flushes, listeners) is over, and nothing after it
    (expiring objects, `after_commit`, closing) has begun.
    """
    send_commit, send_rollback = dialect.do_commit, dialect.do_rollback

    def send_message_and_commit(dbapi_connection: Any) -> None:
        transaction = getattr(dbapi_connection, ON_CONNECTION, None)
        if transaction is not None:
            transaction.send_before_commit(dbapi_connection)
        send_commit(dbapi_connection)

    def do_commit(dbapi_connection: Any) -> None:
        transaction = getattr(dbapi_connection, ON_CONNECTION, None)
        if transaction is None or transaction.has_arrived:
            send_commit(dbapi_connection)
        else:
            transaction.arrive(partial(send_message_and_commit, dbapi_connection))

    def do_rollback(dbapi_connection: Any) -> None:
        transaction = getattr(dbapi_connection, ON_CONNECTION, None)
        if transaction is not None:
            transaction.before_rollback()
        try:
            send_rollback(dbapi_connection)
        except BaseException:
            terminate(dialect, dbapi_connection)  # a Session leaves it to garbage collection, in its transaction
            raise

    dialect.do_commit = do_commit  # type: ignore[method-assign]
    dialect.do_rollback = do_rollback  # type: ignore[method-assign]


def terminate(dialect: sa.Dialect, connection: Any) -> None:
    """Close a driver's connection whose ROLLBACK has failed, so that the database rolls back at once."""
    if dialect.name != "sqlite":  # which may have one connection alone, with a database in memory
        try:
            dialect.do_terminate(getattr(connection, "dbapi_connection", connection))
        except Exception as error:  # the error of ROLLBACK is raised
            pass_on_signal(error)


def mark_transactions(dialect: sa.Dialect) -> None:
    """Make psycopg mark each BEGIN that belongs to a transaction of SQLAlchemy."""
    if dialect.name != "postgresql" or dialect.driver not in DRIVERS_THAT_MARK:
        return
    from dualwrite.recipes.psycopg.driver import mark_next_begin  # psycopg may not be installed

    begin = dialect.do_begin

    def do_begin(dbapi_connection: Any) -> None:
        mark_next_begin(dialect.get_driver_connection(dbapi_connection.dbapi_connection))
        begin(dbapi_connection)

    dialect.do_begin = do_begin  # type: ignore[method-assign]


def mark_late(connection: sa.Connection) -> None:
    """Mark a transaction that began unmarked, because a listener of the application sent its first statement."""
    driver = driver_connection(connection)
    if connection.dialect.driver not in DRIVERS_THAT_MARK or MARK_ATTRIBUTE in vars(driver):
        return
    from dualwrite.recipes.psycopg.driver import is_between_statements  # psycopg may not be installed

    if is_between_statements(driver):
        mark = secrets.token_hex(8)
        connection.execute(own_text(f"SET LOCAL {MARK} = '{mark}'"))
        vars(driver)[MARK_ATTRIBUTE] = mark


def after_statement(context: Any, call: Callable[[], None]) -> None:
    """Call a function when the statement of an execution context has succeeded."""

    def called_after() -> None:
        del context.post_exec  # uncovers the dialect's own method
        call()
        context.post_exec()

    context.post_exec = called_after


def has_commit_listeners(connection: sa.Connection) -> bool:
    """Return whether listeners are called when the Connection is about to send COMMIT."""
    if not (connection._has_events or connection.engine._has_events):  # noqa: SLF001 - a tenth of the cost of dispatch
        return False
    return bool(connection.dispatch.commit)


def driver_connection(connection: sa.Connection) -> Any:
    """Return the driver's connection, from the dual write if one runs on it: SQLAlchemy takes four calls."""
    transaction = vars(connection).get(ON_CONNECTION)
    return connection.connection.driver_connection if transaction is None else transaction.driver


def async_connection(connection: sa.Connection) -> AsyncConnection:
    """Return the AsyncConnection of a Connection as `AsyncSession.connection()` does, without a greenlet."""
    from sqlalchemy.ext.asyncio import AsyncConnection  # not needed by writers for threads

    return AsyncConnection._retrieve_proxy_for_target(connection)  # noqa: SLF001


async def value_past_sqlalchemy(
    connection: sa.Connection, sql: str, values: Mapping[str, Any] | None, carry: Carry
) -> str | None:
    """Return the first value of a statement, a text, at a quarter of SQLAlchemy's cost, and without a greenlet.

    Parameters are written `:name`; without any, `values` is None. Returns None if the statement returns no row, or if
    it was not sent: only psycopg sends it, and only in the middle of a transaction. Raises the same errors as
    SQLAlchemy, with `carry`.
    """
    if connection.dialect.driver not in DRIVERS_THAT_MARK:
        return None
    from dualwrite.recipes.psycopg.driver import is_between_statements, one_text

    driver = driver_connection(connection)
    if not is_between_statements(driver):
        return None
    try:
        value: Any = one_text(driver, sql, values)
        text: str | None = await value if connection.dialect.is_async else value
    except BaseException as error:
        failure = error
    else:
        return text
    await carry(partial(_raise_as_sqlalchemy, connection, failure, sql))
    raise AssertionError("it raises")


def _raise_as_sqlalchemy(connection: sa.Connection, error: BaseException, sql: str) -> NoReturn:
    if isinstance(error, Exception):
        pass_on_signal(error)  # SQLAlchemy would mistake it for an error of the statement
    try:
        raise error  # SQLAlchemy asks which error is being handled
    except BaseException:
        connection._handle_dbapi_exception(error, sql, None, None, None)  # noqa: SLF001
    raise AssertionError("it raises")


def in_transaction(driver: Any) -> bool | None:
    """Return whether a driver's connection reports that it is in a transaction.

    Returns None if the driver cannot tell, or the connection is closed.
    """
    try:
        if (libpq := getattr(driver, "pgconn", None)) is not None:  # psycopg
            return bool(libpq.transaction_status != _PSYCOPG_IDLE)
        return _reported_by(driver)
    except Exception as error:  # sqlite3 and asyncpg raise on a closed one; the next statement fails with the reason
        pass_on_signal(error)
        return None


def _reported_by(driver: Any) -> bool | None:
    if (status := getattr(getattr(driver, "info", None), "transaction_status", None)) is not None:  # psycopg2
        return bool(status != _PSYCOPG_IDLE)
    if (is_in_transaction := getattr(driver, "is_in_transaction", None)) is not None:  # asyncpg
        return bool(is_in_transaction())
    if isinstance(flags := getattr(driver, "server_status", None), int):  # PyMySQL and its kin
        return bool(flags & _MYSQL_IN_TRANSACTION)
    in_transaction = getattr(driver, "in_transaction", None)  # sqlite3, aiosqlite
    return in_transaction if isinstance(in_transaction, bool) else None


def assert_holds_locks(connection: sa.Connection) -> None:
    """Raise IllegalStateError if the connection is in autocommit mode, in which a lock ends with its statement."""
    dbapi_connection = connection.connection.dbapi_connection
    if in_transaction(driver_connection(connection)) or dbapi_connection is None:
        return
    if connection.dialect.detect_autocommit_setting(dbapi_connection):
        raise autocommit()


def autocommit() -> IllegalStateError:
    """Return the error for a connection that cannot hold a lock."""
    return IllegalStateError(
        "the database connection is in autocommit mode, in which a row lock ends with its own statement; "
        "nothing was written: use a connection with transactions for dual writes"
    )


def commits_by_itself(dialect: sa.Dialect, dbapi_connection: Any, driver: Any) -> bool:
    if dbapi_connection is None or not dialect.detect_autocommit_setting(dbapi_connection):
        return False
    # sqlite3 in autocommit mode may be in a transaction that a listener for SQLAlchemy's "begin" event began
    return not getattr(driver, "in_transaction", False)
