"""Read a topic with another client."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Message, TopicPartition

from dualwrite.broker_emulator import Emulator


def read_with_librdkafka(emulator: Emulator, topic: str, count: int, partitions: int = 1) -> list[Message]:
    """Return the first `count` committed records, partition by partition, as librdkafka returns them."""
    consumer = Consumer(
        {
            "bootstrap.servers": emulator.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.wait.max.ms": 20,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        messages: list[Message] = []
        deadline_s = time.monotonic() + 60
        while len(messages) < count and time.monotonic() < deadline_s:
            messages += consumer.consume(count - len(messages), 0.2)
        problems = [message.error() for message in messages if message.error() is not None]
        assert not problems, problems
        return sorted(messages, key=lambda message: (message.partition(), message.offset()))
    finally:
        consumer.close()
