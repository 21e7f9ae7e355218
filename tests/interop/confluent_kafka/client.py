"""confluent-kafka, which is librdkafka, behind the face of the foreign clients."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import confluent_kafka

from tests.interop.foreign_client import TIMEOUT_MS, FencedError, ForeignProducer, Message
from tests.interop.logged_records import CODECS
from tests.interop.wire import DEADLINE_S, wait_until


class ConfluentProducer:
    def __init__(self, servers: str, transactional_id: str, timeout_ms: int, compression: str) -> None:
        self._servers = servers
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "compression.type": compression,
                "linger.ms": 0,
                "metadata.recovery.strategy": "none",  # librdkafka 2.16 never finds a group again that it lost (#5511)
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
            }
        )

    def init(self) -> None:
        self._do(self._producer.init_transactions, DEADLINE_S)

    def begin(self) -> None:
        self._do(self._producer.begin_transaction)

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._do(self._producer.produce, topic, value, None, partition)

    def send_offsets(self, group: str, topic: str, offset: int) -> None:
        # a consumer that never joined gives the metadata of a group without members
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self._servers, "group.id": group})
        offsets = [confluent_kafka.TopicPartition(topic, 0, offset)]
        try:
            metadata = consumer.consumer_group_metadata()
            self._do(self._producer.send_offsets_to_transaction, offsets, metadata, DEADLINE_S)
        finally:
            consumer.close()

    def flush(self) -> None:
        assert self._do(self._producer.flush, DEADLINE_S) == 0

    def commit(self) -> None:
        self._do(self._producer.commit_transaction, DEADLINE_S)

    def abort(self) -> None:
        self._do(self._producer.abort_transaction, DEADLINE_S)

    def close(self) -> None:
        with contextlib.suppress(confluent_kafka.KafkaException):  # a fenced producer says so once more
            self._producer.close()

    def _do(self, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() in (confluent_kafka.KafkaError._FENCED, confluent_kafka.KafkaError.PRODUCER_FENCED):
                raise FencedError(str(error)) from error
            raise


class Confluent:
    name = "confluent-kafka"
    codecs = CODECS
    shortest_timeout_ms = 1000

    def producer(
        self, servers: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, compression: str = "none"
    ) -> ForeignProducer:
        return ConfluentProducer(servers, transactional_id, timeout_ms, compression)

    def write(
        self, servers: str, topic: str, messages: Sequence[Message], *, codec: str = "none", idempotent: bool = False
    ) -> None:
        settings = {"bootstrap.servers": servers, "compression.type": codec, "enable.idempotence": idempotent}
        producer = confluent_kafka.Producer({**settings, "linger.ms": 50, "message.max.bytes": 2_000_000})
        failures: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failures.append(error)

        for message in messages:
            stamp: dict[str, Any] = {} if message.timestamp_ms is None else {"timestamp": message.timestamp_ms}
            headers: list[tuple[str, str | bytes | None]] = list(message.headers)
            producer.produce(
                topic, message.value, message.key, partition=0, headers=headers, on_delivery=delivered, **stamp
            )
        assert producer.flush(DEADLINE_S) == 0
        producer.close()
        if failures:
            raise confluent_kafka.KafkaException(failures[0])

    def consume(self, servers: str, topic: str, group: str, count: int) -> list[Message]:
        consumer = self._consumer(servers, group, True, **{"auto.offset.reset": "earliest"})
        consumer.subscribe([topic])
        found: list[Message] = []
        try:

            def poll() -> bool:
                for message in consumer.consume(100, 0.02):
                    if message.error() is None:
                        headers = tuple(message.headers() or ())
                        found.append(Message(message.value(), message.key(), headers, message.timestamp()[1]))
                return len(found) >= count

            wait_until(poll)
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return found

    def read(self, servers: str, topic: str, end: int, *, committed: bool) -> list[bytes]:
        consumer = self._consumer(servers, "nobody", committed)
        partition = confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)
        values: list[bytes] = []
        reached_end = False
        try:
            consumer.assign([partition])

            def poll() -> bool:
                nonlocal reached_end
                for message in consumer.consume(100, 0.02):
                    if message.error() is None:
                        values.append(message.value())
                    else:
                        assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                        reached_end = message.offset() >= end
                return reached_end

            wait_until(poll)
        finally:
            consumer.close()
        return values

    def end_offset(self, servers: str, topic: str, *, committed: bool) -> int:
        consumer = self._consumer(servers, "nobody", committed)
        try:
            _, high = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), DEADLINE_S)
            return int(high)
        finally:
            consumer.close()

    def committed_offset(self, servers: str, group: str, topic: str) -> int | None:
        consumer = self._consumer(servers, group, True)
        try:
            (answer,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], DEADLINE_S)
        finally:
            consumer.close()
        return None if answer.offset < 0 else int(answer.offset)

    def _consumer(self, servers: str, group: str, committed: bool, **settings: str) -> Any:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "auto.offset.reset": "error",
                **settings,
            }
        )
