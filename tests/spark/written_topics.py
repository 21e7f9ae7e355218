"""Topics that are hard to read: with aborted records, markers, open transactions, deleted beginnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import confluent_kafka
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite.admin import TransactionAdmin
from tests.support.databases import unique

_QUICK_AND_QUIET = {
    "linger.ms": 0,
    "log_level": 0,
    "retry.backoff.ms": 10,
    "topic.metadata.refresh.fast.interval.ms": 10,
}


class Topics:
    """The topics of one broker, written with confluent-kafka."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._plain = Producer({"bootstrap.servers": bootstrap_servers, **_QUICK_AND_QUIET})
        self._transactional = self._new_transactional()

    def create(self, partitions: int = 1, name: str | None = None, **config: str) -> str:
        """Create a topic; `config` has underscores for dots."""
        topic = name or unique("topic")
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self._admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(60)
        return topic

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(60)

    def id_of(self, topic: str) -> str:
        """Return the id by which the broker tells the topic from others of the same name."""
        with TransactionAdmin({"bootstrap.servers": self.bootstrap_servers}) as admin:
            return admin.describe_topic_ids([topic]).ids[topic]

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        """Delete the records before `before`, where the log then begins."""
        wanted = confluent_kafka.TopicPartition(topic, partition, before)
        for done in self._admin.delete_records([wanted]).values():
            done.result(60)

    def write(self, topic: str, *values: str, partition: int = 0, headers: Mapping[str, bytes] | None = None) -> None:
        """Write records without a transaction; the key is the value."""
        _produce(self._plain, topic, values, partition, headers or {})

    def commit(self, topic: str, *values: str, partition: int = 0) -> None:
        """Write records in one transaction, which adds a marker after them."""
        self._transactional.begin_transaction()
        _produce(self._transactional, topic, values, partition, {})
        self._transactional.commit_transaction(10)

    def abort(self, topic: str, *values: str, partition: int = 0) -> None:
        """Write records in a transaction, and abort it."""
        self._transactional.begin_transaction()
        _produce(self._transactional, topic, values, partition, {})
        self._transactional.abort_transaction(10)

    @contextmanager
    def transaction(self, topic: str, *values: str, partition: int = 0) -> Iterator[Producer]:
        """Write records in a transaction that stays open until the caller completes it."""
        producer = self._new_transactional()
        producer.begin_transaction()
        _produce(producer, topic, values, partition, {})
        yield producer

    def _new_transactional(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "transactional.id": unique("writer"),
                **_QUICK_AND_QUIET,
            }
        )
        producer.init_transactions(10)
        return producer


def _produce(
    producer: Producer, topic: str, values: tuple[str, ...], partition: int, headers: Mapping[str, bytes]
) -> None:
    for value in values:
        producer.produce(topic, key=value, value=value, partition=partition, headers=dict(headers))
        producer.poll(0)
    assert producer.flush(10) == 0
