"""librdkafka's members of the group "g", for tests that disturb the brokers under them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Final

from tests.emulator.api.raw_client import RawClient

# imported as untyped: its types do not pass mypy's strict mode
confluent_kafka: Any = import_module("confluent_kafka")

TIMEOUT_S = 60.0
PARTITIONS = 4
SESSION_MS = 10_000
BATCHES: Final = [[f"{number}-{index}" for index in range(PARTITIONS)] for number in range(4)]
"""One record for each partition, each time."""


def produce(servers: str, values: Iterable[str]) -> None:
    """Write the values to the partitions in turn."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "log_level": 0})
    for index, value in enumerate(values):
        producer.produce("t", value.encode(), partition=index % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


def committed_offsets(coordinator: str) -> list[int]:
    """Return the group's offset of every partition, from the node at this address."""
    topics = ({"name": "t", "partition_indexes": tuple(range(PARTITIONS))},)
    with RawClient(coordinator) as client:
        groups = ({"group_id": "g", "topics": topics},)
        answer = client.call("offset_fetch", 8, groups=groups, require_stable=True)
    return [row.committed_offset for row in answer.groups[0].topics[0].partitions]


class Members:
    """librdkafka consumers that are polled together, because a rebalance needs all of them to poll."""

    def __init__(self, servers: str, strategy: str) -> None:
        self._servers = servers
        self._strategy = strategy
        self.members: list[Any] = []
        self.messages: list[Any] = []

    def join(self) -> None:
        config = {
            "bootstrap.servers": self._servers,
            "group.id": "g",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 50,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
            "partition.assignment.strategy": self._strategy,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "log_level": 0,
        }
        consumer = confluent_kafka.Consumer(config)
        consumer.subscribe(["t"])
        self.members.append(consumer)

    def poll_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, self.assignment()
            for consumer in self.members:
                message = consumer.poll(0.02)
                if message is not None and message.error() is None:
                    self.messages.append(message)

    def assignment(self) -> list[list[int]]:
        return [sorted(partition.partition for partition in consumer.assignment()) for consumer in self.members]

    def is_shared(self) -> bool:
        """Return whether every partition is assigned once, and as evenly as possible."""
        shares = self.assignment()
        sizes = [len(share) for share in shares]
        is_even = max(sizes) - min(sizes) <= 1
        return sorted(partition for share in shares for partition in share) == list(range(PARTITIONS)) and is_even

    @property
    def values(self) -> list[str]:
        return [message.value().decode() for message in self.messages]

    def leave(self) -> None:
        self.members.pop(0).close()

    def wait_until_shared(self) -> None:
        self.poll_until(self.is_shared)

    def consume(self, number: int) -> None:
        produce(self._servers, BATCHES[number])
        self.poll_until(lambda: len(self.messages) == (number + 1) * PARTITIONS)
        for member in self.members:
            member.commit(asynchronous=False)

    def close(self) -> None:
        for consumer in self.members:
            consumer.close()


STRATEGIES: Final = ("range", "cooperative-sticky")


def assert_each_once(members: Members) -> None:
    """Every record of all batches was read once."""
    assert sorted(members.values) == [value for batch in BATCHES for value in batch]
