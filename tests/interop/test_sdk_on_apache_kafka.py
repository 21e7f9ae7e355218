"""Our producer on a real Apache Kafka: plain transactions, and the refusal of two-phase commit there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dualwrite.errors import AbortableError, FatalError, FencedError, UnsupportedByBrokerError
from dualwrite.guarantee import Tier
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import ConsumerGroupMetadata, Producer, ProducerState, TopicPartition

from .conftest import Broker
from .foreign_clients import CLIENTS, ForeignClient
from .wire import GROUP, READ_COMMITTED, Code, Wire, wait_for

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


@pytest.fixture(params=CLIENTS[:3], ids=lambda client: client.name)
def reader(request: pytest.FixtureRequest) -> ForeignClient:
    chosen: ForeignClient = request.param
    return chosen


def test_commit_and_abort(
    wire: Wire, broker: Broker, producer: Producer, reader: ForeignClient, transactional_id: str, topic: str
) -> None:
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction) * 3):
        producer.begin_transaction()
        for letter in "ab":
            producer.send(topic, f"{number}{letter}", key=letter, headers=[("h", b"x")])
        producer.flush()
        end()
    assert producer.state == ProducerState.READY
    wire.wait_until_settled(transactional_id)
    end_offset = wire.list_offsets(topic)
    assert end_offset == 18
    values = reader.read(broker.bootstrap_servers, topic, end_offset, committed=True)
    assert values == [b"0a", b"0b", b"2a", b"2b", b"4a", b"4b"]


def test_each_transaction_has_its_epoch(wire: Wire, producer: Producer, transactional_id: str, topic: str) -> None:
    before = wire.describe(transactional_id).identity
    for number in range(20):
        producer.begin_transaction()
        metadata = producer.send(topic, str(number))
        producer.commit_transaction()
        assert metadata.result(0).offset == 2 * number
    described = wire.wait_until_settled(transactional_id)
    assert (described.state, described.identity) == ("CompleteCommit", before.bumped(20))


def test_many_records_and_partitions(wire: Wire, producer: Producer, transactional_id: str) -> None:
    topic = f"{transactional_id}-wide"
    wire.create_topic(topic, 4)
    producer.begin_transaction()
    futures = [producer.send(topic, b"x" * 1000, partition=number % 4) for number in range(2000)]
    producer.commit_transaction()
    assert sorted(future.result(0).offset for future in futures[::4]) == list(range(500))
    wire.wait_until_settled(transactional_id)
    assert [wire.list_offsets(topic, partition=partition) for partition in range(4)] == [501] * 4


def test_empty_transactions(wire: Wire, producer: Producer, transactional_id: str) -> None:
    before = wire.describe(transactional_id)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        assert not producer.transaction_has_records
        end()
    assert wire.describe(transactional_id) == before


def test_offsets(wire: Wire, producer: Producer, transactional_id: str, topic: str, group: str) -> None:
    wire.wait_for_coordinator(group, GROUP)
    for offset, end, committed in ((3, producer.commit_transaction, 3), (9, producer.abort_transaction, 3)):
        producer.begin_transaction()
        producer.send_offsets_to_transaction({TopicPartition(topic, 0): offset}, ConsumerGroupMetadata(group))
        end()
        wire.wait_until_settled(transactional_id)
        assert wire.offset_fetch(group, topic) == (Code.NONE, committed)


def test_successor_fences(wire: Wire, producer: Producer, make_producer: MakeProducer, topic: str) -> None:
    producer.begin_transaction()
    producer.send(topic, b"of the zombie")
    producer.flush()
    successor = make_producer()
    successor.init_transactions()
    successor.begin_transaction()
    successor.send(topic, b"of the successor")
    successor.commit_transaction()
    with pytest.raises(FencedError):
        producer.commit_transaction()
    assert producer.state == ProducerState.FATAL_ERROR
    wait_for(lambda: wire.list_offsets(topic, isolation=READ_COMMITTED), lambda stable: stable == 4)
    kept = [batch.values for batch in wire.fetch(topic).batches if not batch.is_control]
    assert kept == [(b"of the zombie",), (b"of the successor",)]
    assert len(wire.fetch(topic, isolation=READ_COMMITTED).aborted or ()) == 1


def test_zombie_is_told_when_it_sends(producer: Producer, make_producer: MakeProducer, topic: str) -> None:
    producer.begin_transaction()
    successor = make_producer()
    successor.init_transactions()
    producer.send(topic, b"late")
    # Produce's code for it does not say for certain that the producer is fenced (KAFKA-9911); EndTxn's does
    with pytest.raises(AbortableError):
        producer.commit_transaction()
    with pytest.raises(FencedError):
        producer.abort_transaction()


def test_server_abort_is_never_taken_for_a_commit(
    wire: Wire, make_producer: MakeProducer, transactional_id: str, topic: str
) -> None:
    producer = make_producer(transaction_timeout_ms=200)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"too slow")
    producer.flush()
    wait_for(lambda: wire.describe(transactional_id), lambda described: described.state == "CompleteAbort")
    with pytest.raises(FatalError):
        producer.commit_transaction()
    assert wire.describe(transactional_id).state == "CompleteAbort"


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


# -- KIP-939 there


def test_two_phase_commit_is_refused_by_default_settings(
    plain_apache_kafka: Broker, make_producer: MakeProducer
) -> None:
    producer = make_producer(
        bootstrap_servers=plain_apache_kafka.bootstrap_servers, transaction_two_phase_commit_enable=True
    )
    with pytest.raises(UnsupportedByBrokerError, match=r"no two-phase commit \(KIP-939.*tier 3"):
        producer.init_transactions()


def test_plain_transactions_by_default_settings(plain_apache_kafka: Broker, make_producer: MakeProducer) -> None:
    producer = make_producer(bootstrap_servers=plain_apache_kafka.bootstrap_servers)
    producer.init_transactions()
    producer.begin_transaction()
    metadata = producer.send("made-by-the-first-record", b"v")
    producer.commit_transaction()
    assert metadata.result(0).offset == 0


def test_keeping_a_prepared_transaction_is_done_without(make_producer: MakeProducer) -> None:
    producer = make_producer(transaction_two_phase_commit_enable=True)
    producer.init_transactions(keep_prepared_txn=True)
    assert producer.guarantee.tier is Tier.STORED_PAIR


def test_prepare_and_complete_without_a_crash(
    wire: Wire, make_producer: MakeProducer, transactional_id: str, topic: str
) -> None:
    """Kafka 4.1 and newer do this much of KIP-939, with unstable API versions and two-phase commit enabled."""
    producer = make_producer(transaction_two_phase_commit_enable=True)
    producer.init_transactions()
    assert wire.describe(transactional_id).timeout_ms == 2147483647
    for chosen, state in ((None, "CompleteCommit"), (PreparedTxnState("0:0"), "CompleteAbort")):
        producer.begin_transaction()
        producer.send(topic, b"v")
        prepared = producer.prepare_transaction()
        assert str(prepared) == "{0.producer_id}:{0.producer_epoch}".format(wire.describe(transactional_id).identity)
        producer.complete_transaction(chosen or prepared)
        assert wire.wait_until_settled(transactional_id).state == state
