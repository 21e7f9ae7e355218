"""A COMMIT of psycopg that decides, together with the write of the state.

With synchronous replication COMMIT waits for a standby after it took effect on the primary. A cancel request ends that
wait: the server reports success with a warning, and from then on other transactions can read data that a failover would
lose. psycopg sends such a request when a wait is interrupted. Here the connection is dropped instead. The server then
keeps waiting with the row locked, so that no transaction reads data that is not durable.

Where the connection prepares statements, the statement before COMMIT is prepared, and sent with it in one pipeline: one
round trip, as a script of both has, but the server does not plan the statement each time, which takes it half as long
as the rest of the commit. An error in a pipeline makes the server ignore the rest of it, so COMMIT too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

import psycopg
from psycopg import generators, pq, waiting
from psycopg._preparing import Prepare
from psycopg.abc import PQGen
from psycopg.pq.abc import PGresult

from dualwrite.errors import TransactionDoomedError
from dualwrite.recipes.psycopg.driver import (
    FAILED,
    NO_PIPELINE,
    AnyConnection,
    answered,
    encoded,
    failure,
    with_numbers,
)
from dualwrite.recipes.psycopg.own_adapters import encoding_of
from dualwrite.recipes.sql.postgres import GIVEN_UP_IN
from dualwrite.recipes.sql.postgres_steps import CommitMessage, assert_committed

_COMMIT: Final = "commit"
_ASCII: Final = "ascii"
_END_OF_PIPELINE: Final = int(pq.ExecStatus.PIPELINE_SYNC)  # as a number, as libpq returns it

WAIT_INTERVAL_S: Final = 0.1
"""How often psycopg's wait checks for KeyboardInterrupt, and polls the socket. Its default of 0 is a busy loop."""


class PsycopgCommitMessage(CommitMessage):
    """A message that takes the place of `connection.commit()` inside a `with`."""

    def __enter__(self) -> Self:
        attributes = vars(self.connection)
        self._of_connection = attributes.get(_COMMIT)
        attributes[_COMMIT] = self.send
        return self

    def let_go(self) -> None:
        attributes = vars(self.connection)
        if attributes.get(_COMMIT) != self.send:
            return
        if self._of_connection is None:
            del attributes[_COMMIT]
        else:
            attributes[_COMMIT] = self._of_connection

    def send(self) -> Any:
        """Commit as `connection.commit()`, but never cancel it; once. Returns None, or an awaitable of it."""
        connection = self.connection
        if isinstance(connection, psycopg.AsyncConnection):
            return self._send_in_loop(connection)
        with connection.lock:
            try:
                return waiting.wait(self._steps(), connection.pgconn.socket, interval=WAIT_INTERVAL_S)
            except BaseException as error:
                self._drop_if_interrupted(error)
                raise

    async def _send_in_loop(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.lock.acquire()  # `async with` would cost two more calls
        try:
            await waiting.wait_async(self._steps(), connection.pgconn.socket, interval=WAIT_INTERVAL_S)
        except BaseException as error:
            self._drop_if_interrupted(error)
            raise
        finally:
            connection.lock.release()

    def _drop_if_interrupted(self, error: BaseException) -> None:
        if not isinstance(error, Exception):
            self.connection.pgconn.finish()

    def _steps(self) -> PQGen[None]:
        if self.was_committed:
            return
        self.assert_not_sent(psycopg.OperationalError)
        connection = self.connection
        try:
            assert_not_lost(connection)
        except psycopg.Error:
            self.was_refused = True
            raise
        self.was_sent = True
        connection.add_notice_handler(self._on_notice)
        try:
            status = (yield from self._answer()).command_status
            assert_committed(None if status is None else status.decode())
        except (psycopg.Error, TransactionDoomedError) as error:
            self.raise_refusal(error)
            raise
        finally:
            connection.remove_notice_handler(self._on_notice)
        self.was_committed = True

    def _on_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        self.was_given_up |= notice.source_function == GIVEN_UP_IN

    def _answer(self) -> PQGen[PGresult]:
        """Send the message, and return the response to COMMIT."""
        connection, before = self.connection, self._before
        prepared: Any = connection._prepared  # noqa: SLF001
        if (
            before is not None
            and before.values
            and connection.pgconn.pipeline_status == NO_PIPELINE
            and not prepared._to_flush  # noqa: SLF001 - psycopg is still to deallocate statements, by their names
        ):
            statement = _statement(before.sql, _ASCII if before.sql.isascii() else encoding_of(connection))
            prepare, _ = prepared.get(statement, True)
            if prepare is not Prepare.NO:
                values = statement.bound(connection, before.values)
                # noted before it is sent: psycopg's rollback then deallocates it, whichever of both has failed
                prepared.maybe_add_to_cache(statement, prepare, statement.name)
                return self._answer_in_pipeline(statement, values, is_new=prepare is Prepare.SHOULD)
        return answered(connection, self._script)

    def _answer_in_pipeline(
        self, statement: _Statement, values: list[bytes | None], *, is_new: bool
    ) -> PQGen[PGresult]:
        """Send the statement and COMMIT in a pipeline, and return the response to COMMIT. Raises the first failure.

        A failure in front of COMMIT is no proof that COMMIT was not reached: a pooler that has lost the server, and
        libpq itself, report theirs in place of a response that may never have come.
        """
        pgconn: Any = self.connection.pgconn
        answers: list[PGresult] = []
        try:
            pgconn.enter_pipeline_mode()
            if is_new:
                pgconn.send_prepare(statement.name, statement.query)
            pgconn.send_query_prepared(statement.name, values)
            pgconn.send_query_params(b"COMMIT", None)
            pgconn.pipeline_sync()
            yield from generators.send(pgconn)
            while not answers or answers[-1].status != _END_OF_PIPELINE:
                found = yield from generators.fetch_many(pgconn)
                if not found:
                    raise psycopg.OperationalError("the connection is lost")
                answers += found
            pgconn.exit_pipeline_mode()
        except BaseException as error:
            pgconn.finish()
            if not (isinstance(error, psycopg.Error) and any(answer.status == FAILED for answer in answers)):
                raise  # otherwise the server's last words are the better error
        for answer in answers:
            if answer.status == FAILED:
                raise failure(self.connection, answer)
        return answers[-2]


class _Statement(NamedTuple):
    """A statement in the form of psycopg's prepared statements, and the names of its parameters in order.

    It is named by its text. So a connection that a pooler has replaced with another client's does not have a different
    statement by this name: behind that one, COMMIT would keep the block's changes without its state.
    """

    query: bytes
    types: tuple[int, ...]
    names: tuple[str, ...]
    name: bytes

    def bound(self, connection: AnyConnection, values: Mapping[str, str | None]) -> list[bytes | None]:
        return [
            None if value is None else value.encode(_ASCII) if value.isascii() else encoded(connection, value)
            for value in map(values.__getitem__, self.names)
        ]


@lru_cache(maxsize=1024)
def _statement(sql: str, encoding: str) -> _Statement:
    query, names = with_numbers(sql, encoding)
    return _Statement(query, (), names, b"dualwrite_" + hashlib.sha256(query).hexdigest()[:32].encode())


def assert_not_lost(connection: AnyConnection) -> None:
    """Raise psycopg.OperationalError, with the server's reason, if the connection is known to be lost.

    A server that ends a connection sends the reason, which the first call reads; only the second call finds the end.
    """
    try:
        connection.pgconn.consume_input()
        connection.pgconn.consume_input()
    except psycopg.OperationalError as error:
        reasons: list[psycopg.Error] = []
        connection.add_notice_handler(lambda notice: reasons.append(_error_of(notice)))
        connection.pgconn.get_result()  # outside of a statement the reason is a notice
        if not reasons:
            raise
        raise reasons[-1] from error


def _error_of(notice: psycopg.errors.Diagnostic) -> psycopg.Error:
    """Return the error that a notice describes; a notice can be read only while it is being handled."""
    try:
        kind = psycopg.errors.lookup(notice.sqlstate or "")
    except KeyError:
        kind = psycopg.OperationalError
    return kind(notice.message_primary or "")
