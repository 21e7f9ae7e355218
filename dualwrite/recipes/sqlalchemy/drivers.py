"""The parts of SQLAlchemy that depend on the driver: deciding COMMITs, and states of connections.

A COMMIT that decides must not be cancelled, and the server's warnings are noted (`psycopg/commit_message.py` says why).
The functions below read the driver's own record of its transaction, and send the statements that would be too slow
through SQLAlchemy. `tests/unit/test_sqlalchemy_internals.py` fails when SQLAlchemy or a driver changes internals that
this module relies on.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar

import sqlalchemy as sa

from dualwrite.errors import IllegalStateError, TransactionEndedInsideError
from dualwrite.guarded import pass_on_signal
from dualwrite.recipes.core.store import ended_past
from dualwrite.recipes.sql.postgres import MARK, MARK_ATTRIBUTE, BeforeCommit
from dualwrite.recipes.sql.postgres_steps import CommitMessage, MessageBeforeCommit, Refusals
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


class Carry(Protocol):
    """Carries out a function that talks to the database: in this thread, or without blocking the loop."""

    def __call__(self, function: Callable[[], ResultT]) -> Awaitable[ResultT]: ...


async def here(function: Callable[[], ResultT]) -> ResultT:
    """Call a function in this thread, blocking it. An interruption is not replaced by what follows from it.

    SQLAlchemy may fail to go on after one: to reset the connection that it pings, to roll back, to make a statement.
    """
    try:
        return function()
    except Exception as error:
        pass_on_signal(error)
        raise


# ---- a COMMIT that decides ------------------------------------------------------------------------------------------


def commit_message(
    connection: sa.Connection, driver: Any, before: BeforeCommit | None, token: str, refusals: Refusals
) -> CommitMessage:
    """Return the message for the driver of a Connection. Imports drivers late: they may not be installed."""
    of = connection.dialect.driver
    if of in DRIVERS_THAT_MARK:
        from dualwrite.recipes.psycopg.commit_message import PsycopgCommitMessage

        return PsycopgCommitMessage(driver, before, token, refusals)
    if of == "asyncpg":
        from dualwrite.recipes.asyncpg.driver import AsyncpgCommitMessage

        return AsyncpgCommitMessage(driver, before, token, refusals)
    return MessageBeforeCommit(None, before, token, refusals)


def deciding(connection: sa.Connection) -> CommitMessage:
    """Return a context in which COMMIT on a Connection is not cancelled, and the server's warnings are noted."""
    return commit_message(connection, driver_connection(connection), None, "", {})


# ---- the transaction of a driver's connection -----------------------------------------------------------------------


_ENDED_PAST: Final = (
    "the transaction in which this block began was ended bypassing SQLAlchemy; Kafka was not changed, and the "
    "database keeps only changes that a COMMIT made permanent: let the dual write end the transaction"
)


def ended_past_sqlalchemy(connection: sa.Connection, sentence: str = _ENDED_PAST) -> TransactionEndedInsideError:
    """Return the error for a transaction ended past SQLAlchemy, and note the end in its dual write."""
    transaction = vars(connection).get(ON_CONNECTION)
    if transaction is not None:
        transaction.was_ended_past = True
    return ended_past(sentence)


def notify_of_ends(dialect: sa.Dialect) -> None:
    """Let the dual write of a connection carry out its COMMIT, and know of its ROLLBACK, from now on.

    Every COMMIT of SQLAlchemy passes `do_commit`: `Session.commit()`, the end of `with Session.begin()` and
    `Connection.commit()`. By then everything before it (hooks, flushes, listeners) is over, and nothing after it
    (expiring objects, `after_commit`, closing) has begun.
    """
    send_commit, send_rollback = dialect.do_commit, dialect.do_rollback

    def send_message_and_commit(dbapi_connection: Any) -> None:
        transaction = getattr(dbapi_connection, ON_CONNECTION, None)  # as an argument it would be in a cycle
        if transaction is not None and isinstance(transaction.message, MessageBeforeCommit):
            transaction.message.send(dbapi_connection)
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
        except BaseException as error:
            was_sent = not is_mid_statement(dialect, dbapi_connection, error)
            terminate(dialect, dbapi_connection)  # a Session leaves it to garbage collection, in its transaction
            if was_sent:
                raise

    dialect.do_commit = do_commit  # type: ignore[method-assign]
    dialect.do_rollback = do_rollback  # type: ignore[method-assign]


def terminate(dialect: sa.Dialect, connection: Any) -> None:
    if dialect.name != "sqlite":  # which may have one connection alone, with a database in memory
        try:
            dialect.do_terminate(getattr(connection, "dbapi_connection", connection))
        except Exception as error:  # the error of ROLLBACK is raised
            pass_on_signal(error)


def is_mid_statement(dialect: sa.Dialect, connection: Any, error: BaseException) -> bool:
    """Return whether `error` is psycopg's for a ROLLBACK not sent, as an exception interrupted the statement before.

    The caller must get that exception, which the error of ROLLBACK would replace.
    """
    if dialect.driver not in DRIVERS_THAT_MARK or not isinstance(error, dialect.loaded_dbapi.Error):
        return False
    from dualwrite.recipes.psycopg.driver import is_interrupted  # psycopg may not be installed

    return is_interrupted(dialect.get_driver_connection(getattr(connection, "dbapi_connection", connection)))


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
    connection: sa.Connection, driver: Any, sql: str, values: Mapping[str, Any], carry: Carry
) -> tuple[str | None] | None:
    """Return the first value of a statement, a text, at a quarter of SQLAlchemy's cost, and without a greenlet.

    Parameters are written `:name`. The value is None if the statement returns no row. Returns None if it was not sent:
    only psycopg sends it, and only in the middle of a transaction. Raises the same errors as SQLAlchemy, with `carry`.
    """
    if connection.dialect.driver not in DRIVERS_THAT_MARK:
        return None
    from dualwrite.recipes.psycopg.driver import is_between_statements, one_text

    if not is_between_statements(driver):
        return None
    try:
        value: Any = one_text(driver, sql, values)
        text: str | None = await value if connection.dialect.is_async else value
    except BaseException as error:
        failure = error
    else:
        return (text,)
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
    """Return whether a driver's connection is in a transaction; None if it cannot tell, or is closed."""
    try:
        if (libpq := getattr(driver, "pgconn", None)) is not None:  # psycopg
            return bool(libpq.transaction_status != _PSYCOPG_IDLE)
        return _reported_by(driver)
    except Exception as error:  # sqlite3 and asyncpg raise on a closed one; the next statement fails with the reason
        pass_on_signal(error)
        return None


def is_in_pipeline(driver: Any) -> bool:
    """Return whether psycopg only queues the next statement, which the server skips if an earlier one has failed."""
    return bool(getattr(getattr(driver, "pgconn", None), "pipeline_status", False))


def _reported_by(driver: Any) -> bool | None:
    if (status := getattr(getattr(driver, "info", None), "transaction_status", None)) is not None:  # psycopg2
        return bool(status != _PSYCOPG_IDLE)
    if (is_in_transaction := getattr(driver, "is_in_transaction", None)) is not None:  # asyncpg
        return bool(is_in_transaction())
    if isinstance(flags := getattr(driver, "server_status", None), int):  # PyMySQL and its kin
        return bool(flags & _MYSQL_IN_TRANSACTION)
    in_transaction = getattr(driver, "in_transaction", None)  # sqlite3, aiosqlite
    return in_transaction if isinstance(in_transaction, bool) else None


def assert_holds_locks(connection: sa.Connection, driver: Any) -> None:
    """Raise IllegalStateError if the connection is in autocommit mode, in which a lock ends with its statement."""
    if in_transaction(driver):
        return
    dbapi_connection = connection.connection.dbapi_connection
    if dbapi_connection is not None and connection.dialect.detect_autocommit_setting(dbapi_connection):
        raise autocommit()


def autocommit() -> IllegalStateError:
    return IllegalStateError(
        "the database connection is in autocommit mode, in which a row lock ends with its own statement; "
        "nothing was written: use a connection with transactions for dual writes"
    )


def commits_by_itself(dialect: sa.Dialect, dbapi_connection: Any, driver: Any) -> bool:
    if dbapi_connection is None or not dialect.detect_autocommit_setting(dbapi_connection):
        return False
    # sqlite3 in autocommit mode may be in a transaction that a listener for SQLAlchemy's "begin" event began
    return not getattr(driver, "in_transaction", False)
