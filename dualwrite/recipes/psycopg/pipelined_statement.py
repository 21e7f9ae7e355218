"""A statement of ours on a psycopg connection, sent without waiting: who uses the connection next takes its answer.

So it costs no turn of the loop, and the database is at work while the next user comes. libpq takes one statement at a
time, hence the answer has to be taken before anything else is sent. All that psycopg sends goes through
`connection.wait`, which is replaced until then, on this one connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import generators, pq
from psycopg.abc import PQGen
from psycopg.pq.abc import PGresult

if TYPE_CHECKING:
    from dualwrite.recipes.psycopg.connection_guard import AnyConnection

_FAILED: Final = int(pq.ExecStatus.FATAL_ERROR)  # as a number, which is what libpq gives
_WAIT: Final = "wait"


def answered(connection: AnyConnection, sql: str) -> PQGen[PGresult]:
    """Send, and take the answers; the last one's, for whoever waits with the connection. Raises psycopg's errors."""
    connection.pgconn.send_query(sql.encode())
    return (yield from _answers(connection))


def _answers(connection: AnyConnection) -> PQGen[PGresult]:
    answers: list[PGresult] = yield from generators.execute(connection.pgconn)
    if answers[-1].status == _FAILED:
        raise psycopg.errors.error_from_result(answers[-1], encoding=connection.info.encoding)
    return answers[-1]


class PipelinedStatement:
    """The statement, until somebody has taken its answer."""

    __slots__ = ("_connection", "_failure", "_genuine", "_of_connection", "is_pending")

    def __init__(self, connection: psycopg.AsyncConnection[Any], sql: str) -> None:
        """Raises psycopg.OperationalError where the connection is known to be lost; then nothing was sent."""
        connection.pgconn.consume_input()
        connection.pgconn.send_query(sql.encode())
        self._connection = connection
        self._failure: psycopg.Error | None = None
        self.is_pending = True
        """Whether nobody has taken the answer yet."""
        self._of_connection = vars(connection).get(_WAIT)
        self._genuine = connection.wait
        vars(connection)[_WAIT] = self._wait

    def forget(self) -> None:
        """The connection is again as it was, whatever became of the statement; harmless when repeated."""
        self.is_pending = False
        if vars(self._connection).get(_WAIT) != self._wait:
            return
        if self._of_connection is None:
            del vars(self._connection)[_WAIT]
        else:
            vars(self._connection)[_WAIT] = self._of_connection

    async def _wait(self, generator: PQGen[Any], *arguments: Any, **keywords: Any) -> Any:
        """`connection.wait`, once the statement has succeeded. Raises what it failed with, as often as it is tried."""
        if self._failure is not None:
            raise self._failure
        self.is_pending = False
        try:
            self._connection.pgconn.consume_input()  # where the answer is there already, there is nothing to wait for
            await self._genuine(_answers(self._connection))
        except psycopg.Error as error:
            self._failure = error
            raise
        except BaseException:
            self._failure = psycopg.OperationalError(_INTERRUPTED)
            raise
        self.forget()
        return await self._genuine(generator, *arguments, **keywords)


_INTERRUPTED: Final = (
    "the savepoint before this statement was interrupted, so that it is not known whether it was set; the statement "
    "was not sent: let the interruption end the block"
)
