"""Consumer groups with other clients: librdkafka, kafka-python and aiokafka.

Sessions and rebalances follow a clock that stands still until a test advances it, while the clients' heartbeats follow
real time: to end a member, a test silences it and advances the clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, CloseBefore, Emulator, Fault
from dualwrite.broker_emulator.clock import VirtualClock

# imported as untyped: their types do not pass mypy's strict mode
confluent_kafka: Any = import_module("confluent_kafka")
kafka: Any = import_module("kafka")
kafka_errors: Any = import_module("kafka.errors")

TIMEOUT_S = 60.0
PARTITIONS = 4
SESSION_MS = 10_000
PATIENCE_MS = 1_000


@pytest.fixture(params=[1, 3])
def emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    config = BrokerConfig(offsets_topic_num_partitions=5, transaction_state_log_num_partitions=5)
    with Emulator(nodes=request.param, config=config, clock=VirtualClock(), topics={"t": PARTITIONS}) as broker:
        yield broker


class Consumers:
    """librdkafka consumers that are polled together, because a rebalance needs all of them to poll."""

    def __init__(self, emulator: Emulator, **settings: Any) -> None:
        self.emulator = emulator
        self.settings = settings
        self.members: dict[str, Any] = {}
        self.messages: list[Any] = []

    def join(self, name: str, **settings: Any) -> Any:
        config = {
            "bootstrap.servers": self.emulator.bootstrap_servers,
            "group.id": "g",
            "client.id": name,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 50,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
        given = {key.replace("_", "."): value for key, value in {**self.settings, **settings}.items()}
        consumer = confluent_kafka.Consumer({**config, **given})
        consumer.subscribe(["t"])
        self.members[name] = consumer
        return consumer

    def poll(self) -> None:
        for consumer in self.members.values():
            message = consumer.poll(0.02)
            if message is not None and message.error() is None:
                self.messages.append(message)

    def poll_until(self, condition: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, (self.assignment(), self.emulator_group())
            self.poll()
            meanwhile()

    def assignment(self) -> dict[str, list[int]]:
        return {
            name: sorted(partition.partition for partition in consumer.assignment())
            for name, consumer in self.members.items()
        }

    def emulator_group(self) -> Any:
        return next((group for group in self.emulator.groups() if group.group_id == "g"), None)

    def let_session_end(self, name: str) -> None:
        """Advance the clock while the group has a member of this name, and no further: the others must survive."""
        group = self.emulator_group()
        if any(member.client_id == name for member in group.members.values()):
            self.emulator.advance_clock(500)

    def is_shared(self) -> bool:
        """Return whether every partition is assigned once, and as evenly as possible."""
        shares = self.assignment().values()
        sizes = [len(share) for share in shares]
        is_even = max(sizes) - min(sizes) <= 1
        return sorted(partition for share in shares for partition in share) == list(range(PARTITIONS)) and is_even

    def close(self) -> None:
        for consumer in self.members.values():
            consumer.close()


@pytest.fixture
def consumers(emulator: Emulator) -> Iterator[Consumers]:
    """Yield consumers: eager rebalances on one node, cooperative ones on several."""
    is_single = "," not in emulator.bootstrap_servers
    group = Consumers(emulator, partition_assignment_strategy="range" if is_single else "cooperative-sticky")
    yield group
    group.close()


def produce(emulator: Emulator, values: Iterable[str], partition: int | None = None) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": emulator.bootstrap_servers, "log_level": 0})
    for index, value in enumerate(values):
        producer.produce("t", value.encode(), partition=index % PARTITIONS if partition is None else partition)
    assert producer.flush(TIMEOUT_S) == 0


def test_librdkafka_member_that_dies_is_missed_after_its_session(emulator: Emulator, consumers: Consumers) -> None:
    consumers.join("a")
    consumers.join("b")
    consumers.poll_until(consumers.is_shared)
    dead = consumers.members.pop("b")
    silence(emulator, "b")
    consumers.poll_until(consumers.is_shared, lambda: consumers.let_session_end("b"))
    assert consumers.assignment() == {"a": list(range(PARTITIONS))}
    dead.close()


def silence(emulator: Emulator, client_id: str) -> Any:
    """Drop all requests of a client, as if it were killed by SIGKILL."""
    return emulator.faults.add(Fault(client_id=client_id, count=None, action=CloseBefore()))


def test_librdkafka_static_member_comes_back_without_a_rebalance(emulator: Emulator) -> None:
    consumers = Consumers(emulator, partition_assignment_strategy="range")
    consumers.join("a", group_instance_id="instance-a")
    consumers.join("b", group_instance_id="instance-b")
    consumers.poll_until(consumers.is_shared)
    before, generation = consumers.assignment(), consumers.emulator_group().generation
    consumers.members.pop("b").close()  # a static member does not leave
    emulator.advance_clock(SESSION_MS // 2)
    consumers.join("b", group_instance_id="instance-b")
    consumers.poll_until(lambda: consumers.assignment() == before)
    assert consumers.emulator_group().generation == generation
    consumers.close()


def test_librdkafka_static_member_is_fenced_by_its_successor(emulator: Emulator) -> None:
    consumers = Consumers(emulator, partition_assignment_strategy="range", group_instance_id="instance")
    fenced = consumers.join("a")
    consumers.poll_until(consumers.is_shared)
    del consumers.members["a"]
    consumers.join("b")
    errors: list[str] = []

    def look() -> None:
        message = fenced.poll(0.02)
        if message is not None and message.error() is not None:
            errors.append(message.error().name())

    consumers.poll_until(lambda: bool(errors) and consumers.is_shared(), look)
    assert errors[0] == "_FATAL"
    fenced.close()
    consumers.close()


def test_librdkafka_members_outlive_their_coordinator() -> None:
    config = BrokerConfig(offsets_topic_num_partitions=5, transaction_state_log_num_partitions=5)
    with Emulator(nodes=3, config=config, topics={"t": PARTITIONS}) as emulator:
        produce(emulator, [f"{index}" for index in range(8)])
        consumers = Consumers(emulator, partition_assignment_strategy="range")
        consumers.join("a")
        consumers.join("b")
        consumers.poll_until(lambda: consumers.is_shared() and len(consumers.messages) >= 8)
        group = consumers.emulator_group()
        emulator.crash_node(emulator.coordinator(group="g"))
        produce(emulator, ["new"] * PARTITIONS)
        # nothing was committed: the first ones may come once more after the last rebalance
        consumers.poll_until(lambda: sum(each.value() == b"new" for each in consumers.messages) == PARTITIONS)
        for consumer in consumers.members.values():
            consumer.commit(asynchronous=False)
        assert consumers.emulator_group().generation == group.generation
        assert set(consumers.emulator_group().members) == set(group.members)
        consumers.close()


# transactions of consumers that are also producers, as KIP-447 has them


class Worker:
    """Moves records from topic "t" to topic "out", each exactly once."""

    def __init__(self, consumers: Consumers, name: str) -> None:
        self.consumers = consumers
        self.name = name
        self.consumer = consumers.join(name)
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": consumers.emulator.bootstrap_servers,
                "transactional.id": f"worker-{name}",
                "client.id": f"producer-{name}",
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self.producer.init_transactions(TIMEOUT_S)

    def move(self, messages: list[Any]) -> None:
        """Begin a transaction with the records made of the messages."""
        self.producer.begin_transaction()
        for message in messages:
            self.producer.produce("out", message.value(), partition=message.partition())
        assert self.producer.flush(TIMEOUT_S) == 0

    def send_offsets(self, messages: list[Any], metadata: Any) -> bool:
        """Add the offsets to the transaction. If the group refuses them, abort the transaction and return False."""
        offsets = {
            message.partition(): confluent_kafka.TopicPartition("t", message.partition(), message.offset() + 1)
            for message in messages
        }
        try:
            self.producer.send_offsets_to_transaction(list(offsets.values()), metadata, TIMEOUT_S)
        except confluent_kafka.KafkaException as refused:
            if not refused.args[0].txn_requires_abort():
                raise
            self.producer.abort_transaction(TIMEOUT_S)
            return False
        return True

    def rewind(self) -> None:
        """Seek to the committed offsets, as a consumer must after an abort."""
        assigned = self.consumer.assignment()
        for partition in self.consumer.committed(assigned, TIMEOUT_S) if assigned else ():
            partition.offset = max(partition.offset, 0)
            with suppress(confluent_kafka.KafkaException):  # revoked meanwhile
                self.consumer.seek(partition)


class Reader:
    """Reads the committed records of topic "out"."""

    def __init__(self, emulator: Emulator) -> None:
        self.values: list[str] = []
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": emulator.bootstrap_servers,
                "group.id": "reader",
                "fetch.wait.max.ms": 10,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        beginning = confluent_kafka.OFFSET_BEGINNING
        self._consumer.assign([confluent_kafka.TopicPartition("out", index, beginning) for index in range(PARTITIONS)])

    def read(self) -> list[str]:
        """Return all values so far, sorted."""
        for message in self._consumer.consume(100, 0.05):
            assert message.error() is None, message.error()
            self.values.append(message.value().decode())
        return sorted(self.values)

    def close(self) -> None:
        self._consumer.close()


WORK = [f"{index:02}" for index in range(24)]


@pytest.fixture
def reader(emulator: Emulator) -> Iterator[Reader]:
    """Produce the input records, and yield a reader of the output."""
    emulator.create_topic("out", PARTITIONS)
    produce(emulator, WORK)
    out = Reader(emulator)
    yield out
    out.close()


def read_until_all_is_moved(reader: Reader) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while len(reader.read()) < len(WORK):
        assert time.monotonic() < deadline, reader.values
    assert reader.read() == WORK


def consume_all_input(consumers: Consumers, meanwhile: Callable[[], None] = lambda: None) -> list[Any]:
    """Return all input messages, consumed by one member."""
    consumers.messages.clear()
    consumers.poll_until(lambda: len(consumers.messages) == len(WORK) and consumers.is_shared(), meanwhile)
    return list(consumers.messages)


def test_a_zombie_cannot_commit_what_another_member_does_again(
    emulator: Emulator, reader: Reader, consumers: Consumers
) -> None:
    zombie = Worker(consumers, "a")
    messages = consume_all_input(consumers)
    metadata = zombie.consumer.consumer_group_metadata()
    zombie.move(messages)
    silenced = silence(emulator, "a")
    del consumers.members["a"]
    worker = Worker(consumers, "b")
    again = consume_all_input(consumers, lambda: consumers.let_session_end("a"))
    worker.move(again)
    assert worker.send_offsets(again, worker.consumer.consumer_group_metadata())
    worker.producer.commit_transaction(TIMEOUT_S)
    silenced.remove()  # it wakes up in the middle of its transaction
    assert not zombie.send_offsets(messages, metadata)
    read_until_all_is_moved(reader)
    zombie.consumer.close()


def test_a_consumer_waits_for_offsets_of_an_open_transaction(
    emulator: Emulator, reader: Reader, consumers: Consumers
) -> None:
    zombie = Worker(consumers, "a")
    messages = consume_all_input(consumers)
    zombie.move(messages)
    assert zombie.send_offsets(messages, zombie.consumer.consumer_group_metadata())
    consumers.members.pop("a").close()
    worker = Worker(consumers, "b")
    consumers.messages.clear()
    consumers.poll_until(consumers.is_shared)
    unstable = emulator.faults.add(Fault(api="OffsetFetch", client_id="b", count=None))
    unstable.wait(3)  # it retries
    consumers.poll()
    assert consumers.messages == []
    emulator.advance_clock(80_000)  # the transaction's timeout
    again = consume_all_input(consumers)
    worker.move(again)
    assert worker.send_offsets(again, worker.consumer.consumer_group_metadata())
    worker.producer.commit_transaction(TIMEOUT_S)
    with pytest.raises(confluent_kafka.KafkaException):
        zombie.producer.commit_transaction(TIMEOUT_S)
    read_until_all_is_moved(reader)


def test_every_record_is_moved_once_while_members_come_and_go(
    emulator: Emulator, reader: Reader, consumers: Consumers
) -> None:
    workers = {"a": Worker(consumers, "a")}
    transactions = 0
    deadline = time.monotonic() + TIMEOUT_S
    while len(reader.read()) < len(WORK):
        assert time.monotonic() < deadline, (reader.values, consumers.emulator_group())
        for worker in list(workers.values()):
            messages = worker.consumer.consume(4, 0.02)
            if not messages:
                continue
            transactions += 1
            metadata = worker.consumer.consumer_group_metadata()
            worker.move(messages)
            if transactions == 2:
                workers["b"] = Worker(consumers, "b")
            if transactions == 4:  # one leaves in the middle of its transaction
                consumers.members.pop("a").close()
                del workers["a"]
            if transactions % 3 == 0:
                worker.producer.abort_transaction(TIMEOUT_S)
                worker.rewind()
            elif worker.send_offsets(messages, metadata):
                worker.producer.commit_transaction(TIMEOUT_S)
            elif worker in workers.values():
                worker.rewind()
    assert reader.read() == WORK


# other clients


class KafkaPythonMember:
    """A kafka-python consumer in a thread of its own.

    It polls with a long timeout: a poll that ends between a rebalance and the new generation loses the assignment for
    good, and on a busy machine that gap is long.
    """

    def __init__(self, emulator: Emulator) -> None:
        self.values: list[str] = []
        self.partitions: set[Any] = set()
        self._stopping = threading.Event()
        self._consumer = kafka.KafkaConsumer(
            "t",
            bootstrap_servers=emulator.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=50,
            session_timeout_ms=SESSION_MS,
            fetch_max_wait_ms=10,
        )
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stopping.is_set():
            with suppress(kafka_errors.KafkaConnectionError):  # no broker listens: poll and commit again
                polled = self._consumer.poll(
                    PATIENCE_MS
                ).values()  # all partitions, because the commit is for all of them
                self.values += [record.value.decode() for records in polled for record in records]
                if polled:
                    self._consumer.commit()
            self.partitions = set(self._consumer.assignment())
        self._consumer.close()

    def leave(self) -> None:
        self._stopping.set()
        self._thread.join(TIMEOUT_S)


# administration


def test_kafka_python_admin(emulator: Emulator) -> None:
    settings = {"bootstrap_servers": emulator.bootstrap_servers, "group_id": "g", "enable_auto_commit": False}
    consumer = kafka.KafkaConsumer("t", **settings)
    consumer.poll(1000)
    admin = kafka.KafkaAdminClient(bootstrap_servers=emulator.bootstrap_servers)
    partition = kafka.TopicPartition("t", 0)
    consumer.commit({partition: kafka.structs.OffsetAndMetadata(3, "", -1)})
    described = admin.describe_groups(["g"])
    assert "Stable" in str(described)
    assert "g" in str(admin.list_groups())
    consumer.close()
    assert admin.list_group_offsets(["g"])["g"][partition].offset == 3
    admin.delete_group_offsets("g", [partition])
    assert admin.delete_groups(["g"])
    assert emulator.groups() == []
    admin.close()
