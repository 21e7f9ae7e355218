"""`format("dualwrite-kafka-source")` in Spark: streams that stop and continue, and batch queries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from dualwrite.broker_emulator.emulator import Emulator
from tests.spark.sinks import SinkWorld, finish
from tests.spark.written_topics import Topics
from tests.support.conditions import until


@pytest.fixture(scope="module")
def topics(broker: Emulator) -> Topics:
    return Topics(broker.bootstrap_servers)


@pytest.fixture
def stream(spark: SparkSession, topics: Topics, tmp_path: Path) -> Iterator[Stream]:
    stream = Stream(spark, topics, tmp_path)
    yield stream
    for query in spark.streams.active:
        query.stop()


class Stream:
    """A query on one checkpoint, whose batches become rows in memory, with foreachBatch."""

    def __init__(self, spark: SparkSession, topics: Topics, directory: Path) -> None:
        self.spark = spark
        self._topics = topics
        self.checkpoint = directory / "checkpoint"
        self.batches: list[list[str]] = []
        self.fails = False

    @property
    def rows(self) -> list[str]:
        """Return the values of all batches."""
        return [row for batch in self.batches for row in batch]

    def source(self, **options: str) -> DataFrame:
        rows: DataFrame = reader(self.spark.readStream, self._topics, **options).load()
        return rows

    def run(self, **options: str) -> list[list[str]]:
        """Return the values that an availableNow run reads, by batch."""
        self.batches = []
        finish(self._writer(**options).trigger(availableNow=True).start())
        return self.batches

    def start(self, **options: str) -> Any:
        return self._writer(**options).trigger(processingTime="0 seconds").start()

    def _writer(self, **options: str) -> Any:
        def keep(df: DataFrame, batch_id: int) -> None:
            rows = df.selectExpr("cast(value as string) v", "partition p", "offset o").collect()
            self.batches.append([row.v for row in sorted(rows, key=lambda row: (row.p, row.o))])
            if self.fails:
                raise RuntimeError("the driver dies")

        return self.source(**options).writeStream.foreachBatch(keep).option("checkpointLocation", str(self.checkpoint))

    def forget_commit(self, batch_id: int) -> None:
        """Simulate a driver that died before Spark recorded this batch."""
        for name in (f"{batch_id}", f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def offsets(self, batch_id: int) -> dict[str, Any]:
        """Return the offsets that Spark recorded for a batch."""
        text = (self.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[-1]
        found: dict[str, Any] = json.loads(text)
        return found

    def edit_offsets(self, batch_id: int, edited: dict[str, Any]) -> None:
        """Replace the offsets that Spark recorded for a batch, as if another version of the source had planned it."""
        path = self.checkpoint / "offsets" / str(batch_id)
        path.write_text("\n".join([*path.read_text().splitlines()[:-1], json.dumps(edited, separators=(",", ":"))]))
        path.with_name(f".{batch_id}.crc").unlink(missing_ok=True)


def reader(read: Any, topics: Topics, **options: str) -> Any:
    given = {"kafka.bootstrap.servers": topics.bootstrap_servers, "startingOffsets": "earliest", **options}
    return read.format("dualwrite-kafka-source").options(**given)


def test_a_stream_reads_committed_records_and_continues_after_a_stop(topics: Topics, stream: Stream) -> None:
    topic = topics.create(partitions=2)
    topics.abort(topic, "x", "y")
    topics.commit(topic, "a", "b")
    topics.commit(topic, "c", partition=1)
    topics.abort(topic, "z", partition=1)
    assert stream.run(subscribe=topic) == [["a", "b", "c"]]
    topic_id = topics.id_of(topic)
    started = {"@start": {topic: {"0": 0, "1": 0, "topicId": topic_id}}}
    assert stream.offsets(0) == {topic: {"0": 6, "1": 4, "topicId": topic_id}} | started
    stream.forget_commit(0)  # then that batch is read again, as it was
    topics.commit(topic, "d")
    with topics.transaction(topic, "e", partition=1) as writer:
        topics.write(topic, "f", partition=1)
        assert stream.run(subscribe=topic) == [["a", "b", "c"], ["d"]]  # behind an open transaction is the end
        writer.commit_transaction(10)
    assert stream.run(subscribe=topic) == [["e", "f"]]


def test_batches_are_limited_and_deleted_records_end_the_query(topics: Topics, stream: Stream) -> None:
    topic = topics.create()
    topics.write(topic, *"abcdefg")
    topics.abort(topic, *"xyzxyz")  # offsets that count, and no rows
    topics.write(topic, "h")
    batches = stream.run(subscribe=topic, maxOffsetsPerTrigger="3")
    assert batches == [["a", "b", "c"], ["d", "e", "f"], ["g"], [], ["h"]]
    topics.write(topic, *"ijkl")
    topics.delete_records(topic, 17)
    with pytest.raises(StreamingQueryException) as ended:
        stream.run(subscribe=topic)
    assert f"{topic}-0 begins at offset 17 now, but offsets 15 to 16 were not read yet" in str(ended.value)
    assert stream.run(subscribe=topic, failOnDataLoss="false") == [["k", "l"]]


def test_a_running_stream_starts_at_the_latest_offsets_and_finds_new_topics(topics: Topics, stream: Stream) -> None:
    first = topics.create()
    topics.write(first, "a")
    query = stream.start(subscribePattern=f"{first}.*", startingOffsets="latest")
    until(lambda: query.status["message"] == "Waiting for data to arrive", 60)
    second = topics.create(partitions=2, name=f"{first}-too")
    topics.write(second, "b", partition=1)
    until(lambda: stream.rows == ["b"], 60)  # the new partitions alone may have been a batch
    topics.write(first, "c")
    until(lambda: stream.rows == ["b", "c"], 60)
    latest = {
        first: {"0": 2, "topicId": topics.id_of(first)},
        second: {"0": 0, "1": 1, "topicId": topics.id_of(second)},
    }
    until(lambda: json.loads(query.lastProgress["sources"][0]["latestOffset"]) == latest, 60)
    query.stop()
    assert query.exception() is None


def test_a_stream_that_dies_in_its_first_batch_keeps_its_start(topics: Topics, stream: Stream) -> None:
    topic = topics.create()
    topics.write(topic, "before")
    stream.fails = True
    with pytest.raises(StreamingQueryException, match="the driver dies"):
        stream.run(subscribe=topic, startingOffsets="latest")
    topics.write(topic, "a", "b")
    stream.fails = False
    assert stream.run(subscribe=topic, startingOffsets="latest") == [[], ["a", "b"]]
    assert stream.run(subscribe=topic, startingOffsets="latest") == []


def test_a_topic_that_was_created_again_ends_the_query(topics: Topics, stream: Stream) -> None:
    topic = topics.create(partitions=2)
    topics.write(topic, "a", "b", "c")
    topics.write(topic, "d", partition=1)
    assert stream.run(subscribe=topic) == [["a", "b", "c", "d"]]
    old = topics.id_of(topic)
    topics.delete(topic)
    topics.create(name=topic)
    topics.write(topic, *"stuvw")  # more than before, so that the offset 3 exists
    for _ in range(2):  # a query that is only started again says the same
        with pytest.raises(StreamingQueryException) as ended:
            stream.run(subscribe=topic)
        assert (
            f"the topic {topic} was deleted and created again: the offsets of the query belong to the topic with"
            in (str(ended.value))
        )
        assert f"the id {old}, and it has the id {topics.id_of(topic)} now" in str(ended.value)
    assert stream.run(subscribe=topic, failOnDataLoss="false") == [["s", "t", "u", "v", "w"]]
    topics.write(topic, "x")
    assert stream.run(subscribe=topic) == [["x"]]


def test_a_checkpoint_without_topic_ids_goes_on(topics: Topics, stream: Stream) -> None:
    topic = topics.create()
    topics.write(topic, "a", "b")
    assert stream.run(subscribe=topic) == [["a", "b"]]
    stream.edit_offsets(0, {topic: {"0": 2}})
    topics.write(topic, "c")
    assert stream.run(subscribe=topic) == [["c"]]
    assert stream.offsets(1) == {topic: {"0": 3, "topicId": topics.id_of(topic)}}


@pytest.mark.parametrize("library", ["confluent-kafka", "kafka-python"])
def test_a_batch_query(topics: Topics, spark: SparkSession, library: str) -> None:
    topic, other = topics.create(partitions=2), topics.create()
    topics.commit(topic, "a", "b")
    topics.abort(topic, "x", partition=1)
    topics.write(topic, "c", partition=1, headers={"h": b"1"})
    topics.write(other, "d")
    wanted = {"subscribe": f"{topic},{other}", "includeHeaders": "true", "consumer.library": library}
    rows = reader(spark.read, topics, **wanted).load().collect()
    assert sorted((row.topic, row.partition, row.offset, bytes(row.value)) for row in rows) == sorted(
        [(topic, 0, 0, b"a"), (topic, 0, 1, b"b"), (topic, 1, 2, b"c"), (other, 0, 0, b"d")]
    )
    assert {row.value: row.headers for row in rows}[b"c"] == [("h", b"1")]
    part = reader(
        spark.read,
        topics,
        assign=f'{{"{topic}": [0]}}',
        startingOffsets=f'{{"{topic}": {{"0": 1}}}}',
        minPartitions="2",
    )
    assert [bytes(row.value) for row in part.load().collect()] == [b"b"]
    assert reader(spark.read, topics, subscribe=topics.create()).load().count() == 0


def test_invalid_options_are_refused_before_anything_is_read(topics: Topics, spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"did you mean startingOffsets\?"):
        reader(spark.read, topics, subscribe="t", startingOffset="earliest").load()
    with pytest.raises(Exception, match="a batch query that starts at the latest offsets has nothing to read"):
        reader(spark.read, topics, subscribe="t", startingOffsets="latest").load().collect()


def test_from_source_to_sink_exactly_once(topics: Topics, sqlite_world: SinkWorld, spark: SparkSession) -> None:
    topic = topics.create(partitions=2)
    world = sqlite_world
    source = reader(spark.readStream, topics, subscribe=topic, maxOffsetsPerTrigger="6").load()
    rows = source.selectExpr("key", "value")
    topics.commit(topic, "a", "b", "c")
    topics.abort(topic, "x", partition=1)
    topics.commit(topic, "d", "e", partition=1)
    world.run(rows)
    assert world.values() == ["a", "b", "c", "d", "e"]
    last = max(int(each.name) for each in (world.checkpoint / "commits").iterdir() if each.name.isdecimal())
    world.forget_commit(last)  # as if the driver had died in between
    topics.commit(topic, "f")
    world.run(rows)
    assert world.values() == ["a", "b", "c", "d", "e", "f"]
    assert world.open_transactions() == []
