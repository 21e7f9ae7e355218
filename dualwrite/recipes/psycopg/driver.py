"""All access to psycopg past its public interface, and the reasons for it.

Three things, each on one connection at a time:

* `executed` executes a statement of ours without a cursor, but prepares it where psycopg would;
* `commit_message.py` sends a COMMIT that decides together with the write of the state, and replaces
  `connection.commit`;
* `mark_next_begin` makes the BEGIN that psycopg sends by itself set the mark of the transaction, and replaces
  `connection._start_query`.

`tests/unit/test_psycopg_internals.py` fails when psycopg changes internals that these rely on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import generators, pq
from psycopg._preparing import Prepare
from psycopg.abc import PQGen
from psycopg.pq.abc import PGresult

from dualwrite.recipes.psycopg.own_adapters import encoding_of
from dualwrite.recipes.sql.postgres import MARK, MARK_ATTRIBUTE, PARAMETER, new_mark, numbered

AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


# ---- parts of psycopg without a public name ------------------------------------------------------------------------


NO_PIPELINE: Final = int(pq.PipelineStatus.OFF)  # as a number, as libpq returns it


def is_two_phase(connection: AnyConnection) -> bool:
    """Return whether a two-phase transaction was begun, which `commit()` refuses to end."""
    return connection._tpc is not None  # noqa: SLF001


def is_in_transaction_block(connection: AnyConnection) -> bool:
    """Return whether a `connection.transaction()` is open, inside which `commit()` is refused."""
    return bool(connection._num_transactions)  # noqa: SLF001


def drop(connection: AnyConnection) -> None:
    """Close a connection at once, also one that other tasks use; `connection.close()` might return it to a pool.

    The loop must no longer watch its socket for them, because the next connection may get the same file descriptor.
    """
    if isinstance(connection, psycopg.AsyncConnection):
        with suppress(psycopg.Error, RuntimeError):  # it is closed already, or no loop is running
            loop, wire = asyncio.get_running_loop(), connection.pgconn.socket
            loop.remove_reader(wire)
            loop.remove_writer(wire)
    connection.pgconn.finish()


def configure_function(pool: Any) -> Any:
    return pool._configure  # noqa: SLF001


# ---- a statement of ours -------------------------------------------------------------------------------------------

# A cursor takes four times as long for a statement, in Python. Its other features are left out here: adapters for
# types, other result formats, and rows.

FAILED: Final = int(pq.ExecStatus.FATAL_ERROR)  # as a number, as libpq returns it

_ASCII: Final = "ascii"
_UNKNOWN_TYPE: Final = 0  # the server infers it
_BYTEA: Final = 17  # the server's number of the type
_TEXT_FORMAT: Final = 0
_BINARY_FORMAT: Final = 1

Values = Mapping[str, str | bytes]
"""Values of parameters, which a statement names as `:name`."""


def answered(connection: AnyConnection, sql: str) -> PQGen[PGresult]:
    """Send statements and yield until their responses arrive; return the last one. Raises psycopg's errors."""
    pgconn = connection.pgconn
    pgconn.send_query(sql.encode(_ASCII) if sql.isascii() else encoded(connection, sql))
    answers: list[PGresult] = yield from generators.execute(pgconn)
    if answers[-1].status == FAILED:
        raise failure(connection, answers[-1])
    return answers[-1]


def failure(connection: AnyConnection, answer: PGresult) -> psycopg.Error:
    return psycopg.errors.error_from_result(answer, encoding=connection.info.encoding)


class _Numbered(NamedTuple):
    """A statement in the form of psycopg's prepared statements: its parameters have numbers, and types."""

    query: bytes
    types: tuple[int, ...]


def executed(connection: AnyConnection, sql: str, values: Values) -> PQGen[PGresult]:
    """Execute one statement, prepared if the connection prepares statements; return its response, in text format."""
    query, names = with_numbers(sql, _ASCII if sql.isascii() else encoding_of(connection))
    parameters: list[bytes] = []
    types: tuple[int, ...] = ()
    formats: Any = []
    for parameter in names:  # a comprehension for each of these lists would be a call
        value = values[parameter]
        if isinstance(value, bytes):
            parameters.append(value)
            types += (_BYTEA,)
            formats.append(_BINARY_FORMAT)
        else:
            parameters.append(value.encode(_ASCII) if value.isascii() else encoded(connection, value))
            types += (_UNKNOWN_TYPE,)
            formats.append(_TEXT_FORMAT)
    statement: Any = _Numbered(query, types)
    pgconn, prepared = connection.pgconn, connection._prepared  # noqa: SLF001
    prepare, name = prepared.get(statement)
    if prepare is Prepare.NO:
        pgconn.send_query_params(query, parameters, types, formats)
    else:
        if prepare is Prepare.SHOULD:
            pgconn.send_prepare(name, query, types)
            answers: list[PGresult] = yield from generators.execute(pgconn)
            if answers[-1].status == FAILED:
                raise failure(connection, answers[-1])
        pgconn.send_query_prepared(name, parameters, formats)
    key = prepared.maybe_add_to_cache(statement, prepare, name)
    answers = yield from generators.execute(pgconn)
    if key is not None:
        prepared.validate(key, prepare, name, answers)
    if answers[-1].status == FAILED:
        raise failure(connection, answers[-1])
    yield from prepared.maintain_gen(connection)
    return answers[-1]


@lru_cache(maxsize=1024)
def with_numbers(sql: str, encoding: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement as `numbered` does, as the connection encodes it."""
    text, names = numbered(sql)
    return text.encode(encoding), names


def encoded(connection: AnyConnection, text: str) -> bytes:
    """Return a text in the client encoding, in which ASCII means the same whichever it is."""
    return text.encode(encoding_of(connection))


@lru_cache(maxsize=1024)
def pyformat(sql: str) -> str:
    """Return a statement whose parameters are written `:name` in psycopg's notation."""
    return PARAMETER.sub(r"%(\1)s", sql)


def one_text(connection: AnyConnection, sql: str, values: Values) -> Any:
    """Return the first value of a statement, a text, or an awaitable of it; None if it is NULL or there is no row."""
    steps = executed(connection, sql, values)
    if isinstance(connection, psycopg.AsyncConnection):
        return _one_text_in_loop(connection, steps)
    with connection.lock:
        return first_text(connection, connection.wait(steps))


async def _one_text_in_loop(connection: psycopg.AsyncConnection[Any], steps: PQGen[PGresult]) -> str | None:
    async with connection.lock:
        return first_text(connection, await connection.wait(steps))


def first_text(connection: AnyConnection, answer: PGresult) -> str | None:
    """Return the first value of a response; None if it is NULL or there is no row."""
    value = answer.get_value(0, 0) if answer.ntuples else None
    return value.decode(_ASCII) if value is not None and value.isascii() else text_of(connection, value)


def first_texts(connection: AnyConnection, answer: PGresult) -> list[str | None] | None:
    if not answer.ntuples:
        return None
    values = [answer.get_value(0, column) for column in range(answer.nfields)]
    return [value.decode(_ASCII) if value and value.isascii() else text_of(connection, value) for value in values]


def text_of(connection: AnyConnection, value: bytes | None) -> str | None:
    if value is None:
        return None
    return value.decode(_ASCII if value.isascii() else encoding_of(connection), errors="replace")


_IN_TRANSACTION: Final = int(pq.TransactionStatus.INTRANS)
_ACTIVE: Final = int(pq.TransactionStatus.ACTIVE)


def is_between_statements(connection: AnyConnection) -> bool:
    """Return whether the connection is in a transaction that has not failed, outside of a pipeline, and not in use."""
    return (
        connection.pgconn.transaction_status == _IN_TRANSACTION
        and not connection._pipeline  # noqa: SLF001
        and not connection.lock.locked()
    )


def is_interrupted(connection: AnyConnection) -> bool:
    """Return whether an exception ended the wait for a response: psycopg reads it on KeyboardInterrupt alone."""
    return connection.pgconn.transaction_status == _ACTIVE and not connection.lock.locked()


# ---- a BEGIN that marks its transaction ----------------------------------------------------------------------------

# SQLAlchemy leaves BEGIN to psycopg, which sends it before the first statement, in a separate message. Only this
# message can also contain `SET LOCAL`: a statement with parameters must be sent alone.

_START: Final = "_start_query"
_IDLE: Final = int(pq.TransactionStatus.IDLE)  # as a number, as libpq returns it


def mark_next_begin(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Make the next BEGIN set a new mark, noted in `MARK_ATTRIBUTE`; none in autocommit mode."""
    attributes = vars(connection)
    attributes.pop(MARK_ATTRIBUTE, None)
    if connection.pgconn.transaction_status == _IDLE and not connection.autocommit:
        attributes[_START] = _MarkedStart(connection)
    else:
        attributes.pop(_START, None)


class _MarkedStart:
    """The replacement of `connection._start_query` for one call."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __call__(self) -> PQGen[None]:
        connection = self._connection
        if connection.autocommit or connection.pgconn.transaction_status != _IDLE:
            return
        mark = new_mark()
        set_mark = f"SET LOCAL {MARK} = '{mark}'"
        del vars(connection)[_START]
        vars(connection)[MARK_ATTRIBUTE] = mark
        begin = connection._get_tx_start_command()  # noqa: SLF001
        if connection._pipeline:  # noqa: SLF001 - one statement is one message there, and there is no wait for it
            yield from connection._exec_command(begin)  # noqa: SLF001
            yield from connection._exec_command(set_mark.encode())  # noqa: SLF001
            yield from connection._pipeline._sync_gen()  # noqa: SLF001
        else:
            yield from answered(connection, f"{begin.decode()}; {set_mark}")


def isolation_name(level: int) -> str:
    return psycopg.IsolationLevel(level).name.replace("_", " ")


def begin_statement(connection: AnyConnection) -> str:
    """Return BEGIN as psycopg would send it, with the settings of the connection."""
    return connection._get_tx_start_command().decode()  # noqa: SLF001
