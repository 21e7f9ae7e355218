"""Which Delta tables are supported, and which types fit into theirs without changing a value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_sink.errors import SinkOptionError
from spark_sink.lake.columns import LakeColumns, check_file, check_supported, file_columns, why_not
from spark_sink.options import DualMode, DualTable

OPTIONS = DualTable("delta:/lake/orders", None, DualMode.INSERT, None, lake="/lake/orders")
TABLE = LakeColumns(
    columns=pa.schema([pa.field("id", pa.int64(), nullable=False), ("Item", pa.string()), ("extra", pa.string())]),
    metadata={"id": {}, "Item": {"comment": "what it is"}, "extra": {}},
    configuration={"delta.appendOnly": "true", "delta.columnMapping.mode": "none"},
    partition_columns=(),
    writer_features=frozenset({"appendOnly", "columnMapping"}),
)


def test_what_is_supported() -> None:
    check_supported(OPTIONS, TABLE)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"partition_columns": ("day",)}, "day"),
        ({"configuration": {"delta.constraints.short": "length(x) < 3"}}, "short"),
        ({"configuration": {"delta.columnMapping.mode": "name"}}, "column mapping"),
        ({"configuration": {"delta.setTransactionRetentionDuration": "interval 1 day"}}, "forgets"),
        ({"writer_features": frozenset({"rowTracking"})}, "rowTracking"),
        ({"metadata": {"extra": {"delta.generationExpression": "id + 1"}}}, "extra"),
        ({"metadata": {"extra": {"delta.identity.start": 1}}}, "extra"),
        ({"metadata": {"extra": {"delta.invariants": "{}"}}}, "extra"),
        ({"metadata": {"extra": {"CURRENT_DEFAULT": "1"}}}, "extra"),
    ],
)
def test_what_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(SinkOptionError, match=named):
        check_supported(OPTIONS, replace(TABLE, **change))


def test_files_have_the_tables_names_order_and_types() -> None:
    given = pa.schema([("value", pa.string()), ("item", pa.string()), ("ID", pa.int32())])
    assert file_columns(OPTIONS, given, TABLE) == pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("Item", pa.string())]
    )


def test_a_file_fits_a_table_with_more_columns_and_no_other() -> None:
    file = pa.schema([pa.field("id", pa.int64(), nullable=False), ("Item", pa.string())])
    check_file(OPTIONS, file, TABLE)
    for columns in (
        pa.schema([("id", pa.int64())]),
        pa.schema([("id", pa.int32()), ("Item", pa.string())]),
        pa.schema([("id", pa.int64()), ("Item", pa.string()), pa.field("needed", pa.string(), nullable=False)]),
    ):
        with pytest.raises(SinkOptionError):
            check_file(OPTIONS, file, replace(TABLE, columns=columns))


UTC = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("given", "column"),
    [
        (pa.int8(), pa.int16()),
        (pa.int16(), pa.int32()),
        (pa.int32(), pa.int64()),
        (pa.int32(), pa.float64()),
        (pa.float32(), pa.float64()),
        (pa.decimal128(10, 2), pa.decimal128(12, 4)),
        (pa.timestamp("us", "Europe/Berlin"), UTC),
        (pa.timestamp("us"), pa.timestamp("us")),
        (pa.large_string(), pa.string()),
        (pa.null(), pa.date32()),
    ],
    ids=str,
)
def test_types_that_fit(given: pa.DataType, column: pa.DataType) -> None:
    assert why_not(given, column) is None


@pytest.mark.parametrize(
    ("given", "column"),
    [
        (pa.int64(), pa.int32()),
        (pa.int16(), pa.int8()),
        (pa.int64(), pa.float64()),
        (pa.int32(), pa.float32()),
        (pa.float64(), pa.float32()),
        (pa.decimal128(12, 4), pa.decimal128(12, 2)),
        (pa.decimal128(12, 2), pa.decimal128(12, 4)),
        (pa.int32(), pa.decimal128(20, 0)),
        (pa.timestamp("us"), UTC),
        (UTC, pa.timestamp("us")),
        (pa.date32(), UTC),
        (pa.string(), pa.int64()),
        (pa.int64(), pa.string()),
        (pa.string(), pa.binary()),
        (pa.bool_(), pa.int32()),
        (pa.list_(pa.int32()), pa.list_(pa.int32())),
        (pa.string(), pa.struct([("a", pa.int32())])),
    ],
    ids=str,
)
def test_types_that_do_not_fit(given: pa.DataType, column: pa.DataType) -> None:
    assert why_not(given, column) is not None
