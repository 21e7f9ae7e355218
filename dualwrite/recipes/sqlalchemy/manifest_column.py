"""The column `manifest`, missing from older tables: the state table, or the Spark sink's attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, NoSuchTableError
from sqlalchemy.schema import CreateColumn

from dualwrite.guarded import pass_on_signal
from dualwrite.recipes.core.store import missing_manifest
from dualwrite.recipes.sql.pinned_tables import ALTER_TIMEOUT_S


def lacks_manifest(bind: sa.Engine | sa.Connection, table: sa.Table) -> bool:
    """Return whether the table exists without the column."""
    try:
        found = sa.inspect(bind).get_columns(table.name, schema=table.schema)
    except NoSuchTableError:
        return False
    return all(column["name"].lower() != table.c.manifest.name for column in found)


def add_manifest(engine: sa.Engine, table: sa.Table, missing: Callable[[], Exception] = missing_manifest) -> None:
    """Add the column if the table lacks it. Safe in several processes at once.

    Raises the error `missing` (StateTableError) if the database refuses that: only the owner of a table may alter it.
    """
    if not lacks_manifest(engine, table):
        return
    try:
        with engine.begin() as connection, _limited_wait(connection):
            connection.exec_driver_sql(statement(connection.dialect, table))
    except DBAPIError as error:
        pass_on_signal(error)
        if lacks_manifest(engine, table):
            raise missing() from error
        # another process added it at the same moment


def statement(dialect: sa.Dialect, table: sa.Table) -> str:
    """Return the statement that adds the column, without the word COLUMN, which not every database allows."""
    column = CreateColumn(table.c.manifest).compile(dialect=dialect)
    return f"ALTER TABLE {dialect.identifier_preparer.format_table(table)} ADD {column}"


@contextmanager
def _limited_wait(connection: sa.Connection) -> Iterator[None]:
    """Limit the wait for the table's lock where the database would wait without end."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{ALTER_TIMEOUT_S}s'")
        yield
    elif connection.dialect.name in ("mysql", "mariadb"):
        before = connection.exec_driver_sql("SELECT @@SESSION.lock_wait_timeout").scalar()
        connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {ALTER_TIMEOUT_S}")
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {before}")
    else:
        yield
