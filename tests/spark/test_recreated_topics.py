"""Tasks read only the topic for which their range was planned, with both libraries; without Spark."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from dualwrite.broker_emulator.emulator import Emulator
from spark_sink.errors import SourceDataLossError, SourceReadError
from spark_sink.reading import connections
from spark_sink.reading.clients import Records
from spark_sink.reading.offsets import OffsetRange, Partition
from spark_sink.reading.options import SourceOptions, parse
from spark_sink.reading.source import DualWriteKafkaSource, read_range
from tests.spark.written_topics import Topics
from tests.support.conditions import until

MANY: Final = 25_000
"""More records than one Arrow batch has."""
RECREATED: Final = "was deleted and created again: the offsets of the query belong to the topic with the id "


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with Emulator() as broker:
        yield broker


@pytest.fixture(scope="module")
def topics(emulator: Emulator) -> Topics:
    return Topics(emulator.bootstrap_servers)


@pytest.fixture(params=["confluent-kafka", "kafka-python"])
def task(request: pytest.FixtureRequest, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setattr("spark_sink.reading.topic_ids.SETTLED_AFTER_S", 0.0)
    return Task(topics, request.param)


class Task:
    """The task of a range that was planned for the present topic."""

    def __init__(self, topics: Topics, library: str) -> None:
        self._topics = topics
        self._given = {"kafka.bootstrap.servers": topics.bootstrap_servers, "consumer.library": library}
        self.topic = topics.create()
        self.topic_id = self.current_id()

    def options(self, **more: str) -> SourceOptions:
        return parse({**self._given, "subscribe": self.topic, "kafkaConsumer.pollTimeoutMs": "2000", **more})

    def current_id(self) -> str:
        with connections.topic_ids(self.options()) as lookup:
            found = lookup.ids([self.topic], {}).get(self.topic)
        assert found is not None
        return found

    def write(self, count: int, name: str) -> None:
        self._topics.write(self.topic, *(f"{name}-{number}" for number in range(count)))

    def recreate(self, count: int) -> None:
        """Delete the topic, create it again, and write that many records."""
        self._topics.delete(self.topic)
        self._topics.create(name=self.topic)
        until(lambda: self.current_id() != self.topic_id)
        self.write(count, "new")

    def reading(self, start: int, end: int, **more: str) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(
            DualWriteKafkaSource({**self._given, "subscribe": self.topic}).schema(), timezone="UTC"
        )
        wanted = OffsetRange(Partition(self.topic, 0), start, end, self.topic_id)
        return read_range(self.options(**more), wanted, schema)


def values(batches: Iterator[pa.RecordBatch]) -> list[str]:
    return [value.decode() for batch in batches for value in batch["value"].to_pylist()]


def test_a_topic_that_stays(task: Task) -> None:
    task.write(3, "old")
    assert values(task.reading(1, 3, **{"kafkaConsumer.pollTimeoutMs": "60000"})) == ["old-1", "old-2"]


@pytest.mark.parametrize("count", [10, 4, 0])
def test_recreated_between_the_plan_and_the_task(task: Task, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """With more records than before, with some at the offsets of the range, and with none."""
    task.write(5, "old")
    task.recreate(count)
    with pytest.raises(SourceDataLossError, match=f"{task.topic} {RECREATED}{task.topic_id}, and it has the id"):
        list(task.reading(2, 5))
    with caplog.at_level(logging.WARNING, "spark_sink"):
        assert values(task.reading(2, 5, failOnDataLoss="false")) == []
    assert RECREATED in caplog.text


@pytest.mark.parametrize("count", [MANY, MANY // 2, 0])
def test_recreated_during_the_read(task: Task, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """Rows given to Spark before are of the old topic, and no rows of the new one follow."""
    for fail in ("true", "false"):
        task.topic_id = task.current_id()
        task.write(MANY, "old")
        reading = task.reading(0, MANY, failOnDataLoss=fail)
        first = values(iter([next(reading)]))
        task.recreate(count)
        if fail == "true":
            with pytest.raises(SourceDataLossError, match=RECREATED):
                list(reading)
            task.recreate(0)
        else:
            assert [value for value in first + values(reading) if not value.startswith("old-")] == []
            assert RECREATED in caplog.text
        assert first == [f"old-{number}" for number in range(len(first))]


def test_a_range_that_has_no_rows_in_the_new_topic(task: Task, topics: Topics) -> None:
    """Then no row would show that the range of the old topic was not read."""
    task.write(5, "old")
    task.recreate(0)
    topics.abort(task.topic, *"abcdefgh")
    with pytest.raises(SourceDataLossError, match=RECREATED):
        list(task.reading(2, 5))


def test_recreated_after_the_last_look_before_the_read(
    task: Task, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task sleeps between its first look at the id and its first fetch, which then finds no rows."""
    task.write(5, "old")

    @contextmanager
    def consumer(options: SourceOptions) -> Iterator[Records]:
        task.recreate(0)
        topics.abort(task.topic, *"abcdefgh")
        with connections.consumer(options) as records:
            yield records

    monkeypatch.setattr("spark_sink.reading.source.consumer", consumer)
    with pytest.raises(SourceDataLossError, match=RECREATED):
        list(task.reading(2, 5))


def test_deleted_during_the_read(task: Task, topics: Topics) -> None:
    task.write(5, "old")
    topics.delete(task.topic)
    for fail in ("true", "false"):  # the next plan decides whether it is gone
        with pytest.raises(SourceReadError, match=f"did not return the id of {task.topic}: "):
            list(task.reading(0, 5, failOnDataLoss=fail))


def test_a_truncated_log_where_topic_ids_are_unknown(task: Task) -> None:
    """Kafka before 2.8 has no topic ids."""
    task.write(5, "old")
    task.recreate(2)
    task.topic_id = None  # type: ignore[assignment]
    with pytest.raises(SourceDataLossError, match="ends at offset 2 now, but offsets 3 to 4 were not read yet"):
        list(task.reading(3, 5))
    assert values(task.reading(3, 5, failOnDataLoss="false")) == []


def test_a_broker_that_does_not_know_the_new_topic_yet_is_queried_again(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    task.write(5, "old")
    monkeypatch.setattr("spark_sink.reading.topic_ids.SETTLED_AFTER_S", 60.0)
    with connections.topic_ids(task.options()) as lookup:
        look_up = lookup._found  # type: ignore[attr-defined]
        outdated: list[dict[str, str]] = [{task.topic: "of a topic before"}, {}]
        monkeypatch.setattr(lookup, "_found", lambda topics: outdated.pop() if outdated else look_up(topics))
    assert values(task.reading(0, 5)) == [f"old-{number}" for number in range(5)]
    assert outdated == []


def test_a_process_that_ends_leaves_no_complaint(task: Task, topics: Topics) -> None:
    code = (
        "from spark_sink.reading.connections import topic_ids\n"
        "from spark_sink.reading.options import parse\n"
        f"given = {{'kafka.bootstrap.servers': {topics.bootstrap_servers!r}, 'subscribe': {task.topic!r}}}\n"
        "with topic_ids(parse(given)) as lookup:\n"
        f"    print(lookup.ids([{task.topic!r}], {{}})[{task.topic!r}])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == (task.topic_id, "")


def test_a_broker_that_does_not_respond() -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "300", "subscribe": "t"}
    with (
        pytest.raises(
            SourceReadError, match=r"was queried for the ids of topics, and did not return them: .*nothing was"
        ),
        connections.topic_ids(parse(given)) as lookup,
    ):
        lookup.ids(["t"], {})
