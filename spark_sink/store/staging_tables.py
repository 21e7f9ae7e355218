"""Staging tables: cheap to write and to empty, and marked with the sink that they belong to.

On PostgreSQL they are UNLOGGED, so that the rows of a batch are in the write-ahead log once: when they are moved. A
crash or a failover empties them. The decision counts the rows that it moves, so it notices, and the batch is written
again. After use the table is truncated, which leaves no dead rows for VACUUM.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from dualwrite.recipes.sqlalchemy.deciding import LOCK_NOT_AVAILABLE, sqlstate_of
from spark_sink.store.table_catalog import TableName, as_sql

NAMES: Final = "dw_stage_"
"""The beginning of the names of all staging tables."""

_OWNER: Final = "dualwrite: staging rows of the sink "
_WORTH_TRUNCATING_BYTES: Final = 1_048_576
"""Below this size rows are deleted: truncating makes new files, which takes longer."""

_SIZE: Final = sa.text(
    "SELECT pg_relation_size(c.oid) > :bytes AND has_table_privilege(c.oid, 'TRUNCATE')"
    " FROM pg_class c WHERE c.oid = to_regclass(:name)"
)


def create_staging(dialect: sa.Dialect, table: TableName, columns: Sequence[str], sink_id: str) -> str:
    """Return the DDL of a staging table."""
    name, parts = table.quoted(dialect), ", ".join(columns)
    if dialect.name == "postgresql":
        # It is truncated after use, and an autovacuum worker would block that.
        return f"CREATE UNLOGGED TABLE {name} ({parts}) WITH (autovacuum_enabled = off)"
    if dialect.name == "sqlite":
        return f"CREATE TABLE {name} (/* {_OWNER}{sink_id} */ {parts})"
    return f"CREATE TABLE {name} ({parts}) ENGINE=InnoDB COMMENT='{_OWNER}{sink_id}'"


def mark_owner(conn: sa.Connection, table: TableName, sink_id: str) -> None:
    """Mark the table with its sink, if the DDL does not do it; an id has no character to be escaped."""
    if conn.dialect.name == "postgresql":
        conn.execute(sa.text(as_sql(f"COMMENT ON TABLE {table.quoted(conn.dialect)} IS '{_OWNER}{sink_id}'")))


def truncated(conn: sa.Connection, table: TableName) -> bool:
    """Truncate the table if that is worth it, permitted, and need not wait. Return whether it is empty now."""
    if conn.dialect.name != "postgresql":
        return False
    name = table.quoted(conn.dialect)
    if not conn.scalar(_SIZE, {"name": name, "bytes": _WORTH_TRUNCATING_BYTES}):
        return False
    try:
        with conn.begin_nested():
            conn.execute(sa.text(as_sql(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE NOWAIT")))
            conn.execute(sa.text(as_sql(f"TRUNCATE {name}")))
    except OperationalError as error:
        if error.orig is None or sqlstate_of(error.orig) != LOCK_NOT_AVAILABLE:
            raise
        return False
    return True


def owned_tables(conn: sa.Connection, schema: str | None) -> dict[TableName, str]:
    """Return the staging tables of a schema, or of the default one, with the sink of each.

    Leaves out tables without such a mark.
    """
    found = {}
    for name in sa.inspect(conn).get_table_names(schema=schema):
        if not name.startswith(NAMES):
            continue
        owner = re.search(rf"{_OWNER}([A-Za-z0-9._]+)", _note(conn, name, schema))
        if owner is not None:
            found[TableName(schema, name)] = owner[1]
    return found


def _note(conn: sa.Connection, name: str, schema: str | None) -> str:
    if conn.dialect.name == "sqlite":
        query = sa.text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name")
        return str(conn.scalar(query, {"name": name}) or "")
    return str(sa.inspect(conn).get_table_comment(name, schema=schema)["text"] or "")


def drop_staging(conn: sa.Connection, table: TableName) -> None:
    """Drop a staging table; on MySQL this commits the transaction."""
    conn.execute(sa.text(as_sql(f"DROP TABLE IF EXISTS {table.quoted(conn.dialect)}")))
