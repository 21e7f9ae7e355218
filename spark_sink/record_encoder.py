"""Check the Kafka columns, which have the names of Spark's own Kafka sink, and split rows by topic for `send_batch()`.

No Python code runs per row: Arrow's kernels split the rows by topic, and the producer encodes whole columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dualwrite.errors import InvalidRecordError
from spark_sink.errors import SinkOptionError
from spark_sink.options import SinkOptions

KAFKA_COLUMNS: Final = ("key", "value", "headers", "topic", "partition")
"""The columns that are sent to Kafka. As in Spark's own sink, other columns are not; a table may use them."""

_SENT: Final = ("key", "value", "headers", "partition")
_LEGAL_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


class TopicRows(NamedTuple):
    """Rows of one topic, in order, in the form that `send_batch()` requires."""

    topic: str
    rows: pa.RecordBatch
    bytes: int
    """The size of keys and values."""


# ---- the schema -------------------------------------------------------------------------------------------------


def check_schema(schema: pa.Schema, options: SinkOptions) -> None:
    """Raise SinkOptionError unless rows of this schema can be sent. Called before any transaction exists."""
    for name in KAFKA_COLUMNS:
        if schema.names.count(name) > 1:
            raise SinkOptionError(f"there are {schema.names.count(name)} columns {name}; select only one")
    if "value" not in schema.names:
        raise SinkOptionError(
            f"the column value is missing: the columns are {', '.join(schema.names) or 'none'}. A record's value comes "
            "from the column value, of type string or binary; to_json(struct(...)) makes one from other columns"
        )
    if options.topic is not None and _LEGAL_TOPIC.fullmatch(options.topic) is None:
        raise SinkOptionError(
            f"the option topic is {options.topic!r}: Kafka allows 1 to 249 letters, digits, '.', '_' and '-' (ASCII)"
        )
    if options.topic is None and "topic" not in schema.names:
        raise SinkOptionError(
            "no topic is given: set the option topic, or give each row one in a column topic, of type string"
        )
    if options.include_headers and "headers" not in schema.names:
        raise SinkOptionError("includeHeaders is true, but there is no column headers")
    for name, (is_right, wanted) in _TYPES.items():
        if name in schema.names and not is_right(schema.field(name).type):
            raise SinkOptionError(f"the column {name} is of type {schema.field(name).type}, not {wanted}")


def _is_text(kind: pa.DataType) -> bool:
    return any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _is_bytes(kind: pa.DataType) -> bool:
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(check(kind) for check in checks)


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    return _is_text(kind) or _is_bytes(kind) or pa.types.is_null(kind)


def _is_headers(kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return True
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    fields: dict[str, pa.DataType] = {field.name: field.type for field in kind.value_type}
    return set(fields) == {"key", "value"} and _is_text(fields["key"]) and _is_bytes(fields["value"])


def _is_partition(kind: pa.DataType) -> bool:
    return bool(pa.types.is_int32(kind) or pa.types.is_null(kind))


_TYPES: Final[dict[str, tuple[Callable[[pa.DataType], bool], str]]] = {
    "key": (_is_text_or_bytes, "string or binary: cast it"),
    "value": (_is_text_or_bytes, "string or binary: cast it, or convert it with to_json(struct(...))"),
    "headers": (_is_headers, "array<struct<key: string, value: binary>>"),
    "topic": (lambda kind: _is_text(kind), "string"),
    "partition": (_is_partition, "int"),
}


# ---- rows -------------------------------------------------------------------------------------------------------


def by_topic(rows: pa.RecordBatch, topic: str | None) -> Iterator[TopicRows]:
    """Yield the rows of each topic. `topic` is the option; it overrides the column, as in Spark's own sink.

    Raises InvalidRecordError for a row without a topic; then no row was yielded.
    """
    sent = rows.select([name for name in _SENT if name in rows.schema.names])
    if topic is not None:
        yield _topic_rows(topic, sent)
        return
    topics = rows.column("topic")
    if topics.null_count:
        row = pc.index(pc.is_null(topics), True).as_py()
        raise InvalidRecordError(
            f"row {row} of {len(rows)} has a null topic: give each row one, or set the option topic for all; "
            "none of these rows was sent"
        )
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield _topic_rows(names[0], sent)
        return
    for index, name in enumerate(names):
        yield _topic_rows(name, sent.filter(pc.equal(encoded.indices, index)))


def _topic_rows(topic: str, rows: pa.RecordBatch) -> TopicRows:
    size = sum(_bytes(rows.column(name)) for name in ("key", "value") if name in rows.schema.names)
    return TopicRows(topic, rows, size)


def _bytes(column: pa.Array) -> int:
    if pa.types.is_null(column.type):
        return 0
    if pa.types.is_fixed_size_binary(column.type):
        given: int = (len(column) - column.null_count) * column.type.byte_width
        return given
    sizes: int = pc.sum(pc.binary_length(_without_views(column)), min_count=0).as_py()
    return sizes


def _without_views(column: pa.Array) -> pa.Array:
    if pa.types.is_string_view(column.type):
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if pa.types.is_binary_view(column.type) else column
