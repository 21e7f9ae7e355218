"""`send_batch()` of iterables and of Arrow's tables: where records are stored, and refusals of whole batches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from dualwrite import serializers
from dualwrite.broker_emulator import DropRequest, Emulator, Fault
from dualwrite.errors import DeliveryError, IllegalStateError, InvalidRecordError, KafkaTimeoutError
from dualwrite.partitioners import consistent_partition, murmur2_partition
from dualwrite.producer import Producer, Record
from tests.producer.conftest import MakeProducer, ReadCommitted
from tests.producer.impatience import impatient
from tests.producer.readers import read_with_librdkafka


def test_values(producer: Producer, read_committed: ReadCommitted) -> None:
    producer.begin_transaction()
    values = [b"%d" % number for number in range(5000)]
    sent = producer.send_batch("orders", iter(values))
    assert sent.record_count == 5000
    producer.commit_transaction()
    assert sent.done()
    assert sum(stored.record_count for stored in sent.result()) == 5000
    assert read_committed() == values


def test_large_values_keep_their_place_among_records_that_linger(
    make_producer: MakeProducer, read_committed: ReadCommitted
) -> None:
    producer = make_producer(batch_size=4000, compression_type="gzip")
    producer.init_transactions()
    producer.begin_transaction()
    values = [b"%04d" % number + b"x" * 600 for number in range(1000)]
    producer.send("orders", b"first")
    sent = producer.send_batch("orders", values)
    producer.send("orders", b"last")
    producer.commit_transaction()
    assert read_committed() == [b"first", *values, b"last"]
    assert sent.result()[0].offset == 1
    assert sum(stored.record_count for stored in sent.result()) == 1000


def test_every_kind_of_record(emulator: Emulator, make_producer: MakeProducer) -> None:
    producer = make_producer(None)
    keyed = murmur2_partition(b"key", 3)
    other = (keyed + 1) % 3
    sent = producer.send_batch(
        "events",
        [
            Record(b"v0", partition=other),
            (b"key", "wert"),
            {"value": b"v2", "partition": other, "headers": {"h": b"1"}, "timestamp_ms": 77},
            Record(key=b"key"),
        ],
    )
    stored = sent.result(60)
    assert {(s.partition, sum(x.record_count for x in stored if x.partition == s.partition)) for s in stored} == {
        (keyed, 2),
        (other, 2),
    }
    records = read_with_librdkafka(emulator, "events", 4, partitions=3)
    read = {p: [(r.key(), r.value(), r.headers()) for r in records if r.partition() == p] for p in (other, keyed)}
    assert read[keyed] == [(b"key", b"wert", None), (b"key", None, None)]
    assert read[other] == [(None, b"v0", None), (None, b"v2", [("h", b"1")])]
    assert 77 in {record.timestamp()[1] for record in records}


def test_records_are_serialized(make_producer: MakeProducer, read_committed: ReadCommitted) -> None:
    producer = make_producer(None, value_serializer=serializers.json)
    producer.send_batch("orders", [Record({"a": 1}), 2, ("key", [3])]).result(60)
    assert read_committed() == [b'{"a":1}', b"2", b"[3]"]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (1, r"record 2: the value is int, not bytes or str: encode it, .*; none of the batch was sent"),
        (Record(b"x", partition=3), r"record 2: 'events' has the partitions 0 to 2, not 3; none"),
        ((b"a", b"b", b"c"), "record 2: a tuple is .key, value., not 3 elements; none"),
        ({"vlaue": b"x"}, "record 2: a mapping has some of value, key, headers, partition, timestamp_ms, not 'vlaue'"),
        (b"x" * 2000, r"record 2: it takes up to 2097 bytes, more than max\.request\.size=1000; none"),
    ],
)
def test_one_invalid_record_stops_the_whole_batch(
    make_producer: MakeProducer, read_committed: ReadCommitted, wrong: Any, sentence: str
) -> None:
    producer = make_producer(None, max_request_size=1000)
    with pytest.raises(InvalidRecordError, match=sentence):
        producer.send_batch("events", [b"a", b"b", wrong])
    producer.flush()
    assert read_committed("events", 3) == []


@pytest.mark.parametrize("records", [b"bytes", "text", {"value": b"x"}, 5, None])
def test_an_invalid_batch_is_refused(make_producer: MakeProducer, records: Any) -> None:
    with pytest.raises(InvalidRecordError, match="an iterable of records or an Arrow table, not"):
        make_producer(None).send_batch("orders", records)


@pytest.mark.parametrize("records", [[], pa.table({"value": pa.array([], pa.binary())})])
def test_nothing_is_something_too(make_producer: MakeProducer, records: Any) -> None:
    sent = make_producer(None).send_batch("orders", records)
    assert (sent.done(), sent.record_count, sent.result(0)) == (True, 0, [])


def test_outside_of_a_transaction_send_batch_is_refused(producer: Producer) -> None:
    with pytest.raises(IllegalStateError):
        producer.send_batch("orders", [b"x"])


@pytest.mark.parametrize("arrow", [False, True])
def test_a_full_buffer_says_how_much_was_accepted(emulator: Emulator, make_producer: MakeProducer, arrow: bool) -> None:
    producer = make_producer(buffer_memory=3000, batch_size=1000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"first").result(60)
    emulator.faults.add(Fault(api="Produce", action=DropRequest(), count=None))
    values = [b"x" * 400] * 50
    waited = r"waited for buffer\.memory .*; [2-9] of the 50 records were accepted"
    with impatient(producer, 300), pytest.raises(KafkaTimeoutError, match=waited):
        producer.send_batch("orders", pa.table({"value": values}) if arrow else values)


@pytest.mark.parametrize("arrow", [False, True])
def test_a_batch_larger_than_the_memory_is_sent(
    make_producer: MakeProducer, read_committed: ReadCommitted, arrow: bool
) -> None:
    producer = make_producer(buffer_memory=3000, batch_size=1000)
    producer.init_transactions()
    producer.begin_transaction()
    values = [b"%03d" % number * 100 for number in range(300)]
    producer.send_batch("orders", pa.table({"value": values}) if arrow else values)
    producer.commit_transaction()
    assert read_committed() == values


def test_an_abort_fails_the_batch(make_producer: MakeProducer, read_committed: ReadCommitted) -> None:
    producer = make_producer(linger_ms=10_000, delivery_timeout_ms=50_000)
    producer.init_transactions()
    producer.begin_transaction()
    sent = producer.send_batch("orders", [b"x"] * 3)
    producer.abort_transaction()
    with pytest.raises(DeliveryError):
        sent.result(60)
    assert read_committed() == []


# ---- Arrow ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_an_arrow_table_with_every_column(emulator: Emulator, make_producer: MakeProducer, codec: str) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    table = pa.table(
        {
            "key": pa.array(["a", None, "ü", "a"]),
            "value": pa.array([b"v0", b"", None, b"v3"], pa.large_binary()),
            "headers": pa.array(
                [[("h", b"1"), ("h", None)], None, [], [("x", b"")]], pa.map_(pa.string(), pa.binary())
            ),
            "partition": pa.array([2, 2, None, 2], pa.int8()),
            "timestamp": pa.array([when, None, when, when], pa.timestamp("us", "UTC")),
        }
    )
    producer = make_producer(compression_type=codec)
    producer.init_transactions()
    producer.begin_transaction()
    sent = producer.send_batch("events", table)
    producer.commit_transaction()
    assert sum(stored.record_count for stored in sent.result()) == 4
    read = read_with_librdkafka(emulator, "events", 4, partitions=3)
    where = murmur2_partition("ü".encode(), 3)
    expected = {
        (2, b"a", b"v0", (("h", b"1"), ("h", None))),
        (2, None, b"", ()),
        (where, "ü".encode(), None, ()),
        (2, b"a", b"v3", (("x", b""),)),
    }
    assert {(r.partition(), r.key(), r.value(), tuple(r.headers() or ())) for r in read} == expected
    times = [record.timestamp()[1] for record in read]
    assert times.count(int(when.timestamp() * 1000)) == 3


def test_chunks_slices_and_other_types(emulator: Emulator, make_producer: MakeProducer) -> None:
    one = pa.table(
        {"key": pa.array([b"k"] * 4, pa.binary(1)), "value": pa.array(["a", "b", "c", "d"], pa.string_view())}
    )
    table = pa.concat_tables([one.slice(1, 2), one.slice(3), one.slice(0, 1)])
    make_producer(None).send_batch("orders", table).result(60)
    assert [r.value() for r in read_with_librdkafka(emulator, "orders", 4)] == [b"b", b"c", b"d", b"a"]


def test_a_record_batch_and_its_headers_as_structs(emulator: Emulator, make_producer: MakeProducer) -> None:
    headers = pa.array([[{"value": b"v", "key": "k"}], [{"value": None, "key": "n"}]] * 3)
    batch = pa.record_batch({"value": pa.array([b"1", b"2"] * 3), "headers": headers}).slice(1, 4)
    make_producer(None).send_batch("orders", batch).result(60)
    read = read_with_librdkafka(emulator, "orders", 4)
    assert [(r.value(), r.headers()) for r in read] == [(b"2", [("n", None)]), (b"1", [("k", b"v")])] * 2


@pytest.mark.parametrize(
    ("setting", "partition_of"), [("default", murmur2_partition), ("consistent_random", consistent_partition)]
)
def test_keys_decide_as_in_send(
    emulator: Emulator, make_producer: MakeProducer, setting: str, partition_of: Any
) -> None:
    keys = [b"%d" % number * (number % 5) for number in range(1, 100)]
    keys = [key for key in keys if key]
    producer = make_producer(None, partitioner=setting)
    producer.send_batch("events", pa.table({"key": keys, "value": keys})).result(60)
    read = read_with_librdkafka(emulator, "events", len(keys), partitions=3)
    assert all(record.partition() == partition_of(record.key(), 3) for record in read)
    for partition in range(3):
        mine = [record.key() for record in read if record.partition() == partition]
        assert mine == [key for key in keys if partition_of(key, 3) == partition], "their order is kept"


@pytest.mark.parametrize("arrow", [False, True])
def test_without_keys_partitions_are_filled_one_after_the_other(make_producer: MakeProducer, arrow: bool) -> None:
    producer = make_producer(None, batch_size=1000, linger_ms=1000)
    values = [b"x" * 200] * 24
    stored = producer.send_batch("events", pa.table({"value": values}) if arrow else values)
    producer.flush()
    per_partition = {p: sum(s.record_count for s in stored.result() if s.partition == p) for p in range(3)}
    assert per_partition == {0: 8, 1: 8, 2: 8}


@pytest.mark.parametrize("arrow", [False, True])
def test_a_partitioner_function_is_called_for_each_record(make_producer: MakeProducer, arrow: bool) -> None:
    asked: list[Any] = []

    def choose(*question: Any) -> int:
        asked.append(question)
        return len(asked) % 3

    rows: Any = [(b"k", b"1"), (None, b"2"), (b"", None)]
    table = pa.table({"key": [b"k", None, b""], "value": [b"1", b"2", None]})
    sent = make_producer(None, partitioner=choose).send_batch("events", table if arrow else rows)
    assert {(s.partition, s.record_count) for s in sent.result(60)} == {(0, 1), (1, 1), (2, 1)}
    assert asked == [("events", b"k", b"1", 3), ("events", None, b"2", 3), ("events", b"", None, 3)]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"valeu": [b"x"]}, "this one has valeu; none of it was sent"),
        ({"value": [1]}, "the column value is of type int64, not binary or string"),
        ({"value": [b"x"], "partition": ["0"]}, "the column partition is of type string"),
        ({"value": [b"x"], "partition": [-1]}, "the column partition has .*-1.*, which is outside 0 to"),
        ({"value": [b"x"], "partition": [3]}, "'events' has the partitions 0 to 2, not 3"),
        ({"value": [b"x"], "timestamp_ms": [-5]}, "the column timestamp has"),
        ({"value": [b"x"], "timestamp": [None], "timestamp_ms": [None]}, "each once"),
        ({"value": [b"x"], "headers": [[b"x"]]}, "the column headers is of type"),
        ({"value": [b"x"], "headers": [[{"key": None, "value": b"x"}]]}, "a header without a name"),
        ({"value": [b"a", b"x" * 2000]}, r"the record in row 1 takes up to .* more than max\.request\.size=1000"),
    ],
)
def test_a_table_that_is_wrong_sends_nothing(
    make_producer: MakeProducer, read_committed: ReadCommitted, columns: Any, sentence: str
) -> None:
    producer = make_producer(None, max_request_size=1000)
    with pytest.raises(InvalidRecordError, match=sentence):
        producer.send_batch("events", pa.table(columns))
    producer.flush()
    assert read_committed("events", 3) == []


def test_an_array_is_no_table(make_producer: MakeProducer) -> None:
    with pytest.raises(InvalidRecordError, match="is not a table of records"):
        make_producer(None).send_batch("orders", pa.array([b"x"]))
