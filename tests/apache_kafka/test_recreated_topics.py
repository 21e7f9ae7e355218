"""The Spark source on a real Apache Kafka, whose topic is deleted and created again at each step of a batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from dualwrite.testing.server_unavailable import ServerUnavailableError
from spark_sink.errors import SourceDataLossError
from spark_sink.reading.connections import connect, connect_topic_ids
from spark_sink.reading.offsets import LATEST, OffsetRange, Partition
from spark_sink.reading.options import SourceOptions, parse
from spark_sink.reading.planner import Planner
from spark_sink.reading.source import DualWriteKafkaSource, read_range
from tests.spark.written_topics import Topics
from tests.support.conditions import until
from tests.support.real_kafkas import RELEASED, shared_kafka
from tests.support.unavailable import skip

BEFORE, AFTER = ("a", "b", "c"), ("s", "t", "u", "v", "w")


@pytest.fixture(scope="module")
def topics() -> Topics:
    try:
        return Topics(shared_kafka(RELEASED).bootstrap_servers)
    except ServerUnavailableError as error:
        skip(error)


class Query:
    """A query that has read all of a topic before the topic is created again, with more records than before."""

    def __init__(self, topics: Topics, library: str) -> None:
        self._topics = topics
        self.topic = topics.create(partitions=2)
        topics.write(self.topic, *BEFORE)
        self._given = {
            "kafka.bootstrap.servers": topics.bootstrap_servers,
            "subscribe": self.topic,
            "consumer.library": library,
        }
        self._planner = Planner(self.options(), connect(self.options()), connect_topic_ids(self.options()))
        self.read_so_far = self._planner.starting(LATEST)

    def options(self, **more: str) -> SourceOptions:
        return parse({**self._given, **more})

    def planner(self, **more: str) -> Planner:
        return Planner(self.options(**more), self._planner.cluster, self._planner.topics)

    def recreate(self) -> None:
        self._topics.delete(self.topic)
        until(lambda: self.topic not in self._planner.cluster.partitions([self.topic]))
        self._topics.create(name=self.topic)
        self._topics.write(self.topic, *AFTER)

    def values(self, wanted: OffsetRange, **more: str) -> list[str]:
        schema = to_arrow_schema(DualWriteKafkaSource(self._given).schema(), timezone="UTC")
        batches = read_range(self.options(**more), wanted, schema)
        return [value.decode() for batch in batches for value in batch["value"].to_pylist()]

    def close(self) -> None:
        self._planner.cluster.close()
        self._planner.topics.close()


@pytest.fixture(params=["confluent-kafka", "kafka-python"])
def query(request: pytest.FixtureRequest, topics: Topics) -> Iterator[Query]:
    query = Query(topics, request.param)
    yield query
    query.close()


def test_between_two_batches(query: Query) -> None:
    query.recreate()
    with pytest.raises(SourceDataLossError, match="was deleted and created again"):
        query.planner().latest(query.read_so_far)
    tolerant = query.planner(failOnDataLoss="false")
    end = tolerant.latest(query.read_so_far)
    assert end.offsets == {Partition(query.topic, 0): len(AFTER)}
    (wanted,) = tolerant.ranges(query.read_so_far, end)
    assert sorted(query.values(wanted)) == list(AFTER)  # the writer, which just met a new topic, may change the order


def test_a_topic_recreated_between_the_end_of_a_batch_and_its_plan(query: Query, topics: Topics) -> None:
    topics.write(query.topic, "d")
    end = query.planner().latest(query.read_so_far)
    query.recreate()
    with pytest.raises(SourceDataLossError, match="was deleted and created again"):
        query.planner().ranges(query.read_so_far, end)
    tolerant = query.planner(failOnDataLoss="false")
    assert tolerant.ranges(query.read_so_far, end) == []
    (wanted,) = tolerant.ranges(end, tolerant.latest(end))
    assert sorted(query.values(wanted)) == list(AFTER)  # the writer, which just met a new topic, may change the order


def test_between_the_plan_and_the_task(query: Query, topics: Topics) -> None:
    topics.write(query.topic, "d")
    planner = query.planner()
    (wanted,) = planner.ranges(query.read_so_far, planner.latest(query.read_so_far))
    assert query.values(wanted) == ["d"]
    query.recreate()
    with pytest.raises(SourceDataLossError, match="was deleted and created again"):
        query.values(wanted)
    assert query.values(wanted, failOnDataLoss="false") == []
