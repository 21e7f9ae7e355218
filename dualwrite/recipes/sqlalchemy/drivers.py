"""Direct access to database drivers, past SQLAlchemy, and the reason for each case.

`deciding` wraps a COMMIT that decides: it must not be cancelled, and the server's warnings are recorded
(`psycopg/driver.py` says why). The other functions read what a driver knows about its connection's transaction.
`tests/unit/test_sqlalchemy_internals.py` fails when SQLAlchemy or a driver changes what this module relies on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa

from dualwrite.recipes.sql.postgres import GIVEN_UP_IN

ResultT = TypeVar("ResultT")

_PSYCOPG_IDLE = 0  # psycopg.pq.TransactionStatus.IDLE, which is libpq's PQTRANS_IDLE
_MYSQL_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS of the protocol, from the last response without rows

DRIVERS_THAT_MARK = ("psycopg", "psycopg_async")


class Carry(Protocol):
    """Carries out a function that talks to the database: in this thread, or without blocking the loop."""

    def __call__(self, function: Callable[[], ResultT]) -> Awaitable[ResultT]: ...


async def here(function: Callable[[], ResultT]) -> ResultT:
    """Call a function in this thread, blocking it."""
    return function()


# ---- a COMMIT that decides ------------------------------------------------------------------------------------------


class CommitWait:
    """What the server reported while COMMIT was in progress."""

    __slots__ = ("was_given_up",)

    def __init__(self) -> None:
        self.was_given_up = False
        """Whether the server gave up waiting for a synchronous standby but still reported success."""

    def on_message(self, connection: Any, message: Any) -> None:
        """Record a server message; called as an asyncpg log listener."""
        if getattr(message, "server_source_function", None) == GIVEN_UP_IN:
            self.was_given_up = True


@contextmanager
def deciding(driver: str, connection: Any) -> Iterator[CommitWait]:
    """Watch the call inside the `with`, which sends COMMIT on a driver's connection."""
    wait = CommitWait()
    if driver == "psycopg":
        from dualwrite.recipes.psycopg.driver import StandbyWait, uncancelled

        with StandbyWait(connection) as standby_wait, uncancelled(connection):
            yield wait
        wait.was_given_up = standby_wait.was_given_up
    elif driver == "asyncpg":
        connection.add_log_listener(wait.on_message)
        try:
            yield wait
        finally:
            if not connection.is_closed():
                connection.remove_log_listener(wait.on_message)
    else:
        yield wait


async def interrupted_by(interrupt: Callable[[], bool], steps: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Carry out `steps` in a task that no cancellation reaches unless `interrupt` returns False.

    asyncpg sends a cancel request whenever the task that waits for it is cancelled. So a cancellation calls `interrupt`
    instead, which drops the connection and returns True; if it returns False, the steps are cancelled as usual.
    """
    task = asyncio.get_running_loop().create_task(steps)
    interruption: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as cancelled:
            interruption = cancelled
            if not interrupt():
                task.cancel()
    if interruption is not None:
        raise interruption from (None if task.cancelled() else task.exception())
    return task.result()


def drop_while_deciding(connection: sa.Connection) -> None:
    """Drop an asyncpg connection whose COMMIT is in progress, without the cancel request that asyncpg would send."""
    driver: Any = connection.connection.driver_connection
    driver.terminate()


# ---- the transaction of a driver's connection -----------------------------------------------------------------------


def begin_marker() -> Callable[[sa.Connection], None]:
    from dualwrite.recipes.psycopg.driver import (
        mark_next_begin,
    )  # psycopg may not be installed if another driver is used

    def mark(connection: sa.Connection) -> None:
        driver: Any = connection.connection.driver_connection
        mark_next_begin(driver)

    return mark


def in_transaction(connection: sa.Connection) -> bool | None:
    """Return whether the driver reports its connection to be in a transaction; None if the driver cannot tell."""
    driver = connection.connection.driver_connection
    if (status := getattr(getattr(driver, "info", None), "transaction_status", None)) is not None:  # psycopg
        return bool(status != _PSYCOPG_IDLE)
    if (is_in_transaction := getattr(driver, "is_in_transaction", None)) is not None:  # asyncpg
        return bool(is_in_transaction())
    if isinstance(flags := getattr(driver, "server_status", None), int):  # PyMySQL and its kin
        return bool(flags & _MYSQL_IN_TRANSACTION)
    in_transaction = getattr(driver, "in_transaction", None)  # sqlite3, aiosqlite
    return in_transaction if isinstance(in_transaction, bool) else None


def commits_by_itself(connection: sa.Connection) -> bool:
    dbapi_connection = connection.connection.dbapi_connection
    if dbapi_connection is None or not connection.dialect.detect_autocommit_setting(dbapi_connection):
        return False
    # sqlite3 in autocommit mode may be in a transaction that a listener for SQLAlchemy's "begin" event began
    return not getattr(connection.connection.driver_connection, "in_transaction", False)
