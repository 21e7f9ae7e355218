"""The columns of Spark's Kafka sink: refusals before a transaction, and the records in Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from dualwrite.errors import InvalidRecordError
from dualwrite.guarantee import Tier
from dualwrite.partitioners import murmur2_partition
from spark_sink.errors import SinkOptionError
from spark_sink.options import SinkOptions, parse
from spark_sink.record_encoder import by_topic, check_schema
from spark_sink.store.attempt_states import Verdict
from tests.spark.kafka_world import KafkaWorld, claim, everything, kafka_world, mine

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PARTITIONS = 3


def options(**given: Any) -> SinkOptions:
    base = {"sinkId": "s", "commitStore.urlEnv": "NOWHERE", "kafka.bootstrap.servers": "h:1"}
    return parse(base | given)


# ---- the schema -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        {"value": pa.string()},
        {"value": pa.binary(), "key": pa.string(), "other": pa.date32()},
        {"value": pa.large_string(), "key": pa.large_binary(), "partition": pa.int32(), "headers": HEADERS},
        {"value": pa.null(), "key": pa.null(), "partition": pa.null(), "headers": pa.null(), "topic": pa.string()},
        {"value": pa.binary(4), "key": pa.string_view(), "topic": pa.large_string()},
    ],
)
def test_supported_schemas_are_accepted(columns: dict[str, pa.DataType]) -> None:
    check_schema(pa.schema(columns), options(topic="orders"))


@pytest.mark.parametrize(
    ("columns", "given", "sentence"),
    [
        ({"key": pa.string(), "x": pa.int64()}, {"topic": "t"}, r"column value is missing.*key, x.*to_json"),
        ({}, {"topic": "t"}, "the columns are none"),
        ({"value": pa.string()}, {}, "option topic.*column topic"),
        ({"value": pa.int64()}, {"topic": "t"}, "column value is of type int64, not string or binary"),
        ({"value": pa.string(), "key": pa.int32()}, {"topic": "t"}, "column key is of type int32"),
        ({"value": pa.string(), "topic": pa.int32()}, {}, "column topic is of type int32, not string"),
        ({"value": pa.string(), "topic": pa.binary()}, {"topic": "t"}, "column topic is of type binary"),
        ({"value": pa.string(), "partition": pa.int64()}, {"topic": "t"}, "partition is of type int64, not int"),
        ({"value": pa.string(), "headers": pa.string()}, {"topic": "t"}, r"headers.*array<struct<key: string"),
        ({"value": pa.string(), "headers": pa.list_(pa.string())}, {"topic": "t"}, r"headers.*array<struct"),
        (
            {"value": pa.string(), "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))},
            {"topic": "t"},
            r"headers.*array<struct",
        ),
        ({"value": pa.string()}, {"topic": "t", "includeHeaders": "true"}, "includeHeaders.*no column headers"),
        ({"value": pa.string()}, {"topic": "white space"}, "option topic is 'white space'"),
    ],
)
def test_unsupported_schemas_are_refused(columns: dict[str, pa.DataType], given: dict[str, str], sentence: str) -> None:
    with pytest.raises(SinkOptionError, match=sentence):
        check_schema(pa.schema(columns), options(**given))


def test_a_column_twice() -> None:
    schema = pa.schema([("value", pa.string()), ("value", pa.string())])
    with pytest.raises(SinkOptionError, match="there are 2 columns value; select only one"):
        check_schema(schema, options(topic="t"))


# ---- by topic ---------------------------------------------------------------------------------------------------


def test_rows_of_each_topic_in_their_order() -> None:
    rows = pa.record_batch(
        {
            "topic": ["b", "a", "b", "a"],
            "value": ["1", "22", None, "4444"],
            "key": [b"k", None, None, b""],
            "x": [1] * 4,
        }
    )
    parts = {part.topic: part for part in by_topic(rows, None)}
    assert parts.keys() == {"a", "b"}
    assert parts["a"].rows.to_pydict() == {"key": [None, b""], "value": ["22", "4444"]}
    assert parts["b"].rows.to_pydict() == {"key": [b"k", None], "value": ["1", None]}
    assert (parts["a"].bytes, parts["b"].bytes) == (6, 2)


def test_the_option_goes_before_the_column() -> None:
    rows = pa.record_batch({"topic": pa.array([None, "a"], pa.string()), "value": ["1", "2"]})
    (only,) = by_topic(rows, "all")
    assert (only.topic, only.rows.to_pydict()) == ("all", {"value": ["1", "2"]})


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_a_single_topic_copies_nothing(kind: pa.DataType) -> None:
    value = pa.array(["1", "2"])
    (only,) = by_topic(pa.record_batch({"topic": pa.array(["a", "a"]).cast(kind), "value": value}), None)
    assert only.topic == "a"
    assert only.rows.column("value").buffers()[2].address == value.buffers()[2].address


def test_a_row_without_a_topic() -> None:
    rows = pa.record_batch({"topic": ["a", None], "value": ["1", "2"]})
    with pytest.raises(InvalidRecordError, match=r"row 1 of 2 has a null topic.*none of these rows"):
        list(by_topic(rows, None))


def test_no_rows() -> None:
    schema = pa.schema({"topic": pa.string(), "value": pa.string()})
    assert list(by_topic(pa.RecordBatch.from_pylist([], schema), None)) == []


@pytest.mark.parametrize(
    ("array", "size"),
    [
        (pa.array(["äb", None]), 3),
        (pa.array([b"1234", None], pa.binary(4)), 4),
        (pa.array(["a", "bc"], pa.string_view()), 3),
        (pa.array([b"a", b"bc"], pa.binary_view()), 3),
        (pa.array([None, None], pa.null()), 0),
        (pa.array(["x", "abc", "y"]).slice(1, 1), 3),
    ],
)
def test_bytes_are_counted(array: pa.Array, size: int) -> None:
    (only,) = by_topic(pa.record_batch({"value": array}), "t")
    assert only.bytes == size


# ---- in Kafka ---------------------------------------------------------------------------------------------------


@pytest.fixture
def world() -> Iterator[KafkaWorld]:
    with kafka_world(Tier.KEEP_PREPARED) as running:
        for topic in ("a", "b"):
            running.emulator.create_topic(topic, PARTITIONS)
        yield running


def stored(world: KafkaWorld, topic: str) -> list[Message]:
    """Return the records in order, by partition, as librdkafka reads them with read_committed."""
    consumer = Consumer(
        {"bootstrap.servers": world.emulator.bootstrap_servers, "group.id": "r", "isolation.level": "read_committed"}
        | {"enable.partition.eof": True, "enable.auto.commit": False, "fetch.wait.max.ms": 10}
    )
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        messages: list[Message] = []
        ends = 0
        while ends < PARTITIONS:
            message = consumer.poll(10)
            assert message is not None
            if message.error():
                ends += 1
            else:
                messages.append(message)
        return sorted(messages, key=lambda each: (each.partition(), each.offset()))
    finally:
        consumer.close()


def send(world: KafkaWorld, *batches: pa.RecordBatch, **given: Any) -> int:
    side = world.side(**({"topic": "a"} | given))
    transaction = side.open("s-0-0", mine)
    for batch in batches:
        transaction.write(batch)
    claims = [claim("s-0-0", Verdict.COMMIT, transaction.prepare())]
    records = transaction.records
    transaction.close()
    side.end(claims, everything)
    world.settle()
    return records


def test_keys_values_nulls_headers_and_partitions(world: KafkaWorld) -> None:
    rows = pa.record_batch(
        {
            "key": pa.array(["k", None, "", "ä"]),
            "value": pa.array([b"v", b"", None, b"\xff"]),
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, [], [{"key": "ü", "value": b""}]],
                HEADERS,
            ),
            "partition": pa.array([2, 2, 2, 2], pa.int32()),
            "ignored": [1, 2, 3, 4],
        }
    )
    assert send(world, rows) == 4
    found = [(each.key(), each.value(), each.headers(), each.partition()) for each in stored(world, "a")]
    assert found == [
        (b"k", b"v", [("h", b"1"), ("h", None)], 2),
        (None, b"", None, 2),
        (b"", None, None, 2),
        ("ä".encode(), b"\xff", [("ü", b"")], 2),
    ]


def test_keys_go_where_javas_client_sends_them(world: KafkaWorld) -> None:
    keys = [f"key-{number}" for number in range(200)]
    send(world, pa.record_batch({"key": keys, "value": keys}))
    messages = stored(world, "a")
    assert len(messages) == 200
    for each in messages:
        key = each.key()
        assert key is not None
        assert each.partition() == murmur2_partition(key, PARTITIONS)


def test_the_order_within_a_partition_is_that_of_the_rows(world: KafkaWorld) -> None:
    """Several Arrow batches, two topics mixed, some rows with a partition and some with a key."""
    batches = []
    for number in range(5):
        places = range(number * 400, number * 400 + 400)
        batches.append(
            pa.record_batch(
                {
                    "topic": [("a", "b")[place % 2] for place in places],
                    "key": [f"k{place % 7}" for place in places],
                    "value": [str(place) for place in places],
                    "partition": pa.array([None if place % 3 else place % PARTITIONS for place in places], pa.int32()),
                }
            )
        )
    send(world, *batches, topic=None)
    values = []
    for topic in ("a", "b"):
        messages = stored(world, topic)
        for partition in range(PARTITIONS):
            mine_in_order = [int(each.value() or b"") for each in messages if each.partition() == partition]
            assert mine_in_order == sorted(mine_in_order)
            assert mine_in_order
        values += [int(each.value() or b"") for each in messages]
    assert sorted(values) == list(range(2000))


def test_large_batches_without_keys_are_spread(world: KafkaWorld) -> None:
    rows = pa.record_batch({"value": ["x" * 100] * 20_000})
    assert send(world, rows, kafka__batch__size=16_384, kafka__compression__type="lz4") == 20_000
    messages = stored(world, "a")
    assert len(messages) == 20_000
    assert {each.partition() for each in messages} == set(range(PARTITIONS))
