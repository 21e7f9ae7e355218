"""Offsets committed in transactions by members of a consumer group (KIP-447), the same on both brokers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest

from tests.interop.conftest import Broker
from tests.interop.wire import DEADLINE_S, GROUP, Code, Wire, wait_for


@contextmanager
def member(servers: str, group: str, topic: str) -> Iterator[Any]:
    """A consumer that has joined and has partitions."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


@contextmanager
def transactional_producer(servers: str, transactional_id: str) -> Iterator[Any]:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": transactional_id})
    producer.init_transactions(DEADLINE_S)
    yield producer
    producer.close()


def test_consume_transform_produce(wire: Wire, broker: Broker, transactional_id: str, topic: str, group: str) -> None:
    target = f"{topic}-target"
    wire.create_topic(target)
    wire.wait_for_coordinator(group, GROUP)
    for value in (b"1", b"2"):
        wire.write(topic, value)
    servers = broker.bootstrap_servers
    with member(servers, group, topic) as consumer, transactional_producer(servers, transactional_id) as producer:
        for outcome in (producer.abort_transaction, producer.commit_transaction):
            first = wait_for(lambda: consumer.poll(0.1), lambda message: message is not None)
            producer.begin_transaction()
            producer.produce(target, first.value() + b"!")
            offsets = [confluent_kafka.TopicPartition(topic, 0, first.offset() + 1)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), DEADLINE_S)
            outcome(DEADLINE_S)
            consumer.seek(confluent_kafka.TopicPartition(topic, 0, 0))
        wire.wait_until_settled(transactional_id)
        assert wire.offset_fetch(group, topic) == (Code.NONE, 1)
    committed = [batch.values for batch in wire.fetch(target).batches if not batch.is_control]
    assert committed[-1] == (b"1!",)


def test_generation_fences_a_former_member(
    wire: Wire, broker: Broker, transactional_id: str, topic: str, group: str
) -> None:
    wire.wait_for_coordinator(group, GROUP)
    servers = broker.bootstrap_servers
    with transactional_producer(servers, transactional_id) as producer:
        with member(servers, group, topic) as consumer:
            wait_for(lambda: (consumer.poll(0.1), consumer.assignment())[1], bool)
            metadata = consumer.consumer_group_metadata()
        # it has left, and its metadata is of an old generation
        producer.begin_transaction()
        offsets = [confluent_kafka.TopicPartition(topic, 0, 1)]
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            producer.send_offsets_to_transaction(offsets, metadata, DEADLINE_S)
        assert caught.value.args[0].txn_requires_abort()
        producer.abort_transaction(DEADLINE_S)
        wire.wait_until_settled(transactional_id)
        assert wire.offset_fetch(group, topic) == (Code.NONE, -1)
