"""Our producer on a real Apache Kafka: a zombie, an abort by the server, and the default settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dualwrite.errors import AbortableError, FencedError, UnsupportedByBrokerError
from dualwrite.producer import Producer
from tests.support.real_kafkas import Kind

from .conftest import KAFKA_VERSION_USED, Broker, shared
from .wire import Wire, wait_for

MakeProducer = Callable[..., Producer]


@pytest.fixture
def broker(apache_kafka: Broker) -> Broker:
    return apache_kafka


@pytest.fixture
def make_producer(broker: Broker, transactional_id: str) -> Iterator[MakeProducer]:
    made: list[Producer] = []

    def make(**settings: Any) -> Producer:
        defaults = {"bootstrap_servers": broker.bootstrap_servers, "transactional_id": transactional_id}
        producer = Producer(**(defaults | {"max_block_ms": 60_000} | settings))
        made.append(producer)
        return producer

    yield make
    for producer in made:
        producer.close(timeout_s=0)


@pytest.fixture
def producer(make_producer: MakeProducer) -> Producer:
    initialised = make_producer()
    initialised.init_transactions()
    return initialised


def test_a_zombie_gets_an_error_when_it_sends(producer: Producer, make_producer: MakeProducer, topic: str) -> None:
    producer.begin_transaction()
    successor = make_producer()
    successor.init_transactions()
    producer.send(topic, b"late")
    # Produce's code for it does not say for certain that the producer is fenced (KAFKA-9911); EndTxn's does
    with pytest.raises(AbortableError):
        producer.commit_transaction()
    with pytest.raises(FencedError):
        producer.abort_transaction()


def test_abort_after_a_server_abort(wire: Wire, make_producer: MakeProducer, transactional_id: str, topic: str) -> None:
    producer = make_producer(transaction_timeout_ms=200)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"too slow")
    producer.flush()
    wait_for(lambda: wire.describe(transactional_id), lambda described: described.state == "CompleteAbort")
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, b"in time")
    producer.commit_transaction()
    assert wire.wait_until_settled(transactional_id).state == "CompleteCommit"


def test_two_phase_commit_is_refused_by_default_settings(make_producer: MakeProducer) -> None:
    plain = shared(Kind(KAFKA_VERSION_USED))
    producer = make_producer(bootstrap_servers=plain.bootstrap_servers, transaction_two_phase_commit_enable=True)
    with pytest.raises(UnsupportedByBrokerError, match=r"no two-phase commit \(KIP-939.*tier 3"):
        producer.init_transactions()
