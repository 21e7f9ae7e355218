"""The commit store in a topic, on real brokers: their log, their settings, a moving leader, and a frozen one."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from dualwrite.prepared_state import PreparedTxnState
from spark_sink.errors import SinkError, SinkFencedError
from spark_sink.handoff import TaskIdentity
from spark_sink.options import OnNewCheckpoint
from spark_sink.store.attempt_states import LIVE, AttemptStatus, Ended, Ending, Prepared
from spark_sink.store.tables import BatchStatus, Decision
from spark_sink.store.topic.topic_store import TopicStore
from tests.spark.topic_stores import kafka_log
from tests.support.conditions import until
from tests.support.real_kafkas import OLDER, RELEASED, Kind, real_kafka, shared_kafka
from tests.support.servers.apache_kafka import ApacheKafka

from .conftest import NewName, running

FAIL = OnNewCheckpoint.FAIL
QUERY = "query"
STATE = PreparedTxnState("7:3")
TASKS = 8


def store(servers: str, topic: str) -> TopicStore:
    """Return the store as a process of its own has it."""
    return TopicStore(kafka_log(servers, topic))


def batch(servers: str, topic: str, sink: str, batch_id: int, tasks: int = TASKS) -> None:
    """Do a whole batch, with a process for each task, all at once."""
    driver = store(servers, topic)
    driver.examine()
    generation = driver.plan(sink, query_id=QUERY, on_new_checkpoint=FAIL).generation

    def task(partition: int) -> str:
        mine = store(servers, topic)
        identity = TaskIdentity(QUERY, batch_id, partition, partition, "host")
        assert not mine.is_decided_for(sink, generation, identity, FAIL)
        lease = mine.lease(sink, generation, identity)
        assert lease is not None
        assert mine.is_open(lease.attempt_id)
        mine.mark_prepared(lease.attempt_id, Prepared(STATE, "manifest"), records=1)
        return lease.attempt_id

    with ThreadPoolExecutor(tasks) as threads:
        winners = tuple(threads.map(task, range(tasks)))
    decision = Decision(sink, QUERY, batch_id, generation, winners, tasks, 0, False, "digest")
    assert driver.decide(decision, FAIL).anew
    driver.record(sink, {each: Ended(Ending.COMMITTED, judged=STATE) for each in winners})
    driver.prune(sink, 2)


@pytest.mark.parametrize("kind", [RELEASED, OLDER], ids=lambda kind: kind.version)
def test_batches_of_many_tasks(kind: Kind, new_name: NewName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_sink.store.topic.replica.SNAPSHOT_EVERY", 40)
    servers, topic = shared_kafka(kind).bootstrap_servers, new_name("commits")
    for batch_id in range(6):
        batch(servers, topic, "s", batch_id)
    assert kafka_log(servers, topic).start() > 0, "what is old is deleted"
    fresh = store(servers, topic)
    assert [(row.batch_id, row.status) for row in fresh.batches("s")] == [(5, BatchStatus.DONE), (4, BatchStatus.DONE)]
    assert [row.generation for row in fresh.sinks()] == [6]
    assert fresh.attempts("s", LIVE) == []
    assert len(fresh.attempts("s")) == 2 * TASKS


@pytest.mark.parametrize("kind", [RELEASED, OLDER], ids=lambda kind: kind.version)
def test_settings_that_would_forget_are_refused(kind: Kind, new_name: NewName) -> None:
    servers, topic = shared_kafka(kind).bootstrap_servers, new_name("commits")
    admin = AdminClient({"bootstrap.servers": servers})
    driver = store(servers, topic)
    driver.create()
    driver.examine()
    for name, wrong, right in (
        ("cleanup.policy", "compact", "delete"),
        ("retention.ms", "1000000", "-1"),
        ("message.timestamp.type", "CreateTime", "LogAppendTime"),
    ):
        alter(admin, topic, name, wrong)
        with pytest.raises(SinkError, match=f"{name} is {wrong}, not {right}"):
            driver.examine()
        alter(admin, topic, name, right)
    driver.examine()
    many = new_name("commits")
    admin.create_topics([NewTopic(many, 2, 1)])[many].result(60)
    with pytest.raises(SinkError, match="has 2 partitions, not 1"):
        store(servers, many).examine()


def alter(admin: AdminClient, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)


@pytest.fixture(scope="module", params=[RELEASED, OLDER], ids=lambda kind: kind.version)
def three(request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    yield from running(real_kafka(request.param, nodes=3))


def leader_of(servers: str, topic: str) -> int:
    """Return the leader that brokers tell; -1 for none."""
    metadata = AdminClient({"bootstrap.servers": servers}).list_topics(topic, timeout=20)
    return int(metadata.topics[topic].partitions[0].leader)


def topic_not_led_by_the_controller(three: ApacheKafka, new_name: NewName) -> str:
    """Return a store whose leader can be lost without the controller."""
    while True:
        topic = new_name("commits")
        store(three.bootstrap_servers, topic).create()
        if leader_of(three.bootstrap_servers, topic) != 1:
            return topic


def test_a_leader_is_killed_repeatedly(three: ApacheKafka, new_name: NewName) -> None:
    """Acknowledged calls stand, and no id or batch is leased or decided twice."""
    servers, topic = three.bootstrap_servers, topic_not_led_by_the_controller(three, new_name)
    leased: Counter[str] = Counter()
    decided: list[int] = []
    over = threading.Event()

    def work() -> None:
        batch_id = 0
        while not over.is_set():
            driver = store(servers, topic)
            generation = driver.plan("s", query_id=QUERY, on_new_checkpoint=FAIL).generation
            identity = TaskIdentity(QUERY, batch_id, 0, 0, "host")
            lease = store(servers, topic).lease("s", generation, identity)
            assert lease is not None
            leased[lease.attempt_id] += 1
            driver.mark_prepared(lease.attempt_id, Prepared(STATE, "m"), records=1)
            made = Decision("s", QUERY, batch_id, generation, (lease.attempt_id,), 1, 0, False, "d")
            assert driver.decide(made, FAIL).anew
            decided.append(batch_id)
            driver.record("s", {lease.attempt_id: Ended(Ending.COMMITTED, judged=STATE)})
            batch_id += 1

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)

        def until_more() -> None:
            seen = len(decided)
            until(lambda: len(decided) > seen + 3 or working.done())

        for _ in range(3):
            until_more()
            leader = leader_of(servers, topic)
            if leader != 1:
                three.kill(leader)
            until_more()
            if leader != 1:
                three.start()
        over.set()
        working.result(60)
    fresh = store(servers, topic)
    assert [row.batch_id for row in fresh.batches("s")] == decided[::-1]
    assert {row.attempt_id for row in fresh.attempts("s")} == set(leased)
    assert {row.status for row in fresh.attempts("s")} == {AttemptStatus.COMMITTED}


def test_a_frozen_leader_that_was_replaced(three: ApacheKafka, new_name: NewName) -> None:
    """A process that is still connected to it reads the others' records, and decides nothing without them."""
    servers, topic = three.bootstrap_servers, topic_not_led_by_the_controller(three, new_name)
    old = store(servers, topic)
    generation = old.plan("s", query_id=QUERY, on_new_checkpoint=FAIL).generation
    frozen = leader_of(servers, topic)
    os.kill(three.pid_of(frozen), signal.SIGSTOP)
    try:
        alive = ",".join(each for number, each in enumerate(servers.split(","), 1) if number != frozen)
        until(lambda: leader_of(alive, topic) not in (frozen, -1))
        new = store(alive, topic)
        assert new.plan("s", query_id=QUERY, on_new_checkpoint=FAIL).generation == (generation or 0) + 1
    finally:
        os.kill(three.pid_of(frozen), signal.SIGCONT)
    with pytest.raises(SinkFencedError):
        old.decide(Decision("s", QUERY, 0, generation, (), 0, 0, False, "d"), FAIL)
    with pytest.raises(SinkFencedError):
        old.is_decided_for("s", generation, TaskIdentity(QUERY, 0, 0, 0, "host"), FAIL)
    assert new.batches("s") == []
