"""Calls that end because no broker can be reached, long before `max.block.ms`."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dualwrite.broker_emulator import CrashBefore, DropRequest, Emulator, Fault
from dualwrite.client.transactions.manifest import Manifest, PartitionManifest
from dualwrite.errors import ConfigError, KafkaTimeoutError, KafkaUnreachableError
from dualwrite.participant import ParticipantProducer
from dualwrite.participant_async import AsyncParticipantProducer
from dualwrite.prepared_state import PreparedTxnState
from tests.producer.conftest import MakeProducer, ReadCommitted
from tests.producer.listeners import address, answer_everybody
from tests.producer.listeners import listener as listener

TIMEOUT_MS = 300
LONG_MS = 60_000
"""Outlasts a test."""
SETTINGS: dict[str, Any] = {"max_block_ms": LONG_MS, "unreachable_timeout_ms": TIMEOUT_MS}


@pytest.fixture
def refusing() -> Iterator[str]:
    """Return the address of a port without a listener."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{closed.getsockname()[1]}"


@pytest.fixture
def ready(emulator: Emulator) -> Iterator[ParticipantProducer]:
    with ParticipantProducer(
        bootstrap_servers=emulator.bootstrap_servers,
        transactional_id="t",
        transaction_two_phase_commit_enable=True,
        **SETTINGS,
    ) as producer:
        producer.init_transactions()
        yield producer


def crash(emulator: Emulator) -> None:
    for node_id in emulator.living_nodes:
        emulator.crash_node(node_id)


def test_no_take_over_without_a_broker(refusing: str) -> None:
    with ParticipantProducer(bootstrap_servers=refusing, transactional_id="t", **SETTINGS) as producer:
        with pytest.raises(KafkaUnreachableError) as raised:
            producer.init_transactions()
        producer.close(timeout_s=0)
    assert raised.value.since_s * 1000 >= TIMEOUT_MS
    assert f"cannot connect to {refusing}: Connection refused" in str(raised.value)
    assert "repeat init_transactions()" in str(raised.value)


async def test_no_take_over_without_a_broker_async(refusing: str) -> None:
    async with AsyncParticipantProducer(bootstrap_servers=refusing, transactional_id="t", **SETTINGS) as producer:
        with pytest.raises(KafkaUnreachableError, match="no broker could be reached for"):
            await producer.init_transactions()
        await producer.close(timeout_s=0)


def test_a_listener_that_closes_every_connection(listener: socket.socket) -> None:
    """As a load balancer does that has no broker behind it."""
    answer_everybody(listener, b"")
    with ParticipantProducer(bootstrap_servers=address(listener), transactional_id="t", **SETTINGS) as producer:
        with pytest.raises(KafkaUnreachableError, match=r"connection was lost .*before ApiVersions got a response"):
            producer.init_transactions()
        producer.close(timeout_s=0)


def test_metadata_of_a_topic(refusing: str) -> None:
    with ParticipantProducer(bootstrap_servers=refusing, **SETTINGS) as producer:
        with pytest.raises(KafkaUnreachableError):
            producer.send("orders", b"v")
        producer.close(timeout_s=0)


def test_descriptions_of_topics(refusing: str) -> None:

    async def describe() -> None:
        async with AsyncParticipantProducer(bootstrap_servers=refusing, **SETTINGS) as producer:
            with pytest.raises(KafkaUnreachableError) as raised:
                await producer.describe_topics(["orders"])
            assert raised.value.since_s * 1000 >= TIMEOUT_MS
            await producer.close(timeout_s=0)

    asyncio.run(describe())
    with ParticipantProducer(bootstrap_servers=refusing, **SETTINGS) as producer:
        with pytest.raises(KafkaUnreachableError, match=r"for \d+\.\d s \(.*Connection refused"):
            producer.describe_topics(["orders"])
        producer.close(timeout_s=0)


def test_the_end_of_a_prepared_transaction_is_read_from_the_log(ready: ParticipantProducer, emulator: Emulator) -> None:
    """The caller holds the lock of a row meanwhile."""
    ready.begin_transaction()
    ready.send("orders", b"v")
    ready.flush()
    part = PartitionManifest("orders", 0, 0, 0, 1)
    manifest = Manifest(PreparedTxnState("1:0"), "", (part,), has_offsets=False)
    crash(emulator)
    with pytest.raises(KafkaUnreachableError, match="no broker could be reached for"):
        ready.end_of(manifest, timeout_ms=LONG_MS)
    with pytest.raises(KafkaUnreachableError, match="no broker could be reached for"):
        ready.records_of(manifest, [part], timeout_ms=LONG_MS)
    ready.close(timeout_s=0)


@pytest.mark.parametrize(
    ("api", "effect"),
    [("Metadata", ""), ("Produce", "Nothing is decided"), ("EndTxn", "The commit may have taken effect")],
)
def test_the_only_broker_dies_of_a_request(
    ready: ParticipantProducer, emulator: Emulator, api: str, effect: str
) -> None:
    """The connection is lost with it: the waiting caller learns that no other broker can be reached."""
    emulator.create_topic("new")
    crash_before = emulator.faults.add(Fault(api=api, action=CrashBefore()))

    def write() -> None:
        ready.begin_transaction()
        ready.send("new", b"v")
        ready.commit_transaction()

    with pytest.raises(KafkaUnreachableError, match=f"no broker could be reached for .*{effect}"):
        write()
    assert crash_before.hits == 1
    ready.close(timeout_s=0)


@pytest.mark.parametrize("end", ["prepare_transaction", "commit_transaction", "abort_transaction"])
def test_the_end_of_a_transaction(ready: ParticipantProducer, emulator: Emulator, end: str) -> None:
    """A repetition later succeeds: the call has been pending all the time."""
    ready.begin_transaction()
    ready.send("orders", b"v", partition=0).result()
    crash(emulator)
    ready.send("orders", b"w", partition=0)
    call: Callable[[], object] = getattr(ready, end)
    with pytest.raises(KafkaUnreachableError, match="Nothing is decided"):
        call()
    with pytest.raises(KafkaUnreachableError):
        call()  # it is known now
    emulator.start_node(0)
    repeat(call)


def repeat(call: Callable[[], object]) -> None:
    """Call until a broker is reached: until its next attempt, a producer does not know that Kafka is back."""
    deadline_s = time.monotonic() + 60
    while True:
        try:
            call()
            return
        except KafkaUnreachableError:
            assert time.monotonic() < deadline_s


def test_connections_that_break_between_calls(
    make_producer: MakeProducer, emulator: Emulator, read_committed: ReadCommitted
) -> None:
    """Earlier failures prove nothing about the next call, not even where a single failed attempt would be enough."""
    ready = make_producer(max_block_ms=LONG_MS, unreachable_timeout_ms=0)
    ready.init_transactions()
    ready.begin_transaction()
    ready.send("orders", b"1", partition=0)
    ready.commit_transaction()
    crash(emulator)
    emulator.start_node(0)
    ready.begin_transaction()
    ready.send("orders", b"2", partition=0)
    ready.commit_transaction()
    assert read_committed() == [b"1", b"2"]


def test_one_reachable_node_of_three_is_enough() -> None:
    """Neither elections nor nodes that are down count, as long as one node can be reached."""
    with (
        Emulator(nodes=3, topics={"orders": 3}) as emulator,
        ParticipantProducer(
            bootstrap_servers=emulator.bootstrap_servers,
            transactional_id="t",
            transaction_two_phase_commit_enable=True,
            unreachable_timeout_ms=0,
            reconnect_backoff_ms=5,
            max_block_ms=LONG_MS,
        ) as producer,
    ):
        producer.init_transactions()
        for gone in (emulator.coordinator(transactional_id="t"), None):
            node_id = emulator.living_nodes[0] if gone is None else gone
            producer.begin_transaction()
            for partition in range(3):
                producer.send("orders", b"v", partition=partition)
            emulator.crash_node(node_id)
            producer.complete_transaction(producer.prepare_transaction())


def test_a_silent_broker_is_not_an_unreachable_one(ready: ParticipantProducer, emulator: Emulator) -> None:
    emulator.faults.add(Fault(api="InitProducerId", action=DropRequest(), count=None))
    with ParticipantProducer(
        bootstrap_servers=emulator.bootstrap_servers,
        transactional_id="other",
        max_block_ms=3 * TIMEOUT_MS,
        unreachable_timeout_ms=TIMEOUT_MS,
    ) as silent:
        with pytest.raises(KafkaTimeoutError) as raised:
            silent.init_transactions()
        assert type(raised.value) is KafkaTimeoutError
        silent.close(timeout_s=0)


def test_without_the_setting_the_limit_is_max_block_ms(refusing: str) -> None:
    with ParticipantProducer(bootstrap_servers=refusing, transactional_id="t", max_block_ms=3 * TIMEOUT_MS) as producer:
        with pytest.raises(KafkaTimeoutError) as raised:
            producer.init_transactions()
        assert type(raised.value) is KafkaTimeoutError
        producer.close(timeout_s=0)


def test_the_setting_is_checked(refusing: str) -> None:
    with pytest.raises(ConfigError, match=r"unreachable_timeout_ms: -1"):
        ParticipantProducer(bootstrap_servers=refusing, unreachable_timeout_ms=-1)
