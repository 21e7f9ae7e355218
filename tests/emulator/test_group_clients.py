"""librdkafka's members of classic groups that die, come back or are replaced; and members for other tests.

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
