"""What a consumer of another library sees in a topic."""

from __future__ import annotations

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition


def read_topic(bootstrap_servers: str, topic: str, *, isolation_level: str = "read_committed") -> list[tuple[str, str]]:
    """Every (key, value) that confluent-kafka shows, partition by partition in offset order, up to the end of the log.

    With read_committed the end is the last stable offset, so an open transaction hides what follows it.
    """
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
        partitions = sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        return _read_until_all_ends(consumer, set(partitions))
    finally:
        consumer.close()


def _read_until_all_ends(consumer: Consumer, unfinished: set[int]) -> list[tuple[str, str]]:
    found: dict[int, list[tuple[str, str]]] = {partition: [] for partition in unfinished}
    while unfinished:
        message = consumer.poll(15)
        assert message is not None, f"no end of partitions {unfinished} within 15 s"
        if error := message.error():
            assert error.name() == "_PARTITION_EOF", error
            unfinished.discard(message.partition())
            continue
        partition, value = message.partition(), message.value()
        assert partition is not None
        assert value is not None
        found[partition].append(((message.key() or b"").decode(), value.decode()))
    return [record for partition in sorted(found) for record in found[partition]]
