"""Values as each database takes many of them: CSV for COPY, or tuples for an INSERT.

A timestamp with a zone is an instant. A column that has no zone gets it in UTC, whatever zone the session is in: in any
other one hour of each autumn would mean two instants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyarrow import csv

from spark_sink.errors import DualTableError
from spark_sink.store.dual_types import OF_TIME, ColumnKind, ColumnType

_MICROSECONDS: Final = 6
"""Digits of a second that Spark has."""
_CSV: Final = csv.WriteOptions(include_header=False, quoting_style="needed")
"""Text is in quotes, so that an empty one is no NULL."""


def check_fractions(column: pa.Array, type_: ColumnType) -> None:
    """Raise DualTableError for fractions of a second that the column would round, maybe into the next day."""
    if type_.kind not in OF_TIME or type_.scale is None or type_.scale >= _MICROSECONDS:
        return
    unit = 10 ** (_MICROSECONDS - type_.scale)
    moments = _in_microseconds(column).view(pa.int64())
    if pc.any(pc.not_equal(pc.multiply(pc.divide(moments, unit), unit), moments)).as_py():
        raise DualTableError(
            f"a column keeps {type_.scale} digits of a second, and a value has more, which the database would round; "
            "nothing of this attempt was written: cut them off with date_trunc(), or give the column 6 digits"
        )


def as_csv(columns: Sequence[pa.Array], types: Sequence[ColumnType]) -> memoryview:
    """As COPY of PostgreSQL takes them with FORMAT csv, in UTF-8."""
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
    """As PyMySQL takes them, whose session must be in UTC. Raises DualTableError for floats that MySQL has not."""
    return list(zip(*[_mysql(column) for column in columns], strict=True))


def _mysql(column: pa.Array) -> list[Any]:
    if pt.is_floating(column.type) and pc.any(pc.invert(pc.is_finite(column))).as_py():
        raise DualTableError(
            "a float is NaN or infinite, which MySQL cannot store; nothing of this attempt was written: filter such "
            "rows, or make them NULL"
        )
    values: list[Any] = _in_microseconds(column).to_pylist()
    return values


def as_sqlite_tuples(columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
    """As the standard library's sqlite3 takes them. Raises DualTableError for NaN, which SQLite would make NULL."""
    return list(zip(*[_sqlite(column) for column in columns], strict=True))


def _sqlite(column: pa.Array) -> list[Any]:
    arrow = column.type
    if pt.is_floating(arrow) and pc.any(pc.is_nan(column)).as_py():
        raise DualTableError(
            "a float is NaN, which SQLite would store as NULL; nothing of this attempt was written: filter such rows, "
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
    """Timestamps as a clock in UTC showed them; those without a zone as they are."""
    if pt.is_timestamp(column.type):
        return column.view(pa.timestamp(column.type.unit)).cast(pa.timestamp("us"))
    return column.cast(pa.time64("us")) if pt.is_time(column.type) else column
