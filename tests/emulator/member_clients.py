"""Members of the group "g" of two makes behind one face, for tests that disturb the brokers under them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, Protocol

from tests.emulator.api.raw_client import RawClient

# imported as untyped: their types do not pass mypy's strict mode
aiokafka: Any = import_module("aiokafka")
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


class Members(Protocol):
    """The members of the group in one library."""

    @property
    def values(self) -> list[str]: ...
    def join(self) -> None: ...
    def leave(self) -> None:
        """Let the member that joined first leave."""

    def wait_until_shared(self) -> None:
        """Wait until every partition is assigned, and each member has as many."""

    def consume(self, number: int) -> None:
        """Produce a batch, read all of it, and commit."""

    def close(self) -> None: ...


class Consumers:
    """librdkafka consumers that are polled together, because a rebalance needs all of them to poll."""

    def __init__(self, servers: str, **settings: Any) -> None:
        self._servers = servers
        self._settings = settings
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
            "log_level": 0,
        }
        given = {key.replace("_", "."): value for key, value in self._settings.items()}
        consumer = confluent_kafka.Consumer({**config, **given})
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


class AiokafkaMembers:
    """aiokafka consumers, in a loop of their own."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self.values: list[str] = []
        self._members: list[Any] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def join(self) -> None:
        self._run(self._join())

    async def _join(self) -> None:
        member = aiokafka.AIOKafkaConsumer(
            "t",
            bootstrap_servers=self._servers,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=50,
            session_timeout_ms=SESSION_MS,
            fetch_max_wait_ms=10,
            retry_backoff_ms=20,
        )
        await member.start()
        self._members.append(member)

    def leave(self) -> None:
        self._run(self._leave())

    async def _leave(self) -> None:
        with suppress(asyncio.CancelledError):  # its own cancellation while it waits to fetch again
            await self._members.pop(0).stop()

    def wait_until_shared(self) -> None:
        self._run(self._read_until(lambda: all(len(each.assignment()) == self._share for each in self._members)))

    @property
    def _share(self) -> int:
        return PARTITIONS // len(self._members)

    async def _read_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            for member in self._members:
                batches = await member.getmany(timeout_ms=10)
                self.values += [record.value.decode() for batch in batches.values() for record in batch]

    def consume(self, number: int) -> None:
        produce(self._servers, BATCHES[number])
        self._run(self._read_until(lambda: len(self.values) >= (number + 1) * PARTITIONS))
        for member in self._members:
            self._run(member.commit())

    def close(self) -> None:
        while self._members:
            self.leave()
        self._run(self._end_what_is_left())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    @staticmethod
    async def _end_what_is_left() -> None:
        """Cancel the requests that a member may leave behind, as `asyncio.run` does."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


_QUICKLY = {"reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 50}

MAKES: Final[dict[str, Callable[[str], Members]]] = {
    "librdkafka": lambda servers: Consumers(servers, partition_assignment_strategy="range", **_QUICKLY),
    "librdkafka, cooperative": lambda servers: Consumers(
        servers, partition_assignment_strategy="cooperative-sticky", **_QUICKLY
    ),
    "aiokafka": AiokafkaMembers,
}
"""Makers of members, from the address of the brokers."""


def assert_each_once(members: Members) -> None:
    """Every record of all batches was read once."""
    assert sorted(members.values) == [value for batch in BATCHES for value in batch]
