"""Quotas at clients: throttle times in responses, and connections that are muted until time has passed.

Time is a VirtualClock's, so that each number is Kafka's to the millisecond and no test waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, VirtualClock
from tests.emulator.api.raw_client import (
    TIMEOUT_S,
    RawClient,
    fetch_fields,
    milliseconds,
    plain_batch,
    produce_fields,
)
from tests.support.conditions import until

confluent_kafka: Any = import_module("confluent_kafka")

THROTTLING_QUOTA_EXCEEDED = 89
_names = iter(range(1_000_000))


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)
    with Emulator(config=config, clock=VirtualClock(), topics={"t": 1}) as emulator:
        yield emulator


@pytest.fixture
def client_id() -> str:
    """Return the id of a client that was never measured before."""
    return f"client-{next(_names)}"


@pytest.fixture
def client(emulator: Emulator, client_id: str) -> Iterator[RawClient]:
    with RawClient(emulator.bootstrap_servers, client_id) as client:
        yield client


@pytest.fixture
def bystander(emulator: Emulator) -> Iterator[RawClient]:
    with RawClient(emulator.bootstrap_servers, "bystander") as client:
        yield client


def ms(response: Any) -> int:
    throttle_ms: int = response.throttle_time // milliseconds(1)
    return throttle_ms


def produce(client: RawClient, size: int, *, acks: int = -1, version: int = 12) -> Any:
    fields = produce_fields(version, "t", plain_batch(b"v" * size), acks=acks)
    if acks:
        return client.call("produce", version, **fields)
    client.send("produce", version, **fields)
    return None


def fetch(client: RawClient, offset: int) -> Any:
    return client.call("fetch", 12, **fetch_fields(12, "t", offset, 0, 0))


def create(client: RawClient, partitions: int, version: int) -> tuple[int, int]:
    """Create a topic, and return the error and the throttle time."""
    topic = {
        "name": f"topic-{next(_names)}",
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": (),
        "configs": (),
    }
    response = client.call("create_topics", version, topics=(topic,), timeout=milliseconds(1000), validate_only=False)
    return int(response.topics[0].error_code), ms(response)


def is_served(client: RawClient) -> bool:
    """Return whether the client gets a response."""
    ask(client)
    return not client.is_silent(TIMEOUT_S)


def is_muted(client: RawClient) -> bool:
    """Return whether the client gets no response at once."""
    ask(client)
    return client.is_silent(0.1)


def ask(client: RawClient) -> None:
    client.send("metadata", 12, topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False)


@pytest.mark.parametrize("version", [3, 5, 12])
def test_a_producer_above_its_rate_gets_a_throttle_time_and_is_muted(
    emulator: Emulator, client: RawClient, bystander: RawClient, client_id: str, version: int
) -> None:
    emulator.set_quota({"producer_byte_rate": 1000}, client_id=client_id)
    response = produce(client, 20_000, version=version)
    assert 10_000 <= ms(response) <= 10_200  # the rest of the request counts as well
    assert is_muted(client)
    assert is_served(bystander)
    emulator.advance_clock(ms(response) - 1)
    assert client.is_silent()
    emulator.advance_clock(1)
    assert not client.is_silent(TIMEOUT_S)
    assert emulator.metrics().api("Produce").throttle_ms >= ms(response)


def test_a_producer_with_acks_0_is_muted_too(emulator: Emulator, client: RawClient, client_id: str) -> None:
    emulator.set_quota({"producer_byte_rate": 1000}, client_id=client_id)
    produce(client, 20_000, acks=0)
    assert is_muted(client)
    emulator.advance_clock(11_000)
    assert not client.is_silent(TIMEOUT_S)


def test_a_consumer_above_its_rate_gets_no_records(emulator: Emulator, client: RawClient, client_id: str) -> None:
    with RawClient(emulator.bootstrap_servers, "writer") as writer:
        first = produce(writer, 6000).responses[0].partition_responses[0].base_offset
        produce(writer, 6000)
    emulator.set_quota({"consumer_byte_rate": 1000}, client_id=client_id)
    assert len(fetch(client, first).responses[0].partitions[0].records) < 10_000  # the remaining room in the window

    response = fetch(client, first + 1)
    assert 2000 < ms(response) < 2800  # 12,000 where 10,000 may be
    assert response.responses == ()
    emulator.advance_clock(ms(response))
    emulator.advance_clock(11_000)
    assert fetch(client, first + 1).responses[0].partitions[0].records


def test_time_is_measured_in_percent_and_waited_for_a_second_at_most(
    emulator: Emulator, client: RawClient, client_id: str
) -> None:
    emulator.set_quota({"request_percentage": 1e-9}, client_id=client_id)
    response = client.call("list_groups", 4, states_filter=())
    assert ms(response) == 1000
    assert is_muted(client)
    emulator.advance_clock(1000)
    assert not client.is_silent(TIMEOUT_S)


def test_partitions_are_created_and_deleted_as_fast_as_is_allowed(
    emulator: Emulator, client: RawClient, client_id: str
) -> None:
    """KIP-599: a bucket of eleven seconds' tokens; one request may overdraw it, and the next ones are refused."""
    emulator.set_quota({"controller_mutation_rate": 2}, client_id=client_id)
    assert create(client, 30, 7) == (0, 0)
    assert create(client, 1, 7) == (THROTTLING_QUOTA_EXCEEDED, 4000)
    emulator.advance_clock(4000)
    assert create(client, 1, 7) == (0, 0)

    more = ({"name": "t", "count": 50, "assignments": None},)
    response = client.call("create_partitions", 3, topics=more, timeout=milliseconds(1), validate_only=False)
    assert (int(response.results[0].error_code), ms(response)) == (THROTTLING_QUOTA_EXCEEDED, 500)
    emulator.advance_clock(500)

    assert create(client, 4, 5) == (0, 2000)  # older clients know no such error, and are only throttled
    emulator.advance_clock(2000)
    emulator.create_topic(name := f"topic-{next(_names)}", 8)
    assert client.delete_topic(name).error_code == 0
    assert create(client, 1, 7) == (THROTTLING_QUOTA_EXCEEDED, 4000)


def test_an_address_may_connect_only_so_often(emulator: Emulator) -> None:
    emulator.advance_clock(60_000)
    emulator.set_quota({"connection_creation_rate": 1}, ip="127.0.0.1")
    try:
        welcome = [RawClient(emulator.bootstrap_servers, "often") for _ in range(10)]
        assert all(is_served(client) for client in welcome)
        early = RawClient(emulator.bootstrap_servers, "often")
        assert is_muted(early)
        emulator.advance_clock(1000)
        assert early.is_closed()
    finally:
        emulator.set_quota({"connection_creation_rate": None}, ip="127.0.0.1")
    for client in welcome:
        client.__exit__(None, None, None)


def test_librdkafka_is_throttled(emulator: Emulator, client_id: str) -> None:
    """The client gets the throttle time, and its requests of the meantime are served afterwards."""
    emulator.set_quota({"producer_byte_rate": 1000}, client_id=client_id)
    told: list[float] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": emulator.bootstrap_servers,
            "client.id": client_id,
            "throttle_cb": lambda event: told.append(event.throttle_time),
            "compression.type": "none",
        }
    )
    producer.produce("t", b"v" * 20_000)
    assert producer.flush(10) == 0
    until(lambda: producer.poll(0) == 0 and bool(told))
    assert 10.0 < told[0] < 10.5

    producer.produce("t", b"later")
    assert producer.flush(0.3) == 1
    emulator.advance_clock(round(told[0] * 1000))
    assert producer.flush(10) == 0
