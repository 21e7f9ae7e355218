"""Arrow columns into a table, by the fastest way that the database has for many rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from spark_sink.attempt.row_values import as_csv, as_mysql_tuples, as_sqlite_tuples, check_fractions
from spark_sink.store.dual_types import ColumnType
from spark_sink.store.table_catalog import TableName, quoted_name


def copy_in(conn: sa.Connection, table: TableName, rows: Mapping[str, tuple[pa.Array, ColumnType]]) -> None:
    """Add rows, given by column, in the transaction of `conn`.

    Raises SQLAlchemy's errors, and DualTableError for values that the database would change.
    """
    for column, type_ in rows.values():
        check_fractions(column, type_)
    columns = [column for column, _ in rows.values()]
    if conn.dialect.name == "postgresql":
        _copy(conn, table, list(rows), as_csv(columns, [type_ for _, type_ in rows.values()]))
    elif conn.dialect.name == "sqlite":
        _insert(conn, table, list(rows), as_sqlite_tuples(columns))
    else:
        _insert(conn, table, list(rows), as_mysql_tuples(columns))


def _insert(conn: sa.Connection, table: TableName, names: list[str], rows: list[tuple[Any, ...]]) -> None:
    """Past SQLAlchemy's handling of each value: the driver gets the tuples as they are."""
    into = f"{table.quoted(conn.dialect)} ({', '.join(quoted_name(name, conn.dialect) for name in names)})"
    if conn.dialect.paramstyle == "qmark":
        place = "?"
    else:
        place, into = "%s", into.replace("%", "%%")
    conn.exec_driver_sql(f"INSERT INTO {into} VALUES ({', '.join([place] * len(names))})", rows)


def _copy(conn: sa.Connection, table: TableName, names: list[str], rows: memoryview) -> None:
    dialect = conn.dialect
    columns = ", ".join(quoted_name(name, dialect) for name in names)
    statement = f"COPY {table.quoted(dialect)} ({columns}) FROM STDIN WITH (FORMAT csv, ENCODING 'UTF8')"
    driver = dialect.loaded_dbapi
    cursor = conn.connection.cursor()
    try:
        with cursor.copy(statement) as copy:
            copy.write(rows)
    except driver.Error as error:
        gone = dialect.is_disconnect(error, conn.connection, cursor)
        if gone:
            conn.invalidate(error)
        raise DBAPIError.instance(
            statement, None, error, driver.Error, connection_invalidated=gone, dialect=dialect
        ) from error
    finally:
        cursor.close()
