"""Tasks and the driver read exactly the committed records, with both libraries; without Spark."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.emulator import Emulator
from spark_sink.errors import SourceDataLossError, SourceReadError
from spark_sink.reading import connections
from spark_sink.reading.clients import Cluster, Records
from spark_sink.reading.connections import connect
from spark_sink.reading.offsets import OffsetRange, Partition
from spark_sink.reading.options import SourceOptions, parse
from spark_sink.reading.source import DualWriteKafkaSource, read_range
from tests.spark.written_topics import Topics
from tests.support.conditions import until

UNCOMMITTED: dict[str, Any] = {"kafka.isolation.level": "read_uncommitted"}
POLL_FOR_2_S: dict[str, Any] = {"kafkaConsumer.pollTimeoutMs": "2000"}


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with Emulator(config=BrokerConfig(log_cleaner_backoff_ms=50)) as broker:
        yield broker


@pytest.fixture(scope="module")
def topics(emulator: Emulator) -> Topics:
    return Topics(emulator.bootstrap_servers)


@pytest.fixture(scope="module", params=["confluent-kafka", "kafka-python"])
def library(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def read(emulator: Emulator, library: str) -> Reads:
    return Reads(emulator.bootstrap_servers, library)


class Reads:
    """A source with one of the libraries."""

    def __init__(self, bootstrap_servers: str, library: str) -> None:
        self._given = {"kafka.bootstrap.servers": bootstrap_servers, "consumer.library": library}

    def options(self, topic: str, **more: str) -> SourceOptions:
        return parse({**self._given, "subscribe": topic, **{k.replace("__", "."): v for k, v in more.items()}})

    def schema(self, topic: str, **more: str) -> pa.Schema:
        return to_arrow_schema(
            DualWriteKafkaSource({**self._given, "subscribe": topic, **more}).schema(), timezone="UTC"
        )

    def batches(self, topic: str, start: int, end: int, partition: int = 0, **more: str) -> list[pa.RecordBatch]:
        schema = self.schema(topic, **more)
        wanted = OffsetRange(Partition(topic, partition), start, end)
        batches = list(read_range(self.options(topic, **more), wanted, schema))
        assert all(each.schema.equals(schema) for each in batches)
        return batches

    def rows(self, topic: str, start: int, end: int, partition: int = 0, **more: str) -> list[tuple[int, str]]:
        """Return offsets and values."""
        return [
            (row["offset"], row["value"].decode())
            for batch in self.batches(topic, start, end, partition, **more)
            for row in batch.to_pylist()
        ]

    def cluster(self, topic: str, **more: str) -> Cluster:
        return connect(self.options(topic, **more))


def test_aborted_records_and_markers_are_no_rows_wherever_they_are(topics: Topics, read: Reads) -> None:
    topic = topics.create()
    topics.abort(topic, "x", "y")  # 0 1, marker 2
    topics.commit(topic, "a", "b")  # 3 4, marker 5
    topics.abort(topic, "z")  # 6, marker 7
    topics.abort(topic, "z")  # 8, marker 9
    topics.write(topic, "c")  # 10
    topics.commit(topic, "d")  # 11, marker 12
    topics.abort(topic, "z")  # 13, marker 14
    assert read.rows(topic, 0, 15) == [(3, "a"), (4, "b"), (10, "c"), (11, "d")]
    assert read.rows(topic, 0, 3) == []
    assert read.rows(topic, 4, 10) == [(4, "b")]
    assert read.rows(topic, 5, 6) == []
    assert read.rows(topic, 12, 15) == []
    assert read.rows(topic, 7, 11) == [(10, "c")]


@pytest.mark.parametrize("borders", [(0, 1, 2, 15), (0, 5, 7, 9, 15), tuple(range(16))])
def test_ranges_side_by_side_give_each_record_once(topics: Topics, read: Reads, borders: tuple[int, ...]) -> None:
    topic = topics.create()
    topics.abort(topic, "x", "y", "z")  # 0 1 2, marker 3
    topics.commit(topic, "a", "b", "c", "d")  # 4 to 7, marker 8
    topics.abort(topic, "x", "y")  # 9 10, marker 11
    topics.commit(topic, "e", "f")  # 12 13, marker 14
    pieces = [read.rows(topic, start, end) for start, end in pairwise(borders)]
    assert [row for piece in pieces for row in piece] == [
        *((4, "a"), (5, "b"), (6, "c"), (7, "d")),
        *((12, "e"), (13, "f")),
    ]


def test_records_of_an_open_transaction_are_behind_the_end(topics: Topics, read: Reads) -> None:
    topic = topics.create()
    partition = Partition(topic, 0)
    topics.write(topic, "a", "b")
    with topics.transaction(topic, "c", "d") as writer:
        topics.write(topic, "e")
        cluster = read.cluster(topic)
        assert cluster.ends([partition]) == {partition: 2}
        assert cluster.high_watermarks([partition]) == {partition: 5}
        assert read.rows(topic, 0, 2) == [(0, "a"), (1, "b")]
        assert read.rows(topic, 0, 5, **UNCOMMITTED)[2:] == [*((2, "c"), (3, "d"), (4, "e"))]
        writer.commit_transaction(10)
        until(lambda: cluster.ends([partition]) == {partition: 6})
        cluster.close()
    assert read.rows(topic, 2, 6) == [(2, "c"), (3, "d"), (4, "e")]


def test_read_uncommitted_returns_aborted_records(topics: Topics, read: Reads) -> None:
    topic = topics.create()
    topics.abort(topic, "x")
    topics.commit(topic, "a")
    assert read.rows(topic, 0, 4, **UNCOMMITTED) == [(0, "x"), (2, "a")]
    assert read.rows(topic, 0, 4) == [(2, "a")]


def test_compaction_leaves_gaps(topics: Topics, read: Reads, emulator: Emulator) -> None:
    topic = topics.create(cleanup_policy="compact", segment_bytes="150", min_cleanable_dirty_ratio="0")
    for value in ("a", "b", "a", "c", "c", "b", "c", "a", "z"):
        topics.write(topic, value)
    until(lambda: sum(int.from_bytes(batch[57:61]) for batch in emulator.log(topic).batches) == 4)
    rows = read.rows(topic, 0, 9)
    assert rows == [(5, "b"), (6, "c"), (7, "a"), (8, "z")]
    assert read.rows(topic, 0, 5) == []
    assert read.rows(topic, 2, 6) == [(5, "b")]


def test_an_empty_partition(topics: Topics, read: Reads) -> None:
    topic = topics.create(partitions=2)
    topics.write(topic, "a", partition=1)
    partitions = [Partition(topic, 0), Partition(topic, 1)]
    cluster = read.cluster(topic)
    assert cluster.beginnings(partitions) == {partitions[0]: 0, partitions[1]: 0}
    assert cluster.ends(partitions) == {partitions[0]: 0, partitions[1]: 1}
    cluster.close()
    assert read.rows(topic, 0, 0) == []
    assert read.rows(topic, 0, 1, partition=1) == [(0, "a")]


def test_a_large_range_comes_in_bounded_batches(topics: Topics, read: Reads) -> None:
    topic = topics.create()
    topics.commit(topic, *(f"{number:05}" for number in range(12_000)))
    topics.abort(topic, *("x" * 3_000))
    batches = read.batches(topic, 0, 12_000 + 1 + 3_000 + 1)
    assert [row for batch in batches for row in batch["offset"].to_pylist()] == list(range(12_000))
    assert max(batch.num_rows for batch in batches) < 12_000


def test_columns(topics: Topics, read: Reads) -> None:
    topic = topics.create(partitions=2)
    topics.write(topic, "a", partition=1, headers={"h": b"1", "g": b""})
    topics.write(topic, "b", partition=1)
    (batch,) = read.batches(topic, 0, 2, partition=1, includeHeaders="true")
    first, second = batch.to_pylist()
    assert batch.schema.names[-1] == "headers"
    assert (first["key"], first["value"], first["topic"], first["partition"]) == (b"a", b"a", topic, 1)
    assert (first["offset"], first["timestampType"]) == (0, 0)
    assert first["headers"] == [{"key": "h", "value": b"1"}, {"key": "g", "value": b""}]
    assert second["headers"] is None
    (plain,) = read.batches(topic, 0, 1, partition=1)
    assert "headers" not in plain.schema.names


def test_records_without_key_or_value(topics: Topics, read: Reads, emulator: Emulator) -> None:
    from confluent_kafka import Producer

    topic = topics.create()
    producer = Producer({"bootstrap.servers": emulator.bootstrap_servers})
    producer.produce(topic, key=b"tombstone", partition=0, timestamp=1_700_000_000_123)
    producer.produce(topic, value=b"\xff", partition=0)
    assert producer.flush(10) == 0
    (batch,) = read.batches(topic, 0, 2)
    tombstone, keyless = batch.to_pylist()
    assert (tombstone["key"], tombstone["value"]) == (b"tombstone", None)
    assert tombstone["timestamp"].timestamp() == 1_700_000_000.123
    assert (keyless["key"], keyless["value"]) == (None, b"\xff")


def test_topics_that_do_not_exist_are_absent_and_not_created(topics: Topics, read: Reads) -> None:
    topic = topics.create(partitions=3)
    cluster = read.cluster(topic)
    assert {name: sorted(each) for name, each in cluster.partitions([topic, "nobody"]).items()} == {topic: [0, 1, 2]}
    everything = cluster.partitions(None)
    assert "nobody" not in everything
    assert sorted(everything[topic]) == [0, 1, 2]
    assert not [name for name in everything if name.startswith("__")]
    cluster.close()


def test_offsets_by_time(topics: Topics, read: Reads, emulator: Emulator) -> None:
    from confluent_kafka import Producer

    topic = topics.create()
    partition = Partition(topic, 0)
    producer = Producer({"bootstrap.servers": emulator.bootstrap_servers})
    for moment in (1_000, 2_000, 3_000):
        producer.produce(topic, value=b"v", partition=0, timestamp=moment)
    assert producer.flush(10) == 0
    cluster = read.cluster(topic)
    assert cluster.at_time([partition], 1_500) == {partition: 1}
    assert cluster.at_time([partition], 3_001) == {partition: None}
    cluster.close()


def test_offsets_deleted_after_planning(topics: Topics, read: Reads) -> None:
    topic = topics.create()
    topics.write(topic, *"abcdef")
    topics.delete_records(topic, 3)
    with pytest.raises(SourceDataLossError, match=r"begins at offset 3 now, but offsets 1 to 2 were not read yet"):
        read.rows(topic, 1, 6)
    assert read.rows(topic, 1, 6, failOnDataLoss="false") == [(3, "d"), (4, "e"), (5, "f")]
    assert read.rows(topic, 1, 3, failOnDataLoss="false") == []


def test_nothing_comes_for_too_long(topics: Topics, read: Reads) -> None:
    topic = topics.create()
    topics.write(topic, "a")
    text = r"nothing of .*-0 from offset 1 on for 2000 ms, although the batch continues to offset 2"
    with topics.transaction(topic, "b"), pytest.raises(SourceReadError, match=text):
        read.rows(topic, 0, 2, **POLL_FOR_2_S)


def test_a_log_that_lost_its_end_within_a_recorded_batch(topics: Topics, read: Reads) -> None:
    """Otherwise the batch would fail at every start until the log is as long again."""
    topic = topics.create()
    topics.commit(topic, "a")  # 0, marker 1
    topics.abort(topic, "x")  # 2, marker 3
    with pytest.raises(SourceDataLossError, match=r"-0 ends at offset 4 now, but offsets 4 to 8 were not read yet"):
        read.rows(topic, 0, 9, **POLL_FOR_2_S)
    assert read.rows(topic, 0, 9, failOnDataLoss="false", **POLL_FOR_2_S) == [(0, "a")]


def test_an_unreachable_broker(library: str) -> None:
    unreachable = Reads("127.0.0.1:1", library).options(
        "t", kafka__default__api__timeout__ms="300", kafka__request__timeout__ms="300"
    )
    with pytest.raises(SourceReadError, match=f"Kafka was queried for .*{library} reports"):
        cluster = connect(unreachable)
        cluster.partitions(["t"])


def test_a_broker_that_comes_back(emulator: Emulator, topics: Topics, read: Reads) -> None:
    topic = topics.create()
    topics.write(topic, *(f"{number}" for number in range(30_000)))
    cluster = read.cluster(topic)
    assert cluster.partitions([topic])
    reading = read_range(read.options(topic), OffsetRange(Partition(topic, 0), 0, 30_000), read.schema(topic))
    rows = next(reading).num_rows
    emulator.crash_node(0)
    coming_back = threading.Timer(0.5, emulator.start_node, (0,))
    coming_back.start()
    assert cluster.ends([Partition(topic, 0)]) == {Partition(topic, 0): 30_000}
    assert cluster.partitions([topic])
    assert rows + sum(each.num_rows for each in reading) == 30_000
    coming_back.join()
    cluster.close()


def test_consumers_are_kept_for_the_next_range_of_this_process(topics: Topics, read: Reads) -> None:
    topic = topics.create(partitions=2)
    topics.write(topic, *"abc")
    topics.write(topic, *"xyz", partition=1)
    made: list[object] = []

    def make(options: SourceOptions) -> Records:
        made.append(connections.open_consumer(options))
        return made[-1]  # type: ignore[return-value]

    options = read.options(topic, groupIdPrefix="kept")
    for partition in (0, 1, 0):
        with connections.consumer(options, make) as records:
            wanted = OffsetRange(Partition(topic, partition), 0, 3)
            assert [o for each in records.read(wanted, headers=False, patience_ms=9_000) for o in each.offsets] == [
                *(0, 1, 2)
            ]
    assert len(made) == 1
    with pytest.raises(ZeroDivisionError), connections.consumer(options, make):
        raise ZeroDivisionError  # after a failure the consumer is not used again
    with connections.consumer(options, make), connections.consumer(options, make):
        pass
    assert len(made) == 3

    class Broken:
        def close(self) -> None:
            raise OSError("no more files")

    broken: Records = Broken()  # type: ignore[assignment]
    options = read.options(topic, groupIdPrefix="broken")
    with pytest.raises(ZeroDivisionError) as caught, connections.consumer(options, lambda _: broken):
        raise ZeroDivisionError  # which the close does not replace
    assert "no more files" in caught.value.__notes__[0]
    with connections.consumer(options, lambda _: broken), connections.consumer(options, make):
        pass  # the first one is not kept, and its records are read


def test_a_forked_child_makes_its_own_consumer(topics: Topics, read: Reads) -> None:
    topic = topics.create()
    topics.write(topic, "a")
    read.rows(topic, 0, 1)
    child = os.fork()
    if child == 0:
        os._exit(0 if read.rows(topic, 0, 1) == [(0, "a")] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_one_task_after_the_other_on_other_partitions_of_a_stopped_read(topics: Topics, read: Reads) -> None:
    """A task that needs only some rows abandons its range; the next range must not contain any of it."""
    topic = topics.create(partitions=2)
    topics.write(topic, *(f"{number}" for number in range(25_000)))
    topics.write(topic, "a", partition=1)
    options = read.options(topic)
    reading = read_range(options, OffsetRange(Partition(topic, 0), 0, 25_000), read.schema(topic))
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert read.rows(topic, 0, 1, partition=1) == [(0, "a")]
