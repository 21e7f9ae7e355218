"""Each log continues at its row: errors of the consumer, other logs under the same name, and gaps."""

from __future__ import annotations

import logging
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.admin import AsyncTransactionAdmin, TopicIds
from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.errors import ConfigError, ConsumedLogReplacedError, ConsumedRecordsMissingError
from dualwrite.producer import Producer
from dualwrite.recipes.consume.consume import ConsumeTransformWrite, forget_consumed_offsets
from dualwrite.recipes.consume.consumed_logs import ConsumedLogs, Gap, find_gaps
from dualwrite.recipes.consume.consumers import Bounds, ConsumedRecord, KafkaPythonAdapter
from dualwrite.recipes.core import blocking
from dualwrite.recipes.sqlalchemy.tables import kafka_consumed_offset
from dualwrite.recipes.sqlalchemy.writer import DualTransaction
from tests.recipes.pipelines import Site, carry, copy
from tests.recipes.pipelines import emulator as emulator
from tests.recipes.pipelines import library as library
from tests.recipes.pipelines import site as site
from tests.support.conditions import until
from tests.support.consumers import Consumers, confluent_kafka, kafka_python
from tests.support.databases import Database, event_bodies
from tests.support.topics import create_anew


class WithErrors:
    """A confluent-kafka consumer whose batches carry an error among the records."""

    def __init__(self, consumer: Any, error: Any) -> None:
        self._consumer = consumer
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def consume(self, *arguments: Any) -> list[Any]:
        messages = self._consumer.consume(*arguments)
        error, self._error = self._error, None
        return [*messages, *([] if error is None else [Failed(error)])]


class Failed:
    def __init__(self, error: Any) -> None:
        self._error = error

    def error(self) -> Any:
        return self._error


@pytest.mark.parametrize("place", ["database", "transaction"])
def test_records_that_came_with_an_error_are_written_and_the_error_is_raised(
    emulator: Emulator, sqlite: Database, place: str
) -> None:
    from confluent_kafka import KafkaError, KafkaException

    site = Site(emulator, sqlite, confluent_kafka, place)
    site.fill("a", "b", "c", "d")
    consumer = WithErrors(site.consumer(), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    pipeline = ConsumeTransformWrite(site.writer(), consumer, ["in"], copy, offsets=site.place)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        until(lambda: pipeline.step(10_000) < 0)
    until(lambda: (pipeline.step(10_000), len(event_bodies(sqlite)) >= 4)[1])
    site.assert_carried("a", "b", "c", "d")
    site.close()


def test_a_recreated_topic_is_refused_until_its_offsets_are_reset(
    emulator: Emulator, sqlite: Database, library: Consumers
) -> None:
    site = Site(emulator, sqlite, library, "database")
    site.fill("a", "b", "c", "d")
    carry(site.pipeline(), 4)
    site._to_close.pop(0).close()
    create_anew(emulator, "in", 2)
    site.fill("e", "f", "g", "h", "i", "j")
    pipeline = site.pipeline()
    for _ in range(2):
        with pytest.raises(
            ConsumedLogReplacedError, match=r"'in' was deleted and created again.*forget_consumed"
        ) as told:
            until(lambda: pipeline.step(10_000) > 0)
        assert (told.value.topic, told.value.expected_offset) == ("in", 2)
    site.assert_carried("a", "b", "c", "d")
    site._to_close.pop(0).close()
    assert forget_consumed_offsets(sqlite.engine, "movers", "in") == 2
    carry(site.pipeline(), 6)
    site.assert_carried(*"abcdefghij")
    site.close()


def test_a_topic_that_is_created_anew_under_a_running_consumer_is_noticed(site: Site) -> None:
    site.fill("a", "b", "c", "d")
    pipeline = site.pipeline()
    carry(pipeline, 4)
    create_anew(site.emulator, "in", 2)
    site.fill("e", "f", "g", "h", "i", "j")
    with pytest.raises(ConsumedLogReplacedError):
        until(lambda: pipeline.step(10_000) > 0)
    site.assert_carried("a", "b", "c", "d")


@pytest.mark.parametrize("unknown", ["the consumer's", "the writer's"])
def test_an_unknown_cluster_is_queried_again(
    emulator: Emulator, sqlite: Database, monkeypatch: pytest.MonkeyPatch, unknown: str
) -> None:
    site = Site(emulator, sqlite, kafka_python, "database")
    site.fill("a", "b", "c", "d")
    pipeline = site.pipeline()
    with monkeypatch.context() as early:
        if unknown == "the consumer's":
            early.setattr(KafkaPythonAdapter, "cluster_id", returns_none)
        else:
            early.setattr(AsyncTransactionAdmin, "describe_topic_ids", returns_no_ids)
        carry(pipeline, 4)
    site.fill("e", "f")
    carry(pipeline, 2)
    create_anew(emulator, "in", 2)
    site.fill(*"ghijklmn")
    with pytest.raises(ConsumedLogReplacedError):
        until(lambda: pipeline.step(10_000) > 0)
    site.assert_carried(*"abcdef")
    site.close()


async def returns_none(*_: object) -> None:
    return None


async def returns_no_ids(*_: object, timeout_ms: int) -> TopicIds:
    return TopicIds(None, {})


def test_a_truncated_log_is_refused(emulator: Emulator, sqlite: Database, library: Consumers) -> None:
    """Its topic is the same, and ends below the row."""
    site = Site(emulator, sqlite, library, "database")
    site.fill("a", "b", "c", "d")
    carry(site.pipeline(), 4)
    site._to_close.pop(0).close()
    with sqlite.engine.begin() as connection:
        connection.execute(sa.update(kafka_consumed_offset).values(next_offset=50))
    pipeline = site.pipeline()
    with pytest.raises(ConsumedLogReplacedError, match=r"ends at offset 2, but was consumed up to 50") as told:
        until(lambda: pipeline.step(10_000) > 0)
    assert (told.value.expected_offset, told.value.found_offset) == (50, 2)
    site.assert_carried("a", "b", "c", "d")
    site.close()


def test_records_deleted_by_retention_are_logged_and_the_rest_is_processed(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.fill("a", "b")
    carry(site.pipeline(), 2)
    site._to_close.pop(0).close()
    site.fill(*"cdefgh")
    delete_records(site.emulator, "in", 3)
    with caplog.at_level(logging.ERROR):
        carry(site.pipeline(), 2)
    site.assert_carried("a", "b", "g", "h")
    told = {record.args for record in caplog.records if record.name.endswith("consumed_logs")}
    assert told == {("in", 0, 1, 2, 3), ("in", 1, 1, 2, 3)}


def delete_records(emulator: Emulator, topic: str, before: int) -> None:
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient

    admin: Any = KafkaAdminClient(bootstrap_servers=emulator.bootstrap_servers)
    admin.delete_records({TopicPartition(topic, partition): before for partition in range(2)})
    admin.close()


def test_offsets_used_by_markers_are_no_gap(site: Site) -> None:
    with Producer(bootstrap_servers=site.emulator.bootstrap_servers, transactional_id="filler") as producer:
        producer.init_transactions()
        for value in "abcdef":
            producer.begin_transaction()
            producer.send("in", value, partition=0)
            if value in "be":
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    carry(site.pipeline(max_records=1), 4)
    site._to_close.pop(0).close()
    site.fill("x", "y")
    carry(site.pipeline(max_records=1), 2)
    site.assert_carried("a", "c", "d", "f", "x", "y")


ERROR = {"auto.offset.reset": "error"}
STRICT: dict[str, Consumers] = {
    "kafka-python": partial(kafka_python, auto_offset_reset="none"),
    "confluent-kafka": partial(confluent_kafka, settings=ERROR),
    "confluent-kafka, cooperative": partial(confluent_kafka, strategy="cooperative-sticky", settings=ERROR),
}


@pytest.mark.parametrize("strict", STRICT)
def test_without_a_reset_each_partition_needs_an_offset(emulator: Emulator, sqlite: Database, strict: str) -> None:
    """`auto_offset_reset="none"` forbids guessing: rows need no guess, and a partition without one is named."""
    first = Site(emulator, sqlite, confluent_kafka, "database")
    first.fill("a", "b", "c", "d")
    carry(first.pipeline(), 4)
    first.close()

    site = Site(emulator, sqlite, STRICT[strict], "database")
    site.fill("e", "f")
    carry(site.pipeline(), 2)
    site.assert_carried(*"abcdef")
    site.close()

    with sqlite.engine.begin() as connection:
        connection.execute(sa.delete(kafka_consumed_offset).where(kafka_consumed_offset.c.partition == 1))
    site = Site(emulator, sqlite, STRICT[strict], "database")
    pipeline = site.pipeline()
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"has an offset of in-1 for this group.*'earliest'"):
            until(lambda: pipeline.step(10_000) > 0)
    site.close()


def at(offset: int, partition: int = 0) -> ConsumedRecord:
    return ConsumedRecord("in", partition, offset, None, None, [], 0)


def test_gaps_are_looked_for_between_and_within_batches() -> None:
    first, second = at(0).topic_partition, at(0, 1).topic_partition
    assert find_gaps([at(5), at(6), at(7, 1)], {first: 5}) == {}
    assert find_gaps([at(5), at(7), at(9)], {first: 5}) == {first: Gap(6, 7)}
    assert find_gaps([at(6), at(7, 1), at(9, 1)], {first: 5, second: 7}) == {first: Gap(5, 6), second: Gap(8, 9)}


class FakeConsumer:
    """A consumer whose log begins at 0, asked to go on somewhere."""

    group_id = "movers"

    def __init__(self) -> None:
        self.went_on: list[Any] = []

    async def bounds(self, partitions: Any) -> dict[Any, Bounds]:
        return dict.fromkeys(partitions, Bounds(0, 100))

    async def seek(self, positions: Any) -> None:
        self.went_on.append(dict(positions))


class NoIds:
    async def ids_for(self, consumer: Any, topics: Any) -> dict[str, str]:
        return {}


@pytest.fixture
def logs() -> tuple[ConsumedLogs, FakeConsumer]:
    consumer = FakeConsumer()
    made: Any = consumer
    checked = ConsumedLogs(made, NoIds())  # type: ignore[arg-type]
    blocking.run(checked.place([at(0).topic_partition], {at(0).topic_partition: 5}, {}))
    return checked, consumer


def test_a_gap_after_a_new_position_is_confirmed_by_a_second_read(
    logs: tuple[ConsumedLogs, FakeConsumer],
) -> None:
    checked, consumer = logs
    partition = at(0).topic_partition
    assert blocking.run(checked.check([at(9)])) == []
    assert consumer.went_on == [{partition: 5}]
    assert blocking.run(checked.check([at(7)])) == [at(7)], "the log itself leaves out 5 and 6"


def test_a_gap_that_grows_is_not_explained(logs: tuple[ConsumedLogs, FakeConsumer]) -> None:
    checked, _ = logs
    assert blocking.run(checked.check([at(7)])) == []
    with pytest.raises(ConsumedRecordsMissingError, match="record at 7, then one at 9") as told:
        blocking.run(checked.check([at(9)]))
    assert (told.value.expected_offset, told.value.found_offset) == (5, 9)


def test_a_record_from_before_is_of_another_log(logs: tuple[ConsumedLogs, FakeConsumer]) -> None:
    with pytest.raises(ConsumedLogReplacedError, match="from offset 5 on and returned a record at 3"):
        blocking.run(logs[0].check([at(3)]))


@pytest.mark.parametrize("place", ["database", "transaction"])
def test_a_consumer_that_took_too_long_joins_its_group_again(sqlite: Database, place: str) -> None:
    impatient = partial(confluent_kafka, session_timeout_ms=600, settings={"max.poll.interval.ms": 600})
    config = BrokerConfig(
        offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1, group_min_session_timeout_ms=500
    )
    with Emulator(config=config, topics={"in": 2, "out": 1}) as emulator:
        site = Site(emulator, sqlite, impatient, place)
        site.fill("a", "b", "c", "d")
        slow = [True]

        def handle(tx: DualTransaction, record: ConsumedRecord) -> None:
            if slow:
                slow.pop()
                until(lambda: members_of("movers", emulator) == 0)
            copy(tx, record)

        pipeline = site.pipeline(handle)
        until(lambda: (pipeline.step(10_000), len(event_bodies(sqlite)) >= 4)[1])
        assert slow == []
        site.fill("e", "f")
        until(lambda: (pipeline.step(10_000), len(event_bodies(sqlite)) >= 6)[1])
        site.assert_carried(*"abcdef")
        site.close()


def members_of(group: str, emulator: Emulator) -> int:
    admin: Any = import_module("confluent_kafka.admin").AdminClient({"bootstrap.servers": emulator.bootstrap_servers})
    return len(admin.describe_consumer_groups([group])[group].result().members)


def test_a_partition_without_records_stays_at_its_position(emulator: Emulator, sqlite: Database) -> None:
    """confluent-kafka has no position for it, and would begin it at the group's offset when another one is placed."""
    site = Site(emulator, sqlite, confluent_kafka, "database")
    site.fill("a", "b", "c", "d")
    carry(site.pipeline(), 4)
    site._to_close.pop(0).close()
    pipeline = site.pipeline()
    side = pipeline._steps._consumer
    until(lambda: pipeline.step(50) == 0 and len(blocking.run(side.assignment())) == 2)
    for partition in sorted(blocking.run(side.assignment())):
        blocking.run(side.seek({partition: 2}))
    site.fill("e", "f")
    carry(pipeline, 2)
    site.assert_carried(*"abcdef")
    site.close()
