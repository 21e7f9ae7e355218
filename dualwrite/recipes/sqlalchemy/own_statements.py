"""Our own statements, and their adapters: always the drivers', even if the application has registered others.

Applications register adapters for a connection, or for all of them. A loader that does not return text as str would
change the names of tables and the states that we read, and a dumper those that we write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sa

OWN: Final = "dualwrite_own"
"""The execution option of our own statements, and of the connections that a writer opens for them."""

AS_NAMED: Final[Mapping[str, Any]] = {"schema_translate_map": None, OWN: True}
"""Execution options of our own statements, which also disable the schema translation of the engine or connection."""


def for_own_use(engine: sa.Engine) -> sa.Engine:
    """Return the same engine for our own statements, outside the caller's transactions; `watch` it too."""
    return engine.execution_options(**{OWN: True})


def own_text(sql: str) -> sa.TextClause:
    return sa.text(sql).execution_options(**{OWN: True})


cached_text: Final = lru_cache(maxsize=256)(own_text)
"""`own_text` for statements that are repeated: making one takes as long as executing it."""


def execute_as_own(cursor: Any, context: Any, execute: Callable[[], object]) -> bool:
    """Let the cursor use the driver's own adapters. Return whether `execute` was already called.

    asyncpg and sqlite3 have no adapters for a single statement; asyncpg's under SQLAlchemy belong to the connection.
    """
    match context.dialect.driver:
        case "psycopg":
            from dualwrite.recipes.psycopg.own_adapters import use_own_adapters  # psycopg may not be installed

            use_own_adapters(getattr(cursor, "_cursor", cursor))  # SQLAlchemy wraps the cursor of an AsyncConnection
        case "psycopg2":
            from psycopg2.extensions import UNICODE, register_type  # type: ignore[import-untyped]

            register_type(UNICODE, cursor)
        case "pymysql":
            with _conversions_of_pymysql(cursor.connection):
                execute()
            return True
    return False


@contextmanager
def _conversions_of_pymysql(connection: Any) -> Iterator[None]:
    """Let a connection use PyMySQL's own conversions. PyMySQL reads a result while it executes the statement."""
    from pymysql.converters import decoders, encoders

    before = connection.encoders, connection.decoders
    connection.encoders, connection.decoders = encoders, decoders
    try:
        yield
    finally:
        connection.encoders, connection.decoders = before
