"""A service that moves each order to one of two topics, exactly once: consume and produce in one transaction.

KAFKA_BOOTSTRAP_SERVERS=... python transfers.py      moves all available orders, then exits
"""

from __future__ import annotations

import os
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

ORDERS, LARGE, SMALL = "orders", "large-orders", "small-orders"
TRANSACTIONAL_ID = "transfers-1"
GROUP = "transfers"


def move_all(servers: str) -> int:
    """Move every order that has not been moved yet, and return their number."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": TRANSACTIONAL_ID})
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    try:
        producer.init_transactions()  # fences a killed predecessor, and aborts the transaction it left open
        consumer.subscribe([ORDERS])
        return _move_on(producer, consumer)
    finally:
        consumer.close()


def _move_on(producer: Producer, consumer: Consumer) -> int:
    moved = 0
    while (message := consumer.poll(1.0)) is None or message.error() is None:
        if message is not None:
            _move(producer, consumer, message)
            moved += 1
    if message.error().code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - confluent-kafka's public constant
        raise KafkaException(message.error())
    return moved


def _move(producer: Producer, consumer: Consumer, message: Any) -> None:
    producer.begin_transaction()
    producer.produce(LARGE if int(message.value()) >= 100 else SMALL, message.value(), message.key())
    producer.send_offsets_to_transaction(consumer.position(consumer.assignment()), consumer.consumer_group_metadata())
    producer.commit_transaction()


if __name__ == "__main__":
    print(move_all(os.environ["KAFKA_BOOTSTRAP_SERVERS"]))
