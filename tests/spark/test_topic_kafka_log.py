"""The log of a commit store on brokers that lose responses, move, refuse and are away."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from dualwrite.broker_emulator import CloseBefore, DropReply, Error, Fault
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.client.log import partition_log
from dualwrite.producer import Producer
from spark_sink.errors import CommitLogError, DecisionUnknownError, SinkError, SinkOptionError
from spark_sink.handoff import TaskIdentity
from spark_sink.options import OnNewCheckpoint, parse
from spark_sink.store.attempt_states import Prepared
from spark_sink.store.opening import open_store
from spark_sink.store.tables import Decision
from spark_sink.store.topic.kafka_log import KafkaLog
from spark_sink.store.topic.log import OutOfLogError
from spark_sink.store.topic.records import Mark, decoded, encoded
from spark_sink.store.topic.topic_store import TopicStore
from tests.spark.test_topic_store import QUERY, SINK, STATE
from tests.spark.topic_stores import kafka_log
from tests.support.databases import unique

FAIL = OnNewCheckpoint.FAIL


@pytest.fixture(scope="module")
def cluster() -> Iterator[Emulator]:
    with Emulator(nodes=3) as emulator:
        yield emulator


@pytest.fixture
def topic() -> str:
    return unique("commits")


@pytest.fixture
def log(cluster: Emulator, topic: str) -> Iterator[KafkaLog]:
    made = kafka_log(cluster.bootstrap_servers, topic)
    made.create()
    yield made
    cluster.faults.clear()
    made.close()


def mark(name: str) -> bytes:
    return encoded(Mark(name))


def ids(log: KafkaLog, last: int) -> list[str]:
    return [decoded(record.value).id for record in log.read(log.start(), last)]


def test_appended_records_are_read_with_their_time_and_the_epoch_of_the_leader(log: KafkaLog) -> None:
    assert [log.append(mark(name)) for name in "abc"] == [0, 1, 2]
    records = log.read(0, 2)
    assert [record.offset for record in records] == [0, 1, 2]
    assert [record.value for record in records] == [mark(name) for name in "abc"]
    assert len({record.epoch for record in records}) == 1
    assert records[0].time_ms <= records[2].time_ms
    assert [record.offset for record in log.read(1, 1)][:1] == [1]


def test_a_record_whose_acknowledgement_is_lost_is_appended_again(cluster: Emulator, log: KafkaLog) -> None:
    cluster.faults.add(Fault(api="Produce", action=DropReply(), count=2))
    offset = log.append(mark("a"))
    assert ids(log, offset) == ["a"] * (offset + 1)
    assert offset == 2


def test_a_record_that_did_not_arrive_is_sent_again(cluster: Emulator, log: KafkaLog) -> None:
    cluster.faults.add(Fault(api="Produce", action=CloseBefore(), count=2))
    assert ids(log, log.append(mark("a"))) == ["a"]


def test_a_leader_that_moves(cluster: Emulator, log: KafkaLog, topic: str) -> None:
    for number in range(6):
        cluster.move_leader(topic, 0, number % 3)
        assert ids(log, log.append(mark(f"{number}")))[-1] == f"{number}"
    epochs = [record.epoch for record in log.read(0, 5)]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) > 3


def test_an_offset_that_the_log_does_not_have(log: KafkaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_log, "_SHOWN_WITHIN_S", 0.0)
    for name in "abcd":
        log.append(mark(name))
    log.delete_before(2)
    assert log.start() == 2
    log.delete_before(1)
    assert log.start() == 2, "a late one removes nothing"
    for first, last in ((1, 3), (9, 9), (3, 20)):
        with pytest.raises(OutOfLogError):
            log.read(first, last)
    assert ids(log, 3) == ["c", "d"]


def test_a_record_that_is_too_long_is_not_sent(log: KafkaLog, topic: str, cluster: Emulator) -> None:
    cluster.set_config({"max.message.bytes": "2000"}, topic=topic)
    incompressible = json.dumps([gzip.compress(str(number).encode()).hex() for number in range(400)]).encode()
    with pytest.raises(SinkError, match=f"the commit store in the topic {topic} is too long.*use fewer tasks"):
        log.append(incompressible)
    assert log.append(mark("a")) == 0


def test_a_right_that_is_missing_is_named(cluster: Emulator, log: KafkaLog) -> None:
    cluster.faults.add(Fault(api="Produce", action=Error("TOPIC_AUTHORIZATION_FAILED"), count=None))
    with pytest.raises(CommitLogError, match="WRITE on the topic") as refused:
        log.append(mark("a"))
    assert not refused.value.is_away
    cluster.faults.add(Fault(api="DeleteRecords", action=Error("TOPIC_AUTHORIZATION_FAILED"), count=None))
    with pytest.raises(CommitLogError, match="DELETE on the topic"):
        log.delete_before(0)


def test_records_of_a_transaction_are_refused(cluster: Emulator, log: KafkaLog, topic: str) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=unique("stranger")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, value=mark("a"))
        producer.commit_transaction()
    with pytest.raises(SinkError, match="another program has written"):
        log.read(0, 0)


def test_a_missing_topic_is_not_created_by_a_metadata_request(
    cluster: Emulator, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_log, "UNKNOWN_FOR_S", 0.0)
    store = TopicStore(kafka_log(cluster.bootstrap_servers, topic), create=False)
    with pytest.raises(SinkError, match=r"has no commit store.*init-store"):
        store.examine()
    with pytest.raises(CommitLogError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        store.sinks()
    assert not kafka_log(cluster.bootstrap_servers, topic)._log.exists()


def test_the_settings_of_a_topic_that_the_store_creates(cluster: Emulator, log: KafkaLog, topic: str) -> None:
    log.check()
    for name, value in (("min.insync.replicas", "1"), ("cleanup.policy", "compact,delete"), ("retention.bytes", "5")):
        cluster.set_config({name: value}, topic=topic)
        with pytest.raises(SinkError, match=f"{topic} cannot keep the decisions of a sink: {name} is {value}"):
            log.check()
        cluster.set_config(
            {name: {"min.insync.replicas": "2", "cleanup.policy": "delete"}.get(name, "-1")}, topic=topic
        )
    log.check()


def test_no_broker_can_be_reached() -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1"}
    log = KafkaLog(settings, "commits", timeout_ms=30_000, unreachable_timeout_ms=200)
    with pytest.raises(CommitLogError, match="no broker could be reached") as away:
        log.append(mark("a"))
    assert away.value.is_away
    assert (TopicStore(log).unreachable(away.value) or "").startswith("the topic of the commit store cannot be reached")


@contextmanager
def appending_in_vain(cluster: Emulator, log: KafkaLog) -> Iterator[None]:
    """Lose every response to an appended record, which is waited for briefly."""
    append = log.append

    def append_impatiently(value: bytes) -> int:
        with mock.patch.object(log._log, "_timeout_s", 1.0):
            return append(value)

    lost = cluster.faults.add(Fault(api="Produce", action=DropReply(), count=None))
    with mock.patch.object(log, "append", append_impatiently):
        yield
    lost.remove()


def test_a_decision_that_no_leader_acknowledges_in_time(cluster: Emulator, log: KafkaLog) -> None:
    """The record was appended each time; the next process counts it once."""
    store = TopicStore(log)
    generation = store.plan(SINK, query_id=QUERY, on_new_checkpoint=FAIL).generation
    lease = store.lease(SINK, generation, TaskIdentity(QUERY, 0, 0, 0, "h"))
    assert lease is not None
    store.mark_prepared(lease.attempt_id, Prepared(STATE, "m"), records=1)
    decision = Decision(SINK, QUERY, 0, generation, (lease.attempt_id,), 1, 0, False, "d")
    with appending_in_vain(cluster, log):
        with pytest.raises(DecisionUnknownError):
            store.decide(decision, FAIL)
        with pytest.raises(store.errors):
            store.resolve(decision)
    resolved = store.resolve(decision)
    assert resolved is not None
    other = TopicStore(kafka_log(cluster.bootstrap_servers, log.name))
    assert [row.batch_id for row in other.batches(SINK)] == [0]


# ---- opening -------------------------------------------------------------------------------------------------


def options(**more: str) -> dict[str, str]:
    least = {"sinkId": "s", "topic": "t", "commitStore.url": "kafka:///commits", "kafka.bootstrap.servers": "h:1"}
    return least | {name.replace("_", "."): value for name, value in more.items()}


def test_a_process_reads_a_log_once_for_all_its_sinks() -> None:
    first, second = (open_store(parse(options(sinkId=name))) for name in ("a", "b"))
    other = open_store(parse(options(commitStore_url="kafka://h:2/commits")))
    assert isinstance(first, TopicStore)
    assert isinstance(second, TopicStore)
    assert isinstance(other, TopicStore)
    assert first._replica is second._replica
    assert first._replica is not other._replica


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"dual_table": "target"},
            "dual.table, and a function for dualwrite_batch, need the commit store",
        ),
        ({"commitStore_schema": "sink"}, "commitStore.schema has no effect with a commit store in a topic"),
        ({"commitStore_accept": "fsync"}, "commitStore.accept"),
        ({"commitStore_url": "kafka://commits"}, "must be kafka:///topic"),
        ({"commitStore_url": "kafka:commits"}, "must be kafka:///topic"),
        ({"commitStore_url": "kafka:///a/b"}, "must be kafka:///topic"),
        ({"commitStore_url": "kafka://user:hunter2@h:1/topic"}, "without a password"),
        ({"commitStore_url": "kafka:///.."}, "must be kafka:///topic"),
    ],
)
def test_calls_without_meaning_for_a_topic_store_are_refused(more: dict[str, str], sentence: str) -> None:
    with pytest.raises(SinkOptionError) as refused:
        parse(options(**more))
    assert sentence in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_url_in_the_environment_is_checked_when_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_STORE", "kafka:///commits")
    given = options(commitStore_urlEnv="THE_STORE", dual_table="target")
    del given["commitStore.url"]
    with pytest.raises(SinkOptionError, match="runs no SQL"):
        open_store(parse(given))
