"""Spark's own Kafka connector, which is Java's client behind Spark: against the emulator and against Apache Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from dualwrite.broker_emulator.emulator import Emulator
from tests.spark.sinks import SinkWorld, finish, read_records
from tests.spark.written_topics import Topics


@dataclass
class Kafka:
    """Spark's own connector on one broker."""

    spark: SparkSession
    topics: Topics
    checkpoint: Path

    def read(self, reader: Any, topic: str, **options: str) -> DataFrame:
        given = {
            "kafka.bootstrap.servers": self.topics.bootstrap_servers,
            "kafka.isolation.level": "read_committed",
            "subscribe": topic,
            "startingOffsets": "earliest",
            **{name.replace("__", "."): value for name, value in options.items()},
        }
        df: DataFrame = reader.format("kafka").options(**given).load()
        return df

    def values(self, topic: str, **options: str) -> list[tuple[int, int, str]]:
        """Partition, offset and value of the rows of a batch query."""
        rows = self.read(self.spark.read, topic, **options).selectExpr("partition p", "offset o", "string(value) v")
        return sorted((row.p, row.o, row.v) for row in rows.collect())

    def copy(self, source: str, target: str, **options: str) -> None:
        """A stream into Spark's own sink, to the present end of the topic."""
        rows = self.read(self.spark.readStream, source, **options).select("key", "value", "headers")
        writer = rows.writeStream.format("kafka").option("topic", target).option("includeHeaders", "true")
        writer = writer.option("kafka.bootstrap.servers", self.topics.bootstrap_servers)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        finish(writer.trigger(availableNow=True).start())


@pytest.fixture
def kafka(connected: SparkSession, topics: Topics, tmp_path: Path) -> Kafka:
    return Kafka(connected, topics, tmp_path / "checkpoint")


def test_a_batch_query_over_aborted_records_and_an_open_transaction(kafka: Kafka) -> None:
    topic = kafka.topics.create(partitions=2)
    kafka.topics.abort(topic, "x", "y")
    kafka.topics.commit(topic, "a", "b")
    kafka.topics.commit(topic, "c", partition=1)
    kafka.topics.abort(topic, "z", partition=1)
    with kafka.topics.transaction(topic, "d", partition=1) as writer:
        kafka.topics.write(topic, "e", partition=1)
        assert kafka.values(topic) == [(0, 3, "a"), (0, 4, "b"), (1, 0, "c")]
        everything = kafka.values(topic, kafka__isolation__level="read_uncommitted")
        assert [value for _, _, value in everything] == ["x", "y", "a", "b", "c", "z", "d", "e"]
        writer.commit_transaction(10)
    assert kafka.values(topic)[2:] == [(1, 0, "c"), (1, 4, "d"), (1, 5, "e")]


def test_a_stream_into_sparks_own_sink(kafka: Kafka) -> None:
    source, target = kafka.topics.create(partitions=2), kafka.topics.create(partitions=2)
    kafka.topics.commit(source, "a", "b")
    kafka.topics.abort(source, "x", partition=1)
    kafka.topics.write(source, "c", partition=1, headers={"h": b"1"})
    kafka.copy(source, target, includeHeaders="true", maxOffsetsPerTrigger="3")
    with kafka.topics.transaction(source, "d") as writer:
        kafka.topics.write(source, "e")
        kafka.topics.write(source, "f", partition=1)
        kafka.copy(source, target, includeHeaders="true")
        seen = read_records(kafka.topics.bootstrap_servers, target)
        assert sorted(record.value or "" for record in seen) == ["a", "b", "c", "f"]
        writer.abort_transaction(10)
    kafka.copy(source, target, includeHeaders="true")
    seen = read_records(kafka.topics.bootstrap_servers, target)
    assert sorted((record.key, record.value) for record in seen) == [(each, each) for each in "abcef"]
    assert {record.value: record.headers for record in seen}["c"] == (("h", b"1"),)


def test_from_sparks_own_source_to_this_sink(connected: SparkSession, emulator: Emulator, tmp_path: Path) -> None:
    sqlite_world = SinkWorld(emulator, f"sqlite:///{tmp_path / 'store.db'}", tmp_path)
    topics = Topics(emulator.bootstrap_servers)
    kafka, topic = Kafka(connected, topics, tmp_path / "checkpoint"), topics.create()
    topics.commit(topic, "a", "b")
    topics.abort(topic, "x")
    topics.write(topic, "c")
    sqlite_world.run(kafka.read(connected.readStream, topic).select("key", "value"))
    assert sqlite_world.values() == ["a", "b", "c"]
