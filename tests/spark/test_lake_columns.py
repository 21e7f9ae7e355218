"""The supported Delta and Iceberg tables, and the types that fit into theirs without changing a value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_sink.errors import SinkOptionError
from spark_sink.lake import delta_support, iceberg_support
from spark_sink.lake.columns import LakeColumns, check_file, check_supported, file_columns, why_not
from spark_sink.lake.delta_support import DeltaTraits
from spark_sink.lake.iceberg_support import IcebergTraits
from spark_sink.lake.place import LakePlace
from spark_sink.options import DualMode, DualTable

OPTIONS = DualTable("delta:/lake/orders", None, DualMode.INSERT, None, lake=LakePlace("/lake/orders"))
TABLE = LakeColumns(
    columns=pa.schema([pa.field("id", pa.int64(), nullable=False), ("Item", pa.string()), ("extra", pa.string())]),
    unsupported=None,
)
DELTA = DeltaTraits(
    metadata={"id": {}, "Item": {"comment": "what it is"}, "extra": {}},
    configuration={"delta.appendOnly": "true", "delta.columnMapping.mode": "none"},
    partition_columns=(),
    writer_features=frozenset({"appendOnly", "columnMapping"}),
)
ICEBERG = IcebergTraits(
    format_version=2,
    location="file:///lake/shop/orders",
    partition_fields=(),
    sorted_by=(),
    identifier_fields=(),
    properties={"write.parquet.compression-codec": "zstd", "write.metadata.path": "/lake/metadata"},
)


def test_supported_columns_are_accepted() -> None:
    assert delta_support.why_unsupported(DELTA) is None
    assert iceberg_support.why_unsupported(ICEBERG) is None
    check_supported(OPTIONS, TABLE)


def test_unsupported_columns_are_refused_by_name() -> None:
    with pytest.raises(SinkOptionError, match="delta:/lake/orders is too old; nothing was written"):
        check_supported(OPTIONS, replace(TABLE, unsupported="is too old"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"configuration": {"delta.columnMapping.mode": "name"}}, "column mapping"),
        ({"metadata": {"extra": {"delta.generationExpression": "id + 1"}}}, "extra"),
        ({"metadata": {"extra": {"delta.identity.start": 1}}}, "extra"),
        ({"metadata": {"extra": {"delta.invariants": "{}"}}}, "extra"),
        ({"metadata": {"extra": {"CURRENT_DEFAULT": "1"}}}, "extra"),
    ],
)
def test_delta_tables_that_are_refused(change: dict[str, Any], named: str) -> None:
    assert named in str(delta_support.why_unsupported(replace(DELTA, **change)))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format_version": 3}, "format version 3"),
        ({"location": "s3://bucket/orders"}, "object stores"),
        ({"location": "file://host/lake/orders"}, "object stores"),
        ({"location": "/lake/100%"}, "disagree on a path"),
        ({"location": "file:///lake/a#b"}, "object stores"),
        ({"properties": {"write.metadata.path": "hdfs:///lake"}}, "object stores"),
        ({"properties": {"write.py-location-provider.impl": "x.Y"}}, "location-provider"),
        ({"properties": {"encryption.key-id": "k"}}, "encryption.key-id"),
    ],
)
def test_iceberg_tables_that_are_refused(change: dict[str, Any], named: str) -> None:
    assert named in str(iceberg_support.why_unsupported(replace(ICEBERG, **change)))


@pytest.mark.parametrize(
    ("location", "scheme", "path"),
    [
        ("/lake/orders", "", "/lake/orders"),
        ("file:/lake/orders", "file:", "/lake/orders"),
        ("file:///lake/orders/", "file://", "/lake/orders"),
        ("file://localhost/lake", "file://localhost", "/lake"),
    ],
)
def test_ways_to_write_a_path(location: str, scheme: str, path: str) -> None:
    assert (iceberg_support.scheme_of(location), str(iceberg_support.local_path(location))) == (scheme, path)


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


def test_a_column_of_the_same_name_may_be_another_one() -> None:
    file = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    check_file(OPTIONS, file, replace(TABLE, columns=file))
    again = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "2"})])
    with pytest.raises(SinkOptionError, match="another one of that name"):
        check_file(OPTIONS, file, replace(TABLE, columns=again))


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
