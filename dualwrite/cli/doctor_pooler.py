"""Whether something between this client and PostgreSQL gives each transaction another connection of the server."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from dualwrite.cli.doctor_checks import Check, warning

_WHAT: Final = "connection pooler"
_ROUNDS: Final = 10
_REMEDY: Final = (
    "let no driver prepare statements, which would be other clients' (psycopg: prepare_threshold=None, with SQLAlchemy "
    'connect_args={"prepare_threshold": None}; asyncpg: statement_cache_size=0 and prepared_statement_cache_size=0), '
    "and send no SET, LISTEN or session-level advisory lock outside a transaction (docs/databases.md, PgBouncer)"
)


def pooler_check(connection: sa.Connection) -> Check:
    """Ends the transaction of `connection`. A pooler makes up the process id that it tells at the login."""
    told = getattr(getattr(connection.connection.driver_connection, "info", None), "backend_pid", None)
    first = _backend(connection)
    if told == first:
        return Check("database", _WHAT, "none")
    ours, theirs = {first}, set()
    with connection.engine.connect() as other:
        for _ in range(_ROUNDS):
            theirs.add(_backend(other))
            ours.add(_backend(connection))
    if len(ours) > 1 or ours & theirs:
        return warning("database", _WHAT, "transactions of one connection run on several of the server", _REMEDY)
    return Check("database", _WHAT, "one, which keeps a connection of the server for each of ours")


def _backend(connection: sa.Connection) -> Any:
    """The server's process in a transaction of its own."""
    process_id = connection.scalar(sa.text("SELECT pg_backend_pid()"))
    connection.rollback()
    return process_id
