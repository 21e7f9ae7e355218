"""Administration of transactions with other people's clients (KIP-664), on the emulator and on a real Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.errors
import pytest
from kafka.admin import AbortTransactionSpec

from tests.interop.conftest import Broker
from tests.interop.wire import DEADLINE_S, READ_COMMITTED, Code, Identity, Wire


@pytest.fixture
def admin(broker: Broker) -> Iterator[Any]:
    client = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture
def opened(wire: Wire, transactional_id: str, topic: str) -> Identity:
    """A producer with one open transaction."""
    identity = wire.init_ok(transactional_id)
    assert wire.produce(transactional_id, identity, topic, 0, b"a", b"b").error == Code.NONE
    return identity


def test_list_transactions(admin: Any, opened: Identity, transactional_id: str) -> None:
    listed = [
        row for rows in admin.list_transactions(producer_id_filters=[opened.producer_id]).values() for row in rows
    ]
    assert [(row.transactional_id, row.producer_id, row.state.value) for row in listed] == [
        (transactional_id, opened.producer_id, "Ongoing")
    ]


def test_describe_transactions(admin: Any, opened: Identity, transactional_id: str, topic: str) -> None:
    description = admin.describe_transactions([transactional_id])[transactional_id]
    assert description.state.value == "Ongoing"
    assert (description.producer_id, description.producer_epoch) == (opened.producer_id, opened.producer_epoch)
    assert description.transaction_timeout_ms == 60_000
    assert description.transaction_start_time_ms > 0
    assert description.topic_partitions == {kafka.TopicPartition(topic, 0)}
    with pytest.raises(kafka.errors.TransactionalIdNotFoundError):
        admin.describe_transactions(["nobody-has-this-id"])


def test_describe_producers(admin: Any, opened: Identity, topic: str) -> None:
    partition = kafka.TopicPartition(topic, 0)
    (producer,) = admin.describe_producers([partition])[partition].active_producers
    assert (producer.producer_id, producer.producer_epoch) == (opened.producer_id, opened.producer_epoch)
    assert (producer.last_sequence, producer.current_transaction_start_offset) == (1, 0)


def test_nothing_hangs(admin: Any, opened: Identity) -> None:
    hanging = admin.find_hanging_transactions()
    assert opened.producer_id not in [transaction["producer_id"] for transaction in hanging]


def test_abort_of_a_hanging_transaction(
    admin: Any, wire: Wire, opened: Identity, transactional_id: str, topic: str
) -> None:
    partition = kafka.TopicPartition(topic, 0)
    admin.abort_transaction(AbortTransactionSpec(partition, opened.producer_id, opened.producer_epoch))
    assert wire.list_offsets(topic, isolation=READ_COMMITTED) == 3
    assert wire.fetch(topic, isolation=READ_COMMITTED).aborted == ((opened.producer_id, 0),)
    # the coordinator was not asked and still has it
    assert wire.describe(transactional_id).state == "Ongoing"


def test_offsets_by_isolation(broker: Broker, opened: Identity, topic: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    partition = confluent_kafka.TopicPartition(topic, 0)

    def end(isolation: Any) -> int:
        wanted = {partition: confluent_kafka.admin.OffsetSpec.latest()}
        futures = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=DEADLINE_S)
        return int(futures[partition].result(DEADLINE_S).offset)

    assert end(confluent_kafka.IsolationLevel.READ_UNCOMMITTED) == 2
    assert end(confluent_kafka.IsolationLevel.READ_COMMITTED) == 0
