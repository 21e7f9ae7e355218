"""Where our tables are, on any database that SQLAlchemy reaches; why that is asked once: `pinned_tables.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import sqlalchemy as sa

from dualwrite.recipes.sql.pinned_tables import (
    PinnedTables,
    Rows,
    checked_schema,
    execute_query,
    find_schema,
    find_state_table,
)

AS_NAMED: Final = {"schema_translate_map": None}
"""The execution options of a statement whose schema is not translated, whatever is set on engine or connection."""


@cache
def in_schema(table: sa.Table, schema: str | None) -> sa.Table:
    """The table as a schema has it."""
    return table if schema is None else table.to_metadata(sa.MetaData(), schema=schema)


def schema_for(engine: sa.Engine, schema: Any) -> str | None:
    """The setting, else what a schema_translate_map of the engine makes of a table without a schema."""
    if schema is None:
        translated = engine.get_execution_options().get("schema_translate_map") or {}
        schema = translated.get(None)
    return checked_schema(schema)


def pinned_tables(connection: sa.Connection, schema: str | None) -> PinnedTables | None:
    """Where the state table is; None where PostgreSQL has none. Raises StateTableError."""
    dialect = connection.dialect
    if dialect.name == "postgresql":
        return execute_query(find_state_table(schema), _asked(connection))
    return _quoted(connection, schema or _default_schema(connection))


def home(connection: sa.Connection, schema: str | None, table: str) -> PinnedTables:
    """Where another table of ours is, or would be created."""
    if connection.dialect.name != "postgresql":
        return _quoted(connection, schema or _default_schema(connection))
    return execute_query(find_schema(schema, table), _asked(connection))


def _asked(connection: sa.Connection) -> Callable[[str, Mapping[str, Any]], Rows]:
    return lambda sql, values: connection.execute(sa.text(sql), values).all()


def _default_schema(connection: sa.Connection) -> str | None:
    dialect = connection.dialect
    if dialect.name in ("mysql", "mariadb"):
        found: str | None = connection.exec_driver_sql("SELECT DATABASE()").scalar()
        return found
    return "main" if dialect.name == "sqlite" else dialect.default_schema_name


def _quoted(connection: sa.Connection, schema: str | None) -> PinnedTables:
    preparer = connection.dialect.identifier_preparer
    return PinnedTables(schema, None if schema is None else preparer.quote_schema(schema))
