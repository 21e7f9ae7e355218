"""Which of Spark's types go into which column of a table without a change of value.

What a database refuses with an error is left to it; what it would round, cut off or read as something else is refused
here, before any transaction exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

import pyarrow as pa
import pyarrow.types as pt


class ColumnKind(Enum):
    """What a column holds, as far as it matters for what may be written into it."""

    BOOLEAN = "booleans"
    INTEGER = "whole numbers"
    DECIMAL = "decimal numbers"
    BINARY_NUMERIC = "numbers, exact to 15 digits"
    """SQLite's NUMERIC affinity."""
    FLOAT32 = "4-byte floats"
    FLOAT64 = "8-byte floats"
    TEXT = "text"
    FREE_TEXT = "any text"
    """SQLite's TEXT, in which it has dates and exact decimals too."""
    PARSED = "what the database reads from text"
    """uuid, json, enum, inet and others."""
    BYTES = "bytes"
    DATE = "dates"
    TIMESTAMP = "timestamps without a zone"
    INSTANT = "timestamps with a zone"
    TIME = "times of day"
    ANYTHING = "anything"
    UNKNOWN = "a type the sink does not know"


OF_TIME: Final = frozenset({ColumnKind.TIMESTAMP, ColumnKind.INSTANT, ColumnKind.TIME})


@dataclass(frozen=True)
class ColumnType:
    """A column's type; `scale`: digits after the point, of a number or of seconds; None where there is no limit."""

    kind: ColumnKind
    scale: int | None = None


class ValueKind(Enum):
    """Spark's types, as they come in Arrow."""

    NOTHING = "void"
    BOOLEAN = "boolean"
    NARROW = "byte or short"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP_NTZ = "timestamp_ntz"
    TIMESTAMP = "timestamp"
    TIME = "time"


_V = ValueKind
_INTEGERS: Final = {_V.NARROW, _V.INT, _V.LONG}

_TAKEN: Final[Mapping[ColumnKind, set[ValueKind]]] = {
    ColumnKind.BOOLEAN: {_V.BOOLEAN},
    ColumnKind.INTEGER: {_V.BOOLEAN, *_INTEGERS, _V.DECIMAL},
    ColumnKind.DECIMAL: {*_INTEGERS, _V.DECIMAL},
    ColumnKind.BINARY_NUMERIC: {_V.BOOLEAN, *_INTEGERS, _V.FLOAT, _V.DOUBLE, _V.DECIMAL},
    ColumnKind.FLOAT32: {_V.NARROW, _V.FLOAT},
    ColumnKind.FLOAT64: {_V.NARROW, _V.INT, _V.FLOAT, _V.DOUBLE},
    ColumnKind.TEXT: {_V.STRING},
    ColumnKind.FREE_TEXT: {_V.STRING, _V.DECIMAL, _V.DATE, _V.TIMESTAMP, _V.TIMESTAMP_NTZ, _V.TIME},
    ColumnKind.PARSED: {_V.STRING},
    ColumnKind.BYTES: {_V.BINARY},
    ColumnKind.DATE: {_V.DATE},
    ColumnKind.TIMESTAMP: {_V.TIMESTAMP, _V.TIMESTAMP_NTZ},
    ColumnKind.INSTANT: {_V.TIMESTAMP},
    ColumnKind.TIME: {_V.TIME},
    ColumnKind.ANYTHING: set(ValueKind),
    ColumnKind.UNKNOWN: set(),
}
_BINARY_DIGITS: Final = 15
"""Decimal digits that survive an 8-byte float."""


def value_kind(arrow: pa.DataType) -> ValueKind | None:
    """None for what no column takes: arrays, maps, structs, intervals."""
    return next((kind for kind, is_it in _KINDS.items() if is_it(arrow)), None)


_KINDS: Final = {
    _V.NOTHING: pt.is_null,
    _V.BOOLEAN: pt.is_boolean,
    _V.NARROW: lambda arrow: pt.is_int8(arrow) or pt.is_int16(arrow),
    _V.INT: pt.is_int32,
    _V.LONG: pt.is_int64,
    _V.FLOAT: pt.is_float32,
    _V.DOUBLE: pt.is_float64,
    _V.DECIMAL: pt.is_decimal,
    _V.STRING: lambda arrow: pt.is_string(arrow) or pt.is_large_string(arrow),
    _V.BINARY: lambda arrow: pt.is_binary(arrow) or pt.is_large_binary(arrow),
    _V.DATE: pt.is_date,
    _V.TIMESTAMP_NTZ: lambda arrow: pt.is_timestamp(arrow) and arrow.tz is None,
    _V.TIMESTAMP: lambda arrow: pt.is_timestamp(arrow) and arrow.tz is not None,
    _V.TIME: pt.is_time,
}


def why_not(arrow: pa.DataType, column: ColumnType) -> str | None:
    """Why values of this type do not go into the column; None where they do."""
    kind = value_kind(arrow)
    if kind is None:
        return f"{arrow} has no place in a column; make it a string with to_json()"
    if kind is _V.NOTHING:
        return None
    if kind not in _TAKEN[column.kind] and not _is_unlimited(kind, column):
        return f"{kind.value} does not go into {column.kind.value} without a change of value; cast it in the DataFrame"
    if kind is _V.DECIMAL:
        return _why_no_decimal(arrow, column)
    return None


def _is_unlimited(kind: ValueKind, column: ColumnType) -> bool:
    return column == ColumnType(ColumnKind.DECIMAL) and kind in (_V.FLOAT, _V.DOUBLE)


def _why_no_decimal(arrow: pa.DataType, column: ColumnType) -> str | None:
    digits = _most_digits_after_the_point(column)
    if digits is not None and arrow.scale > digits:
        return f"it has {digits} digits after the point, and decimal({arrow.precision},{arrow.scale}) would be rounded"
    if column.kind is ColumnKind.BINARY_NUMERIC and arrow.precision > _BINARY_DIGITS:
        return (
            f"SQLite keeps {_BINARY_DIGITS} digits of a number, not the {arrow.precision} of "
            f"decimal({arrow.precision},{arrow.scale}); a column of type TEXT keeps them all"
        )
    return None


def _most_digits_after_the_point(column: ColumnType) -> int | None:
    return 0 if column.kind is ColumnKind.INTEGER else column.scale
