"""Other Kafka clients (librdkafka, kafka-python, aiokafka) on one node and on three, with each profile.

They are TV1 producers (EndTxn up to v4, AddPartitionsToTxn v0-3) and decode with their own codecs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile

# imported as untyped: their types do not pass mypy's strict mode
aiokafka: Any = import_module("aiokafka")
confluent_kafka: Any = import_module("confluent_kafka")
confluent_kafka_admin: Any = import_module("confluent_kafka.admin")
kafka: Any = import_module("kafka")

TIMEOUT_S = 60.0
PARTITIONS = 3
COMMITTED = sorted(f"{transaction}-{index}".encode() for transaction in (0, 2) for index in range(6))
"""The records of transactions 0 and 2 of four; 1 and 3 are aborted."""


@pytest.fixture(params=[(1, Profile.KIP_939), (3, Profile.KIP_939), (1, Profile.KAFKA_4_3), (3, Profile.KAFKA_3_9)])
def emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    nodes, profile = request.param
    with Emulator(nodes=nodes, config=BrokerConfig(profile=profile)) as broker:
        yield broker


def write_transactions(begin: Callable[[], None], send: Callable[[bytes], Any], end: Callable[[bool], None]) -> None:
    for transaction in range(4):
        begin()
        for index in range(6):
            send(f"{transaction}-{index}".encode())
        end(transaction % 2 == 0)


def read_with_librdkafka(emulator: Emulator, topic: str, isolation_level: str = "read_committed") -> list[bytes]:
    """Return all values of the topic, read to the end of each partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": emulator.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": isolation_level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "log_level": 0,
        }
    )
    beginning = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(topic, index, beginning) for index in range(PARTITIONS)])
    values: list[bytes] = []
    ended = 0
    while ended < PARTITIONS:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, f"nothing more within {TIMEOUT_S} s, after {values}"
        if message.error() is None:
            values.append(message.value())
        else:
            assert message.error().name() == "_PARTITION_EOF", message.error()
            ended += 1
    consumer.close()
    return sorted(values)


def librdkafka_producer(emulator: Emulator, transactional_id: str) -> Any:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": emulator.bootstrap_servers, "transactional.id": transactional_id, "log_level": 0}
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def end_with_librdkafka(producer: Any, commit: bool) -> None:
    producer.flush(TIMEOUT_S)  # an abort drops unsent records, and then sends nothing to the broker
    (producer.commit_transaction if commit else producer.abort_transaction)(TIMEOUT_S)


def test_librdkafka(emulator: Emulator) -> None:
    admin = confluent_kafka_admin.AdminClient({"bootstrap.servers": emulator.bootstrap_servers, "log_level": 0})
    admin.create_topics([confluent_kafka_admin.NewTopic("t", PARTITIONS, 1)])["t"].result(TIMEOUT_S)
    producer = librdkafka_producer(emulator, "x")
    write_transactions(
        producer.begin_transaction,
        lambda value: producer.produce("t", value),
        lambda commit: end_with_librdkafka(producer, commit),
    )
    assert read_with_librdkafka(emulator, "t") == COMMITTED
    assert [row.state for row in emulator.transactions()] == ["CompleteAbort"]


def test_librdkafka_offsets(emulator: Emulator) -> None:
    emulator.create_topic("t")
    settings = {"bootstrap.servers": emulator.bootstrap_servers, "group.id": "g", "log_level": 0}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    consumer.commit(offsets=[confluent_kafka.TopicPartition("t", 0, 3)], asynchronous=False)
    producer = librdkafka_producer(emulator, "x")
    producer.begin_transaction()
    offsets = [confluent_kafka.TopicPartition("t", 0, 7)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S)
    (committed,) = consumer.committed([confluent_kafka.TopicPartition("t", 0)], TIMEOUT_S)
    assert committed.offset == 7
    consumer.close()


def test_librdkafka_fences_a_zombie(emulator: Emulator) -> None:
    emulator.create_topic("t", PARTITIONS)
    zombie = librdkafka_producer(emulator, "x")
    zombie.begin_transaction()
    zombie.produce("t", b"zombie")
    zombie.flush(TIMEOUT_S)
    successor = librdkafka_producer(emulator, "x")
    with pytest.raises(confluent_kafka.KafkaException):
        zombie.commit_transaction(TIMEOUT_S)
    write_transactions(
        successor.begin_transaction,
        lambda value: successor.produce("t", value),
        lambda commit: end_with_librdkafka(successor, commit),
    )
    assert read_with_librdkafka(emulator, "t") == COMMITTED
    assert b"zombie" in read_with_librdkafka(emulator, "t", "read_uncommitted")


def test_kafka_python(emulator: Emulator) -> None:
    servers = emulator.bootstrap_servers
    admin = kafka.KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([kafka.admin.NewTopic("t", PARTITIONS, 1)])
    admin.close()
    producer = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id="x")
    producer.init_transactions()
    write_transactions(
        producer.begin_transaction,
        lambda value: producer.send("t", value),
        lambda commit: producer.commit_transaction() if commit else producer.abort_transaction(),
    )
    partitions = [kafka.TopicPartition("t", index) for index in range(PARTITIONS)]
    producer.begin_transaction()
    producer.send_offsets_to_transaction({partitions[0]: kafka.structs.OffsetAndMetadata(5, "", -1)}, "g")
    producer.commit_transaction()
    producer.close()

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", group_id="g", enable_auto_commit=False
    )
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    values: list[bytes] = []
    while len(values) < len(COMMITTED):
        polled = consumer.poll(timeout_ms=int(TIMEOUT_S * 1000))
        assert polled, f"nothing more within {TIMEOUT_S} s, after {values}"
        values += [record.value for records in polled.values() for record in records]
    assert sorted(values) == COMMITTED
    assert consumer.committed(partitions[0]) == 5
    consumer.close()


def test_aiokafka(emulator: Emulator) -> None:
    emulator.create_topic("t", PARTITIONS)
    asyncio.run(asyncio.wait_for(write_and_read_with_aiokafka(emulator.bootstrap_servers), 4 * TIMEOUT_S))


async def write_and_read_with_aiokafka(servers: str) -> None:
    partitions = [aiokafka.TopicPartition("t", index) for index in range(PARTITIONS)]
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id="x") as producer:
        for transaction in range(4):
            await producer.begin_transaction()
            for index in range(6):
                await producer.send("t", f"{transaction}-{index}".encode())
            await (producer.commit_transaction() if transaction % 2 == 0 else producer.abort_transaction())
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({partitions[0]: 5}, "g")
        await producer.commit_transaction()
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", group_id="g", enable_auto_commit=False
    )
    await consumer.start()
    consumer.assign(partitions)
    assert await consumer.committed(partitions[0]) == 5
    await consumer.seek_to_beginning(*partitions)
    values = [(await consumer.getone()).value for _ in COMMITTED]
    await consumer.stop()
    assert sorted(values) == COMMITTED
