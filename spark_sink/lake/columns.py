"""Decide whether the columns of a DataFrame fit those of a table of files. Pure.

Files are added to the table's log without the library's own writer, so no other code would check constraints, or
compute columns. A table that needs either is refused, by `delta_support.py` or `iceberg_support.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from spark_sink.errors import SinkOptionError
from spark_sink.options import DualTable
from spark_sink.store.dual_columns import ValueKind, mapped, refused, value_kind

_FIELD_ID: Final = b"PARQUET:field_id"
"""Iceberg's id of a column, which outlives its name; Delta tables have none."""


@dataclass(frozen=True)
class LakeColumns:
    """The description of a table, as far as it matters for adding files."""

    columns: pa.Schema
    unsupported: str | None
    """Why files may not be added to it, as the end of a sentence that begins with its name; None if they may."""


def check_supported(options: DualTable, table: LakeColumns) -> None:
    """Raise SinkOptionError for a table to which files may not be added directly."""
    if table.unsupported is not None:
        raise refused(f"{options.table} {table.unsupported}")


def file_columns(options: DualTable, schema: pa.Schema, table: LakeColumns) -> pa.Schema:
    """Return the columns of data files, in the table's order and types. Raises SinkOptionError."""
    check_supported(options, table)
    targets = mapped(options, schema, table.columns.names)
    fields = [field for field in table.columns if field.name in targets]
    for field in fields:
        reason = why_not(schema.field(targets[field.name]).type, field.type)
        if reason is not None:
            raise refused(f"the column {field.name} of {options.table} is of type {field.type}: {reason}")
    _check_left_out(options, table, set(targets))
    return pa.schema(fields)


def check_file(options: DualTable, file: pa.Schema, table: LakeColumns) -> None:
    """Raise SinkOptionError if a data file does not fit the current table unchanged."""
    for field, now in zip(file, columns_now(options, file, table), strict=True):
        if not is_same(field, now):
            raise _changed(options, field, now)


def columns_now(options: DualTable, file: pa.Schema, table: LakeColumns) -> list[pa.Field]:
    """Return the current columns of the table for those of a data file: renamed, or of a wider type.

    Raises SinkOptionError if the table can no longer store the file's rows.
    """
    check_supported(options, table)
    found = [_column_now(options, field, table.columns) for field in file]
    _check_left_out(options, table, {now.name for now in found})
    return found


def is_same(field: pa.Field, now: pa.Field) -> bool:
    """Return whether a column of a file equals the column of the table."""
    return (field.name, field.type) == (now.name, now.type)


def _column_now(options: DualTable, field: pa.Field, columns: pa.Schema) -> pa.Field:
    same_id = [each for each in columns if _field_id(each) is not None and _field_id(each) == _field_id(field)]
    if not same_id and field.name not in columns.names:
        raise refused(f"{options.table} no longer has the column {field.name}")
    now = same_id[0] if same_id else columns.field(field.name)
    if _field_id(now) != _field_id(field):
        raise refused(f"the column {field.name} of {options.table} was replaced by another one of that name")
    if now.type != field.type and why_not(field.type, now.type) is not None:
        raise _changed(options, field, now)
    if field.nullable and not now.nullable:
        raise refused(f"the column {now.name} of {options.table} has become NOT NULL")
    return now


def _changed(options: DualTable, field: pa.Field, now: pa.Field) -> SinkOptionError:
    if field.type == now.type:
        return refused(f"the column {field.name} of {options.table} is called {now.name} now")
    return refused(f"the column {field.name} of {options.table} was {field.type}, and is {now.type} now")


def _field_id(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(_FIELD_ID)


def _check_left_out(options: DualTable, table: LakeColumns, written: set[str]) -> None:
    missing = [field.name for field in table.columns if not field.nullable and field.name not in written]
    if missing:
        raise refused(
            f"{options.table} needs a value in {', '.join(missing)}, NOT NULL, but the rows have none: add a column of "
            "that name"
        )


# ---- types ----------------------------------------------------------------------------------------------------------

_V = ValueKind
_WIDER: Final[Mapping[ValueKind, frozenset[ValueKind]]] = {
    _V.NARROW: frozenset({_V.INT, _V.LONG, _V.FLOAT, _V.DOUBLE}),
    _V.INT: frozenset({_V.LONG, _V.DOUBLE}),
    _V.FLOAT: frozenset({_V.DOUBLE}),
}


def why_not(given: pa.DataType, column: pa.DataType) -> str | None:
    """Return why values of this type cannot be written to the column unchanged; None if they can."""
    kind, wanted = value_kind(given), value_kind(column)
    if kind is None or wanted is None:
        return f"{given if kind is None else column} is not supported; convert it to a string with to_json()"
    if kind is _V.NOTHING:
        return None
    if kind is _V.DECIMAL and wanted is _V.DECIMAL:
        return _why_no_decimal(given, column)
    same = kind is wanted and (kind is not _V.NARROW or given.bit_width <= column.bit_width)
    if not same and wanted not in _WIDER.get(kind, ()):
        return f"{kind.value} cannot be stored in it without changing values; cast it in the DataFrame"
    return None


def _why_no_decimal(given: pa.DataType, column: pa.DataType) -> str | None:
    if given.scale > column.scale or given.precision - given.scale > column.precision - column.scale:
        return f"decimal({given.precision},{given.scale}) does not fit; cast it in the DataFrame"
    return None
