"""Other Kafka clients at work while the emulator's process is killed and restarted on its data directory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.emulator.api.raw_client import RawClient
from tests.emulator.killable_broker import KillableBroker
from tests.emulator.killable_broker import broker as broker
from tests.emulator.nodes.moving_clients import CLIENTS, TIMEOUT_S, TOPIC, Client, HasToAbortError
from tests.emulator.test_group_clients import PARTITIONS, SESSION_MS, Consumers, KafkaPythonMember, produce
from tests.interop.foreign_clients import Aiokafka, Confluent, ForeignClient, ForeignProducer, KafkaPython
from tests.support.conditions import until

aiokafka: Any = import_module("aiokafka")  # untyped, as in the modules that the helpers come from

GROUP = "g"
LIBRARIES: dict[str, ForeignClient] = {
    "librdkafka": Confluent(),
    "aiokafka": Aiokafka(),
    "kafka-python": KafkaPython(),
}
RESTARTED = {"kafka-python"}
"""Replaced after a kill: kafka-python 3.0 never retries an EndTxn whose connection failed, and waits for ever."""


@pytest.fixture
def servers(broker: KillableBroker) -> Any:
    """Return an emulator's address, the helpers' only setting, after creating their topics."""
    with RawClient(broker.address) as client:
        for name in ("t", TOPIC):
            assert client.create_topic(name, PARTITIONS).error_code is ErrorCode.none
    return SimpleNamespace(bootstrap_servers=broker.address, groups=list)


def restart(broker: KillableBroker) -> None:
    broker.kill()
    broker.start()


# transactions

STEPS: list[tuple[bool, str | None]] = [
    (True, None),
    (False, None),
    (True, "sent-one"),
    (True, None),
    (False, "flushed"),
    (True, "flushed"),
    (True, "ending"),
    (False, "ending"),
    (True, None),
    (False, None),
]
"""Whether to commit a transaction, and at which point of it to kill the broker."""


class Writer:
    """Runs transactions of three records, and remembers allowed and required records."""

    def __init__(self, broker: KillableBroker, name: str) -> None:
        self._broker = broker
        self.name = name
        self.client: Client = CLIENTS[name](broker.address)
        self.history: list[tuple[list[bytes], bool | None]] = []
        """The values of each transaction, and whether they are committed; None if the outcome is unknown."""

    def run(self, number: int, commits: bool, kill_at: str | None) -> None:
        values = [f"{number}-{index}".encode() for index in range(3)]
        is_ending = False
        try:
            self.client.begin()
            self.client.send(values[0], 0)
            self.client.flush()
            if self._disturb(kill_at == "sent-one"):
                return self._note(values, False)
            for value in values[1:]:
                self.client.send(value, 0)
            self.client.flush()
            if self._disturb(kill_at == "flushed"):
                return self._note(values, False)
            is_ending = True
            end = self.client.commit if commits else self.client.abort
            if kill_at != "ending":
                end()
            elif not self._end_while_killed(end):
                return self._note(values, None if commits else False)
        except HasToAbortError:
            self._note(values, None if is_ending and commits else False)
            self._abort()
        else:
            self._note(values, commits)

    def replace(self) -> None:
        self.client.close()
        self.client = CLIENTS[self.name](self._broker.address)

    def _note(self, values: list[bytes], outcome: bool | None) -> None:
        self.history.append((values, outcome))

    def _disturb(self, is_killed: bool) -> bool:
        """Kill the broker if it is time to; return True if the client was replaced, which ends its transaction."""
        if not is_killed:
            return False
        restart(self._broker)
        if self.name in RESTARTED:
            self.replace()
            return True
        return False

    def _end_while_killed(self, end: Callable[[], None]) -> bool:
        """Kill the broker while the client ends its transaction; return False if the outcome is unknown."""
        ended: Future[None] = Future()

        def run() -> None:
            try:
                end()
                ended.set_result(None)
            except Exception as error:
                ended.set_exception(error)

        Thread(target=run, daemon=True).start()  # not joined: it may wait for ever
        restart(self._broker)
        if self.name in RESTARTED and not ended.done():
            self.replace()
            return False
        ended.result(TIMEOUT_S)
        return True

    def _abort(self) -> None:
        try:
            self.client.abort()
        except HasToAbortError:  # it does not offer an abort any more
            self.replace()


def is_explained(seen: list[bytes], history: list[tuple[list[bytes], bool | None]]) -> bool:
    """Return whether each transaction is visible as a whole or not at all, in order, according to its outcome."""
    rest = seen
    for values, outcome in history:
        is_there = rest[: len(values)] == values
        if outcome is not None and is_there != outcome:
            return False
        rest = rest[len(values) :] if is_there else rest
    return rest == []


@pytest.fixture
def writer(broker: KillableBroker, servers: Any, request: pytest.FixtureRequest) -> Iterator[Writer]:
    writer = Writer(broker, request.param)
    yield writer
    writer.client.close()


@pytest.mark.parametrize("writer", LIBRARIES, indirect=True)
def test_transactions_of_a_killed_broker(broker: KillableBroker, writer: Writer) -> None:
    for number, (commits, kill_at) in enumerate(STEPS):
        writer.run(number, commits, kill_at)
    writer.client.begin()
    writer.client.send(b"left open", 0)
    writer.client.flush()
    restart(broker)
    writer.replace()  # the new client initialises the same transactional id
    until(lambda: states(broker) in ({"CompleteAbort"}, {"Empty"}, {"CompleteCommit"}))
    library = LIBRARIES[writer.name]
    end = library.end_offset(broker.address, TOPIC, committed=True)
    assert end == library.end_offset(broker.address, TOPIC, committed=False)
    seen = library.read(broker.address, TOPIC, end, committed=True)
    assert is_explained(seen, writer.history), (seen, writer.history)
    assert [outcome for _, outcome in writer.history].count(None) <= 1


def states(broker: KillableBroker) -> set[str]:
    with RawClient(broker.address) as client:
        listed = client.call("list_transactions", 0, state_filters=(), producer_id_filters=())
    return {row.transaction_state for row in listed.transaction_states}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_timeout_goes_on_over_the_restart(broker: KillableBroker, servers: Any, name: str) -> None:
    library = LIBRARIES[name]
    # long enough for the record to be stored on a busy machine
    left = library.producer(broker.address, "x", timeout_ms=max(library.shortest_timeout_ms, 3_000))
    left.init()
    left.begin()
    left.send(TOPIC, b"left open")
    left.flush()
    restart(broker)
    until(lambda: states(broker) == {"CompleteAbort"})
    successor = library.producer(broker.address, "x")
    successor.init()
    successor.begin()
    successor.send(TOPIC, b"next")
    successor.flush()
    successor.commit()
    successor.close()
    # two records and two markers, or three: if the timeout was over before the kill, the abort may be in work then
    end = 0

    def is_settled() -> bool:
        nonlocal end
        end = library.end_offset(broker.address, TOPIC, committed=False)
        return library.end_offset(broker.address, TOPIC, committed=True) == end

    until(is_settled)
    assert library.read(broker.address, TOPIC, end, committed=True) == [b"next"]
    left.close()


# offsets in transactions


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("name", LIBRARIES)
def test_offsets_in_transactions(broker: KillableBroker, servers: Any, name: str, is_committed: bool) -> None:
    library = LIBRARIES[name]
    producer = library.producer(broker.address, "x")
    producer.init()
    commit_offset(producer, 3)
    restart(broker)
    assert library.committed_offset(broker.address, GROUP, "t") == 3
    if name in RESTARTED:
        producer.close()
        producer = library.producer(broker.address, "x")
        producer.init()
    if is_committed and name in RESTARTED:
        commit_offset(producer, 5)
    else:
        producer.begin()
        producer.send(TOPIC, b"with offsets")
        producer.send_offsets(GROUP, "t", 5)
        producer.flush()
    restart(broker)
    successor = library.producer(broker.address, "x")
    if not is_committed:
        successor.init()
    elif name not in RESTARTED:
        producer.commit()
    expected = 5 if is_committed else 3
    assert library.committed_offset(broker.address, GROUP, "t") == expected
    restart(broker)
    assert library.committed_offset(broker.address, GROUP, "t") == expected
    producer.close()
    successor.close()


def commit_offset(producer: ForeignProducer, offset: int) -> None:
    producer.begin()
    producer.send_offsets(GROUP, "t", offset)
    producer.commit()


# members of groups: one alone, then two, then the other one alone; the broker is killed in between

BATCHES = [[f"{number}-{index}" for index in range(PARTITIONS)] for number in range(4)]
"""One record for each partition, each time."""


def committed_offsets(coordinator: str) -> list[int]:
    """Return the group's offset of every partition, from the node at this address."""
    topics = ({"name": "t", "partition_indexes": tuple(range(PARTITIONS))},)
    groups = ({"group_id": GROUP, "topics": topics},)
    with RawClient(coordinator) as client:
        answer = client.call("offset_fetch", 8, groups=groups, require_stable=True)
    return [row.committed_offset for row in answer.groups[0].topics[0].partitions]


def test_librdkafka_members_go_on(broker: KillableBroker, servers: Any) -> None:
    backoff = {"reconnect_backoff_ms": 10, "reconnect_backoff_max_ms": 50}
    consumers = Consumers(servers, partition_assignment_strategy="range", **backoff)
    members = consumers.members

    def consume_next(number: int) -> None:
        produce(servers, BATCHES[number])
        consumers.poll_until(lambda: len(consumers.messages) == (number + 1) * PARTITIONS)
        for member in members.values():
            member.commit(asynchronous=False)

    consumers.join("a")
    consume_next(0)
    restart(broker)
    consumers.join("b")
    consumers.poll_until(consumers.is_shared)
    consume_next(1)
    restart(broker)
    consume_next(2)
    members.pop("a").close()
    consumers.poll_until(consumers.is_shared)
    consume_next(3)
    consumers.close()
    assert_each_once(broker, [message.value().decode() for message in consumers.messages])


def test_kafka_python_members_go_on(broker: KillableBroker, servers: Any) -> None:
    def consume_next(number: int) -> None:
        produce(servers, BATCHES[number])
        until(lambda: committed_offsets(broker.address) == [number + 1] * PARTITIONS, TIMEOUT_S)

    first = KafkaPythonMember(servers)
    members = [first]
    try:
        consume_next(0)
        restart(broker)
        second = KafkaPythonMember(servers)
        members.append(second)
        until(lambda: len(first.partitions) == len(second.partitions) == PARTITIONS // 2, TIMEOUT_S)
        consume_next(1)
        restart(broker)
        consume_next(2)
        first.leave()
        until(lambda: len(second.partitions) == PARTITIONS, TIMEOUT_S)
        consume_next(3)
    finally:
        for member in members:
            member.leave()
    assert_each_once(broker, [value for member in members for value in member.values])


def test_aiokafka_members_go_on(broker: KillableBroker, servers: Any) -> None:
    values = asyncio.run(asyncio.wait_for(aiokafka_members(broker, servers), TIMEOUT_S))
    assert_each_once(broker, values)


async def aiokafka_members(broker: KillableBroker, servers: Any) -> list[str]:
    values: list[str] = []

    async def consume_next(number: int, *members: Any) -> None:
        await asyncio.to_thread(produce, servers, BATCHES[number])
        while len(values) < (number + 1) * PARTITIONS:
            values.extend(await read(members))
        for member in members:
            await member.commit()

    first = await aiokafka_join(servers)
    await consume_next(0, first)
    await asyncio.to_thread(restart, broker)
    second = await aiokafka_join(servers)
    while not len(first.assignment()) == len(second.assignment()) == PARTITIONS // 2:
        assert await read((first, second)) == []
    await consume_next(1, first, second)
    await asyncio.to_thread(restart, broker)
    await consume_next(2, first, second)
    await aiokafka_leave(first)
    while len(second.assignment()) != PARTITIONS:
        assert await read((second,)) == []
    await consume_next(3, second)
    await aiokafka_leave(second)
    return values


async def aiokafka_leave(member: Any) -> None:
    with suppress(asyncio.CancelledError):  # its own cancellation while it waits to fetch again
        await member.stop()


async def read(members: Iterable[Any]) -> list[str]:
    batches = [batch for member in members for batch in (await member.getmany(timeout_ms=10)).values()]
    return [record.value.decode() for batch in batches for record in batch]


async def aiokafka_join(servers: Any) -> Any:
    member = aiokafka.AIOKafkaConsumer(
        "t",
        bootstrap_servers=servers.bootstrap_servers,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=50,
        session_timeout_ms=SESSION_MS,
        fetch_max_wait_ms=10,
        retry_backoff_ms=20,
    )
    await member.start()
    return member


def assert_each_once(broker: KillableBroker, values: list[str]) -> None:
    assert sorted(values) == [value for batch in BATCHES for value in batch]
    assert committed_offsets(broker.address) == [len(BATCHES)] * PARTITIONS
