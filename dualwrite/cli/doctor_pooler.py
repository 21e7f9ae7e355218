"""The check for a pooler in front of PostgreSQL that gives each transaction another server connection."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from dualwrite.cli.doctor_checks import Check, warning

_WHAT: Final = "connection pooler"
_ROUNDS: Final = 10
_REMEDY: Final = (
    "turn prepared statements off in all drivers, because they would end up at other clients (psycopg: "
    "prepare_threshold=None, with SQLAlchemy "
    'connect_args={"prepare_threshold": None}; asyncpg: statement_cache_size=0 and prepared_statement_cache_size=0), '
    "and send no SET, LISTEN or session-level advisory lock outside a transaction (docs/databases.md, PgBouncer)"
)


def pooler_check(connection: sa.Connection) -> Check:
    """Check for a pooler, and end the transaction of `connection`.

    A pooler invents the process id that it reports at the login, so it differs from that of the server's process.
    """
    reported = getattr(getattr(connection.connection.driver_connection, "info", None), "backend_pid", None)
    first = _backend(connection)
    if reported == first:
        return Check("database", _WHAT, "none")
    ours, theirs = {first}, set()
    with connection.engine.connect() as other:
        for _ in range(_ROUNDS):
            theirs.add(_backend(other))
            ours.add(_backend(connection))
    if len(ours) > 1 or ours & theirs:
        return warning("database", _WHAT, "transactions of one connection run on several server connections", _REMEDY)
    return Check("database", _WHAT, "one, which keeps one server connection for each client connection")


def _backend(connection: sa.Connection) -> Any:
    """Return the id of the server's process that runs a new transaction."""
    process_id = connection.scalar(sa.text("SELECT pg_backend_pid()"))
    connection.rollback()
    return process_id
