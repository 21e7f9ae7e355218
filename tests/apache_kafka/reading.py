"""The view of a foreign client: confluent-kafka's consumer, reading committed records only."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

DEADLINE_S = 30.0


def read_committed(settings: dict[str, Any], topic: str, partition: int = 0) -> list[bytes]:
    """All values up to the last stable offset, which is the end of the log unless a transaction is open."""
    consumer = Consumer(
        {
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **settings,
        }
    )
    deadline_s = time.monotonic() + DEADLINE_S
    values: list[bytes] = []
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        while True:
            assert time.monotonic() < deadline_s, f"only {values} came from {topic}"
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                value = message.value()
                assert value is not None
                values.append(value)
            elif error.code() == KafkaError._PARTITION_EOF:
                return values
    finally:
        with contextlib.suppress(RuntimeError):
            consumer.close()


def create_topics(bootstrap_servers: str, *names: str, replicas: int = 1) -> None:
    """Topics with one partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    new = [NewTopic(name, num_partitions=1, replication_factor=replicas) for name in names]
    for future in admin.create_topics(new).values():
        future.result(DEADLINE_S)
