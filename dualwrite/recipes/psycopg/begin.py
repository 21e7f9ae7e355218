"""Mark the next transaction that a psycopg connection begins by itself, in the same round trip as its BEGIN.

SQLAlchemy leaves BEGIN to psycopg, which sends it before the first statement, in a message of its own. `SET LOCAL` can
ride along there and nowhere else: a statement with parameters takes no other one with it. psycopg has no public way for
that, so its `_start_query` is replaced on this one connection, until it has been called once.
"""

from __future__ import annotations

import os
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.abc import PQGen

from dualwrite.recipes.psycopg.pipelined_statement import answered
from dualwrite.recipes.sql.postgres import MARK, MARK_ATTRIBUTE

_START: Final = "_start_query"
_IDLE: Final = int(pq.TransactionStatus.IDLE)  # as a number, which is what libpq gives


def mark_next_begin(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Let the next BEGIN of `connection` set a new mark, which is then its attribute `MARK_ATTRIBUTE`.

    One that is in a transaction already, or in autocommit mode, has no mark.
    """
    attributes = vars(connection)
    attributes.pop(MARK_ATTRIBUTE, None)
    if connection.pgconn.transaction_status == _IDLE and not connection.autocommit:
        attributes[_START] = _MarkedStart(connection)
    else:
        attributes.pop(_START, None)


class _MarkedStart:
    """`connection._start_query`, once."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __call__(self) -> PQGen[None]:
        connection = self._connection
        if connection.autocommit or connection.pgconn.transaction_status != _IDLE:
            return
        mark = os.urandom(8).hex()
        set_mark = f"SET LOCAL {MARK} = '{mark}'"
        del vars(connection)[_START]
        vars(connection)[MARK_ATTRIBUTE] = mark
        begin = connection._get_tx_start_command()
        if connection._pipeline:  # one statement is one message there, and none is waited for
            yield from connection._exec_command(begin)
            yield from connection._exec_command(set_mark.encode())
            yield from connection._pipeline._sync_gen()
        else:
            yield from answered(connection, f"{begin.decode()}; {set_mark}")
