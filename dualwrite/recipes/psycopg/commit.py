"""How a COMMIT that decides is waited for on a psycopg connection, and whether its answer may be relied on.

With synchronous replication COMMIT waits for a standby after it was carried out on the primary. A cancel request ends
that wait: the server answers with success and a warning, and what a failover would lose can be read from then on.
psycopg sends such a request when whoever waits is interrupted. Here the connection is dropped instead, which leaves the
server waiting, with the row locked, so that nobody reads what is not durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen

from dualwrite.recipes.psycopg.pipelined_statement import PipelinedStatement
from dualwrite.recipes.psycopg.reader import WAIT_INTERVAL_S, closed, reader_of
from dualwrite.recipes.sql.postgres import GIVEN_UP_IN

AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

ResultT = TypeVar("ResultT")

_WAIT: Final = "wait"


class StandbyWait:
    """Hears, for as long as a `with` lasts, whether the server gave up waiting for its synchronous standby."""

    __slots__ = ("_connection", "was_given_up")

    def __init__(self, connection: AnyConnection) -> None:
        self._connection = connection
        self.was_given_up = False

    def __enter__(self) -> Self:
        self._connection.add_notice_handler(self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.remove_notice_handler(self._hear)

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.source_function == GIVEN_UP_IN:
            self.was_given_up = True


def wait_or_drop(connection: AnyConnection, generator: PQGen[ResultT]) -> Any:
    """`connection.wait`, which drops the connection when it is interrupted. Something to await, or the result."""
    if isinstance(connection, psycopg.AsyncConnection):
        return _await_or_drop(connection, generator)
    try:
        return waiting.wait(generator, connection.pgconn.socket, interval=WAIT_INTERVAL_S)
    except BaseException as error:
        _drop_where_interrupted(connection, error)
        raise


async def _await_or_drop(connection: psycopg.AsyncConnection[Any], generator: PQGen[ResultT]) -> ResultT:
    reader = reader_of(connection)
    try:
        if reader is not None:
            answer: ResultT = await reader.wait_uncancelled(generator)
            return answer
        return await waiting.wait_async(generator, connection.pgconn.socket, interval=WAIT_INTERVAL_S)
    except BaseException as error:
        _drop_where_interrupted(connection, error)
        raise


def _drop_where_interrupted(connection: AnyConnection, error: BaseException) -> None:
    if not isinstance(error, Exception):
        connection.pgconn.finish()
        closed(connection)


@contextmanager
def uncancelled(connection: AnyConnection) -> Iterator[None]:
    """Let `connection.commit()` be waited for as this module says."""
    of_connection = vars(connection).get(_WAIT)

    def wait(generator: PQGen[Any], *arguments: Any, **keywords: Any) -> Any:
        return wait_or_drop(connection, generator)

    vars(connection)[_WAIT] = wait
    try:
        yield
    finally:
        if of_connection is None:
            del vars(connection)[_WAIT]
        else:
            vars(connection)[_WAIT] = of_connection


async def take_answer_of_ahead(connection: psycopg.AsyncConnection[Any]) -> None:
    """Take the answer to a statement that was sent ahead, which is for the next user of the connection to do."""
    if isinstance(getattr(connection.wait, "__self__", None), PipelinedStatement):
        await connection.wait(_nothing())


def _nothing() -> PQGen[None]:
    """A statement that is not sent."""
    yield from ()
