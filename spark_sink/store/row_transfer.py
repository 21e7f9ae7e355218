"""Transfer rows unchanged: Arrow columns into the staging table, and staged rows into the target table.

Arrow columns are copied in the fastest way that the database has for many rows: CSV for COPY, or tuples for an INSERT.
A timestamp with a zone is an instant. A column without a zone stores it in UTC, even in a session with another zone: in
any other zone, one hour of each autumn would stand for two instants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import sqlalchemy as sa
from pyarrow import csv
from sqlalchemy.exc import DBAPIError

from spark_sink.errors import DualTableError
from spark_sink.store.table_catalog import OF_TIME, ColumnKind, ColumnType, TableName, as_sql, quoted_name


def copy_in(conn: sa.Connection, table: TableName, rows: Mapping[str, tuple[pa.Array, ColumnType]]) -> None:
    """Insert rows, given by column, in the transaction of `conn`.

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
    """Insert without SQLAlchemy's handling of each value: the driver gets the tuples as they are."""
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


_MICROSECONDS: Final = 6
"""The digits of a second in Spark's timestamps."""
_CSV: Final = csv.WriteOptions(include_header=False, quoting_style="needed")
"""Text is quoted, so that an empty string is not read as NULL."""


def check_fractions(column: pa.Array, type_: ColumnType) -> None:
    """Raise DualTableError for fractions of a second that the column would round, possibly into the next day."""
    if type_.kind not in OF_TIME or type_.scale is None or type_.scale >= _MICROSECONDS:
        return
    unit = 10 ** (_MICROSECONDS - type_.scale)
    moments = _in_microseconds(column).view(pa.int64())
    if pc.any(pc.not_equal(pc.multiply(pc.divide(moments, unit), unit), moments)).as_py():
        raise DualTableError(
            f"a column keeps {type_.scale} fractional digits of a second, and a value more, which would be rounded; "
            "no part of this attempt was written: remove them with date_trunc(), or give the column 6 digits"
        )


def as_csv(columns: Sequence[pa.Array], types: Sequence[ColumnType]) -> memoryview:
    """Return the rows for PostgreSQL's COPY with FORMAT csv, in UTF-8."""
    written = [_postgres(column, type_) for column, type_ in zip(columns, types, strict=True)]
    output = pa.BufferOutputStream()
    csv.write_csv(pa.record_batch(written, [str(index) for index in range(len(written))]), output, _CSV)
    return memoryview(output.getvalue())


def _postgres(column: pa.Array, type_: ColumnType) -> pa.Array:
    arrow = column.type
    if pt.is_binary(arrow) or pt.is_large_binary(arrow):
        return pa.array([None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()], pa.string())
    if pt.is_timestamp(arrow) and arrow.tz is not None:
        return column.cast(pa.timestamp(arrow.unit, "UTC"))
    if pt.is_boolean(arrow) and type_.kind is ColumnKind.INTEGER:
        return column.cast(pa.int8())
    if pt.is_float32(arrow) and type_.kind is ColumnKind.FLOAT64:
        return column.cast(pa.float64())
    return column


def as_mysql_tuples(columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
    """Return the rows for PyMySQL with a session in UTC. Raises DualTableError for floats that MySQL cannot store."""
    return list(zip(*[_mysql(column) for column in columns], strict=True))


def _mysql(column: pa.Array) -> list[Any]:
    if pt.is_floating(column.type) and pc.any(pc.invert(pc.is_finite(column))).as_py():
        raise DualTableError(
            "a float is NaN or infinite, which MySQL cannot store; no part of this attempt was written: filter such "
            "rows, or make them NULL"
        )
    values: list[Any] = _in_microseconds(column).to_pylist()
    return values


def as_sqlite_tuples(columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
    """Return the rows for sqlite3. Raises DualTableError for NaN, which SQLite would store as NULL."""
    return list(zip(*[_sqlite(column) for column in columns], strict=True))


def _sqlite(column: pa.Array) -> list[Any]:
    arrow = column.type
    if pt.is_floating(arrow) and pc.any(pc.is_nan(column)).as_py():
        raise DualTableError(
            "a float is NaN, which SQLite would store as NULL; no part of this attempt was written: filter such rows, "
            "or make them NULL"
        )
    values: list[Any]
    if pt.is_decimal(arrow):
        return [None if value is None else format(value, "f") for value in column.to_pylist()]
    if pt.is_boolean(arrow):
        values = column.cast(pa.int8()).to_pylist()
    elif pt.is_timestamp(arrow) or pt.is_date(arrow) or pt.is_time(arrow):
        values = _in_microseconds(column).cast(pa.string()).to_pylist()
    else:
        values = column.to_pylist()
    return values


def _in_microseconds(column: pa.Array) -> pa.Array:
    """Return timestamps with a zone as clock time in UTC, and those without a zone unchanged."""
    if pt.is_timestamp(column.type):
        return column.view(pa.timestamp(column.type.unit)).cast(pa.timestamp("us"))
    return column.cast(pa.time64("us")) if pt.is_time(column.type) else column


_EXACT: Final = (
    "SET @dw_sql_mode = @@SESSION.sql_mode, @dw_time_zone = @@SESSION.time_zone, "
    "SESSION sql_mode = CONCAT_WS(',', NULLIF(@@SESSION.sql_mode, ''), 'STRICT_ALL_TABLES'), "
    "SESSION time_zone = '+00:00'"
)
_AS_BEFORE: Final = "SET SESSION sql_mode = @dw_sql_mode, SESSION time_zone = @dw_time_zone"


@contextmanager
def exact_values(conn: sa.Connection) -> Iterator[None]:
    """Make MySQL refuse values that it would truncate or replace (strict mode), and read timestamps as UTC.

    Restores the settings of the session afterwards, unless the connection was lost. Other databases always refuse such
    values, and get a zone with each timestamp.
    """
    if conn.dialect.name not in ("mysql", "mariadb"):
        yield
        return
    conn.exec_driver_sql(_EXACT)
    try:
        yield
    finally:
        if not conn.invalidated:
            conn.exec_driver_sql(_AS_BEFORE)


class RowMove:
    """The statements that move `columns` in one dialect; `own` are the staging table's attempt, partition and seq.

    They are written as text: SQLAlchemy's upsert for MySQL doubles each % in the name of a column twice.
    """

    def __init__(
        self,
        dialect: sa.Dialect,
        target: TableName,
        staging: TableName,
        columns: Sequence[str],
        own: tuple[str, str, str],
    ) -> None:
        self._dialect = dialect
        self._into = as_sql(target.quoted(dialect))
        self._from = as_sql(staging.quoted(dialect))
        self._columns: Final = tuple(columns)
        self._attempt, self._partition, self._seq = own

    def insert(self, winners: Collection[str]) -> sa.TextClause:
        """Return the statement that inserts the rows of these attempts."""
        columns = self._list(self._columns)
        return self._of(
            winners,
            f"INSERT INTO {self._into} ({columns}) "
            f"SELECT {columns} FROM {self._from} WHERE {self._attempt} IN :winners",
        )

    def upsert(self, winners: Collection[str], key: Sequence[str]) -> sa.TextClause:
        """Return the statement that inserts the rows of these attempts, or updates those with the same key.

        Of several rows with one key only the last is used: PostgreSQL refuses to update a row twice, and the others do
        so in an arbitrary order. The ORDER BY is for keys that only the index of the table treats as equal (NOCASE).
        """
        columns, partition, seq = self._list(self._columns), self._partition, self._seq
        return self._of(
            winners,
            f"INSERT INTO {self._into} ({columns}) SELECT {columns} FROM ("
            f"SELECT {columns}, {partition}, {seq}, ROW_NUMBER() OVER ("
            f"PARTITION BY {self._list(key)} ORDER BY {partition} DESC, {seq} DESC) AS dw_from_the_last "
            f"FROM {self._from} WHERE {self._attempt} IN :winners) AS dw_rows "
            f"WHERE dw_from_the_last = 1 ORDER BY {partition}, {seq} {self._on_conflict(key)}",
        )

    def _on_conflict(self, key: Sequence[str]) -> str:
        others = [name for name in self._columns if name not in key]
        if self._dialect.name in ("mysql", "mariadb"):
            changes = [f"{name} = VALUES({name})" for name in map(self._name, others or key[:1])]
            return f"ON DUPLICATE KEY UPDATE {', '.join(changes)}"
        changes = [f"{name} = excluded.{name}" for name in map(self._name, others)]
        action = f"UPDATE SET {', '.join(changes)}" if changes else "NOTHING"
        return f"ON CONFLICT ({self._list(key)}) DO {action}"

    def _list(self, names: Sequence[str]) -> str:
        return ", ".join(map(self._name, names))

    def _name(self, name: str) -> str:
        return as_sql(quoted_name(name, self._dialect))

    @staticmethod
    def _of(winners: Collection[str], statement: str) -> sa.TextClause:
        return sa.text(statement).bindparams(sa.bindparam("winners", list(winners), expanding=True))
