"""Read the columns and keys of a table from the database, each with one short statement.

Every batch reads them. SQLAlchemy's reflection takes several statements and ten times as long, so it is used only for
the keys of MySQL and SQLite.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import sqlalchemy as sa


@dataclass(frozen=True)
class TableName:
    """A table name with its schema, both taken literally."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"

    def quoted(self, dialect: sa.Dialect) -> str:
        """Return the name as SQL."""
        return ".".join(quoted_name(name, dialect) for name in (self.schema, self.name) if name is not None)

    def clause(self, *columns: str) -> sa.TableClause:
        """Return the table for SQLAlchemy's statements."""
        schema = None if self.schema is None else sa.quoted_name(self.schema, True)
        return sa.table(sa.quoted_name(self.name, True), *map(_column, columns), schema=schema)


def _column(name: str) -> sa.ColumnClause[Any]:
    return sa.column(sa.quoted_name(name, True))


def quoted_name(name: str, dialect: sa.Dialect) -> str:
    """Return a name as SQL. SQLAlchemy's own quoting doubles each % for drivers that expect parameters."""
    preparer = dialect.identifier_preparer
    escaped = name.replace(preparer.escape_quote, preparer.escape_to_quote)
    return f"{preparer.initial_quote}{escaped}{preparer.final_quote}"


_NAME_PART: Final = re.compile(r'"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([^".`]+)')


def parse_table_name(text: str) -> TableName | None:
    """Parse `table` or `schema.table`; a part with a dot must be in quotes. Return None for anything else."""
    parts: list[str] = []
    at = 0
    while match := _NAME_PART.match(text, at):
        double, back, plain = match.groups()
        parts.append(double.replace('""', '"') if double else back.replace("``", "`") if back else plain)
        at = match.end()
        if at == len(text):
            return TableName(parts[0] if len(parts) == 2 else None, parts[-1]) if len(parts) <= 2 else None
        if text[at] != ".":
            return None
        at += 1
    return None


class ColumnKind(Enum):
    """The kind of values in a column, as far as it matters for writing to it."""

    BOOLEAN = "booleans"
    INTEGER = "whole numbers"
    DECIMAL = "decimal numbers"
    BINARY_NUMERIC = "numbers, exact to 15 digits"
    """SQLite's NUMERIC affinity."""
    FLOAT32 = "4-byte floats"
    FLOAT64 = "8-byte floats"
    TEXT = "text"
    FREE_TEXT = "any text"
    """SQLite's TEXT, which also holds dates and exact decimals."""
    PARSED = "values parsed from text"
    """uuid, json, enum, inet and others."""
    BYTES = "bytes"
    DATE = "dates"
    TIMESTAMP = "timestamps without a zone"
    INSTANT = "timestamps with a zone"
    TIME = "times of day"
    ANYTHING = "anything"
    UNKNOWN = "a type the sink does not support"


OF_TIME: Final = frozenset({ColumnKind.TIMESTAMP, ColumnKind.INSTANT, ColumnKind.TIME})


@dataclass(frozen=True)
class ColumnType:
    """The type of a column; `scale`: digits after the point, of a number or of seconds, None if there is no limit."""

    kind: ColumnKind
    scale: int | None = None


@dataclass(frozen=True)
class TableColumn:
    """One column of a table."""

    name: str
    type_sql: str
    """The type as in CREATE TABLE, with the collation if it is not the default of the type."""
    type: ColumnType
    nullable: bool
    filled: bool
    """Whether the database supplies a value if the row has none."""
    read_only: bool
    """Whether only the database supplies values."""
    numbered: bool = False
    """Whether it is AUTO_INCREMENT (MySQL)."""


Columns = Mapping[str, TableColumn]
"""Columns by name, in the order of the table; empty if there is no such table."""


def read_columns(conn: sa.Connection, table: TableName) -> Columns:
    """Return the columns, as this transaction sees them now."""
    return {column.name: column for column in _READERS[conn.dialect.name](conn, table)}


# ---- PostgreSQL -------------------------------------------------------------------------------------------------

_POSTGRES_COLUMNS: Final = sa.text(
    """
    SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type_sql,
           CASE WHEN a.attcollation <> t.typcollation
                THEN quote_ident(n.nspname) || '.' || quote_ident(c.collname) END AS collation,
           b.typname AS base,
           format_type(b.oid, CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE a.atttypmod END) AS sized,
           a.attnotnull OR t.typnotnull AS not_null,
           a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL AS filled,
           a.attgenerated <> '' OR a.attidentity = 'a' AS read_only
      FROM pg_attribute a
      JOIN pg_type t ON t.oid = a.atttypid
      JOIN pg_type b ON b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
      LEFT JOIN pg_collation c ON c.oid = a.attcollation
      LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
     WHERE a.attrelid = to_regclass(:table) AND a.attnum > 0 AND NOT a.attisdropped
     ORDER BY a.attnum
    """
)
_POSTGRES_KINDS: Final = {
    "bool": ColumnKind.BOOLEAN,
    **dict.fromkeys(("int2", "int4", "int8", "oid"), ColumnKind.INTEGER),
    "numeric": ColumnKind.DECIMAL,
    "float4": ColumnKind.FLOAT32,
    "float8": ColumnKind.FLOAT64,
    **dict.fromkeys(("text", "varchar", "bpchar", "citext", "name"), ColumnKind.TEXT),
    "bytea": ColumnKind.BYTES,
    "date": ColumnKind.DATE,
    "timestamp": ColumnKind.TIMESTAMP,
    "timestamptz": ColumnKind.INSTANT,
    "time": ColumnKind.TIME,
}
_SCALE: Final = re.compile(r"\(\d+,(-?\d+)\)")
_FRACTION: Final = re.compile(r"^time\w*\((\d)\)")


def _postgres(conn: sa.Connection, table: TableName) -> list[TableColumn]:
    rows = conn.execute(_POSTGRES_COLUMNS, {"table": table.quoted(conn.dialect)})
    return [
        TableColumn(
            name=row.name,
            type_sql=row.type_sql if row.collation is None else f"{row.type_sql} COLLATE {row.collation}",
            type=_postgres_type(row.base, row.sized),
            nullable=not row.not_null,
            filled=row.filled,
            read_only=row.read_only,
        )
        for row in rows
    ]


def _postgres_type(base: str, sized: str) -> ColumnType:
    kind = _POSTGRES_KINDS.get(base, ColumnKind.PARSED)
    scale = (_SCALE if kind is ColumnKind.DECIMAL else _FRACTION).search(sized)
    return ColumnType(kind, int(scale[1]) if scale and (kind is ColumnKind.DECIMAL or kind in OF_TIME) else None)


# ---- MySQL and MariaDB ------------------------------------------------------------------------------------------

_MYSQL_COLUMNS: Final = sa.text(
    """
    SELECT column_name AS name, column_type AS type_sql, data_type AS base,
           COALESCE(numeric_scale, datetime_precision) AS scale,
           character_set_name AS charset, collation_name AS collation,
           is_nullable = 'YES' AS nullable, column_default IS NOT NULL AS has_default, LOWER(extra) AS extra
      FROM information_schema.columns
     WHERE table_schema = :schema AND table_name = :table
     ORDER BY ordinal_position
    """
)
_MYSQL_KINDS: Final = {
    "bit": ColumnKind.BOOLEAN,
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), ColumnKind.INTEGER),
    "decimal": ColumnKind.DECIMAL,
    "float": ColumnKind.FLOAT32,
    "double": ColumnKind.FLOAT64,
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), ColumnKind.TEXT),
    **dict.fromkeys(("json", "enum", "set", "uuid", "inet4", "inet6"), ColumnKind.PARSED),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), ColumnKind.BYTES),
    "date": ColumnKind.DATE,
    "datetime": ColumnKind.TIMESTAMP,
    "timestamp": ColumnKind.INSTANT,
    "time": ColumnKind.TIME,
}
_ROUNDS_OR_CUTS: Final = re.compile(r"(float|double)\(|bit\((?!1\))")


def _mysql(conn: sa.Connection, table: TableName) -> list[TableColumn]:
    rows = conn.execute(_MYSQL_COLUMNS, _mysql_names(conn, table))
    return [
        TableColumn(
            name=row.name,
            type_sql=row.type_sql
            if row.charset is None
            else f"{row.type_sql} CHARACTER SET {row.charset} COLLATE {row.collation}",
            type=_mysql_type(row.base, row.type_sql, row.scale),
            nullable=bool(row.nullable),
            filled=bool(row.has_default) or "auto_increment" in row.extra or "generated" in row.extra,
            read_only="generated" in row.extra and "default_generated" not in row.extra,
            numbered="auto_increment" in row.extra,
        )
        for row in rows
    ]


def _mysql_names(conn: sa.Connection, table: TableName) -> dict[str, str | None]:
    """Return the names as plain values: the server would compare any other expression with all its tables."""
    return {"schema": table.schema or conn.dialect.default_schema_name, "table": table.name}


def _mysql_type(base: str, type_sql: str, scale: int | None) -> ColumnType:
    if _ROUNDS_OR_CUTS.match(type_sql):
        return ColumnType(ColumnKind.UNKNOWN)
    kind = _MYSQL_KINDS.get(base.lower(), ColumnKind.UNKNOWN)
    return ColumnType(kind, scale if kind is ColumnKind.DECIMAL or kind in OF_TIME else None)


# ---- SQLite -----------------------------------------------------------------------------------------------------

_SQLITE_COLUMNS: Final = 'SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(:table)'
_SQLITE_COLUMNS_IN: Final = _SQLITE_COLUMNS.replace(":table", ":table, :schema")
_GENERATED: Final = (2, 3)
_SQLITE_KINDS: Final = (
    ("BOOL", ColumnKind.BOOLEAN),
    ("DATETIME", ColumnKind.TIMESTAMP),
    ("TIMESTAMP", ColumnKind.TIMESTAMP),
    ("DATE", ColumnKind.DATE),
    ("JSON", ColumnKind.PARSED),
    ("INT", ColumnKind.INTEGER),
    ("CHAR", ColumnKind.FREE_TEXT),
    ("CLOB", ColumnKind.FREE_TEXT),
    ("TEXT", ColumnKind.FREE_TEXT),
    ("BLOB", ColumnKind.ANYTHING),
    ("BINARY", ColumnKind.BYTES),
    ("ANY", ColumnKind.ANYTHING),
    ("REAL", ColumnKind.FLOAT64),
    ("FLOA", ColumnKind.FLOAT64),
    ("DOUB", ColumnKind.FLOAT64),
    ("TIME", ColumnKind.TIME),
)
"""The first of these names in the declared type decides: common names, then SQLite's affinity rules."""


def _sqlite(conn: sa.Connection, table: TableName) -> list[TableColumn]:
    statement = sa.text(_SQLITE_COLUMNS if table.schema is None else _SQLITE_COLUMNS_IN)
    names = {"table": table.name} if table.schema is None else {"table": table.name, "schema": table.schema}
    rows = conn.execute(statement, names).all()
    keys = sum(row.pk > 0 for row in rows)
    return [
        TableColumn(
            name=row.name,
            type_sql=row.type,
            type=ColumnType(_sqlite_kind(row.type)),
            nullable=not row.notnull,
            filled=row.dflt_value is not None
            or row.hidden in _GENERATED
            or (keys == 1 and row.pk == 1 and row.type.upper() == "INTEGER"),
            read_only=row.hidden in _GENERATED,
        )
        for row in rows
    ]


def _sqlite_kind(declared: str) -> ColumnKind:
    if not declared:
        return ColumnKind.ANYTHING
    return next((kind for part, kind in _SQLITE_KINDS if part in declared.upper()), ColumnKind.BINARY_NUMERIC)


_READERS: Final[Mapping[str, Callable[[sa.Connection, TableName], list[TableColumn]]]] = {
    "postgresql": _postgres,
    "mysql": _mysql,
    "mariadb": _mysql,
    "sqlite": _sqlite,
}


# ---- keys -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UniqueKey:
    """Columns in which no two rows have the same values."""

    columns: frozenset[str]
    is_primary: bool


def unique_keys(conn: sa.Connection, table: TableName) -> list[UniqueKey]:
    """Return the unique keys that hold for all rows and are not deferred."""
    return _postgres_keys(conn, table) if conn.dialect.name == "postgresql" else _reflected_keys(conn, table)


_POSTGRES_KEYS: Final = sa.text(
    """
    SELECT i.indisprimary AS is_primary,
           ARRAY(SELECT CAST(a.attname AS text)
                   FROM unnest(CAST(i.indkey AS int2[])) WITH ORDINALITY AS k (number, place)
                   JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
                  WHERE k.place <= i.indnkeyatts) AS names
      FROM pg_index i
     WHERE i.indrelid = to_regclass(:table) AND i.indisunique AND i.indisvalid AND i.indimmediate
       AND i.indpred IS NULL AND i.indexprs IS NULL
    """
)


def _postgres_keys(conn: sa.Connection, table: TableName) -> list[UniqueKey]:
    rows = conn.execute(_POSTGRES_KEYS, {"table": table.quoted(conn.dialect)})
    return [UniqueKey(frozenset(row.names), row.is_primary) for row in rows]


def _reflected_keys(conn: sa.Connection, table: TableName) -> list[UniqueKey]:
    inspector = sa.inspect(conn)
    primary = frozenset(inspector.get_pk_constraint(table.name, schema=table.schema)["constrained_columns"])
    constraints = inspector.get_unique_constraints(table.name, schema=table.schema)
    others = [frozenset(each["column_names"]) for each in constraints]
    for index in inspector.get_indexes(table.name, schema=table.schema):
        partial = any(name.endswith("_where") for name in index.get("dialect_options", {}))
        if index["unique"] and not partial and None not in index["column_names"]:
            others.append(frozenset(name for name in index["column_names"] if name is not None))
    return [UniqueKey(primary, True)] * bool(primary) + [UniqueKey(key, False) for key in others]


_MYSQL_TRANSACTIONS: Final = sa.text(
    """
    SELECT e.engine FROM information_schema.tables t JOIN information_schema.engines e ON e.engine = t.engine
     WHERE t.table_schema = :schema AND t.table_name = :table AND e.transactions <> 'YES'
    """
)


def engine_without_transactions(conn: sa.Connection, table: TableName) -> str | None:
    """Return MySQL's storage engine of this table if it does not have transactions, else None."""
    if conn.dialect.name not in ("mysql", "mariadb"):
        return None
    found: str | None = conn.scalar(_MYSQL_TRANSACTIONS, _mysql_names(conn, table))
    return found


def as_sql(text: str) -> str:
    """Return SQL for `sa.text()`, with no part of it taken for a parameter."""
    return text.replace(":", "\\:")
