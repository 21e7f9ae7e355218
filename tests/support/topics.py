"""A topic as a consumer of another library sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from dualwrite.broker_emulator.emulator import Emulator
from tests.support.conditions import until


class Read(NamedTuple):
    """A record, and where it stands."""

    partition: str
    """As Kafka prints it: `orders-3`."""
    offset: int
    key: str
    value: str


def delete_topic(emulator: Emulator, topic: str, *, and_then: Callable[[], None] = lambda: None) -> None:
    """Delete a topic, and do something else, at once."""

    def at_once() -> None:
        emulator.cluster.changes.make_at_once(emulator.cluster.topic_deletion(topic))
        and_then()

    emulator.call_in_loop(at_once)


def create_anew(emulator: Emulator, topic: str, partitions: int) -> None:
    """Delete a topic and create it again, at once: a client's Metadata request in between would create it, too."""
    delete_topic(emulator, topic, and_then=lambda: emulator.operations.create_topic(topic, partitions, {}))


def read_topic(bootstrap_servers: str, topic: str, *, isolation_level: str = "read_committed") -> list[tuple[str, str]]:
    """Every (key, value) that confluent-kafka shows, partition by partition in offset order, up to the end of the log.

    With read_committed the end is the last stable offset, so an open transaction hides what follows it.
    """
    return [(each.key, each.value) for each in read_log(bootstrap_servers, topic, isolation_level=isolation_level)]


def read_log(bootstrap_servers: str, topic: str, *, isolation_level: str = "read_committed") -> list[Read]:
    """As `read_topic`, with the places."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reader",
            "isolation.level": isolation_level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        return _read_until_all_ends(consumer, set(partitions))
    finally:
        consumer.close()


def _read_until_all_ends(consumer: Consumer, unfinished: set[int]) -> list[Read]:
    found: dict[int, list[Read]] = {partition: [] for partition in unfinished}
    while unfinished:
        message = consumer.poll(15)
        assert message is not None, f"no end of partitions {unfinished} within 15 s"
        if error := message.error():
            assert error.name() == "_PARTITION_EOF", error
            unfinished.discard(message.partition())
            continue
        partition, value, offset = message.partition(), message.value(), message.offset()
        assert partition is not None
        assert value is not None
        assert offset is not None
        key = (message.key() or b"").decode()
        found[partition].append(Read(f"{message.topic()}-{partition}", offset, key, value.decode()))
    return [record for partition in sorted(found) for record in found[partition]]


def committed_values(bootstrap_servers: str, topic: str, partitions: int = 1) -> list[bytes]:
    """Return all values of a topic for kafka-python's read_committed, up to the last stable offset."""
    consumer_class: Any = kafka.KafkaConsumer
    consumer = consumer_class(
        bootstrap_servers=bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        group_id=None,
    )
    try:
        assigned = [kafka.TopicPartition(topic, partition) for partition in range(partitions)]
        consumer.assign(assigned)
        ends = consumer.end_offsets(assigned)
        values: list[bytes] = []
        while any(consumer.position(partition) < ends[partition] for partition in assigned):
            for records in consumer.poll(timeout_ms=200).values():
                values += [record.value for record in records]
        return values
    finally:
        consumer.close()


def wait_until_settled(emulator: Emulator) -> None:
    """Wait until decided transactions are complete: a commit returns when it is decided."""
    until(lambda: not any(each.state.startswith("Prepare") for each in emulator.transactions()))
