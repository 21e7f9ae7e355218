"""kafka-python behind the face of the foreign clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import kafka
import kafka.errors

from tests.interop.foreign_client import TIMEOUT_MS, FencedError, ForeignProducer, Message
from tests.interop.wire import DEADLINE_S, wait_until


class KafkaPythonProducer:
    def __init__(
        self,
        servers: str,
        transactional_id: str,
        timeout_ms: int,
        compression: str,
        api_version: tuple[int, ...] | None,
    ) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=servers,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            compression_type=None if compression == "none" else compression,
            api_version=api_version,
            retry_backoff_ms=20,
        )

    def init(self) -> None:
        self._do(self._producer.init_transactions)

    def begin(self) -> None:
        self._do(self._producer.begin_transaction)

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._do(lambda: self._producer.send(topic, value, partition=partition))

    def send_offsets(self, group: str, topic: str, offset: int) -> None:
        offsets = {kafka.TopicPartition(topic, 0): kafka.OffsetAndMetadata(offset, "", -1)}
        self._do(lambda: self._producer.send_offsets_to_transaction(offsets, group))

    def flush(self) -> None:
        self._do(lambda: self._producer.flush(DEADLINE_S))

    def commit(self) -> None:
        self._do(self._producer.commit_transaction)

    def abort(self) -> None:
        self._do(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=1)

    def _do(self, call: Any) -> Any:
        try:
            return call()
        except (kafka.errors.ProducerFencedError, kafka.errors.InvalidProducerEpochError) as error:
            raise FencedError(str(error)) from error


class KafkaPython:
    """With `api_version` it speaks that release's protocol instead of the newest common one."""

    shortest_timeout_ms = 100
    codecs: tuple[str, ...] = ("none", "gzip", "zstd")  # snappy and lz4 are in packages that this project does not need

    def __init__(self, api_version: tuple[int, ...] | None = None) -> None:
        self._api_version = api_version
        self.name = "kafka-python" if api_version is None else f"kafka-python {'.'.join(map(str, api_version))}"

    def producer(
        self, servers: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, compression: str = "none"
    ) -> ForeignProducer:
        return KafkaPythonProducer(servers, transactional_id, timeout_ms, compression, self._api_version)

    def write(
        self, servers: str, topic: str, messages: Sequence[Message], *, codec: str = "none", idempotent: bool = False
    ) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=servers,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            linger_ms=50,
            max_request_size=2_000_000,
            api_version=self._api_version,
        )
        sent = [
            producer.send(topic, each.value, each.key, list(each.headers), 0, each.timestamp_ms) for each in messages
        ]
        for future in sent:
            future.get(DEADLINE_S)
        producer.close()

    def consume(self, servers: str, topic: str, group: str, count: int) -> list[Message]:
        found: list[Message] = []
        with self._consumer(servers, group, True) as consumer:
            consumer.kafka.subscribe([topic])

            def poll() -> bool:
                # patiently: a poll that ends in the middle of a rebalance loses the assignment
                for records in consumer.kafka.poll(timeout_ms=5_000).values():
                    found.extend(Message(each.value, each.key, tuple(each.headers), each.timestamp) for each in records)
                return len(found) >= count

            wait_until(poll, 2 * DEADLINE_S)
            consumer.kafka.commit()
        return found

    def read(self, servers: str, topic: str, end: int, *, committed: bool) -> list[bytes]:
        partition = kafka.TopicPartition(topic, 0)
        values: list[bytes] = []
        with self._consumer(servers, None, committed) as consumer:
            consumer.kafka.assign([partition])
            consumer.kafka.seek_to_beginning(partition)

            def poll() -> bool:
                for messages in consumer.kafka.poll(timeout_ms=100).values():
                    values.extend(message.value for message in messages)
                return bool(consumer.kafka.position(partition) >= end)

            wait_until(poll)
        return values

    def end_offset(self, servers: str, topic: str, *, committed: bool) -> int:
        partition = kafka.TopicPartition(topic, 0)
        with self._consumer(servers, None, committed) as consumer:
            return int(consumer.kafka.end_offsets([partition])[partition])

    def committed_offset(self, servers: str, group: str, topic: str) -> int | None:
        with self._consumer(servers, group, True) as consumer:
            offset: int | None = consumer.kafka.committed(kafka.TopicPartition(topic, 0))
            return offset

    def _consumer(self, servers: str, group: str | None, committed: bool) -> _ClosingConsumer:
        return _ClosingConsumer(
            kafka.KafkaConsumer(
                bootstrap_servers=servers,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed" if committed else "read_uncommitted",
                api_version=self._api_version,
                metadata_max_age_ms=500,  # its assignor gives nothing of topics that it has not heard of yet
            )
        )


class _ClosingConsumer:
    def __init__(self, consumer: Any) -> None:
        self.kafka = consumer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kafka.close(autocommit=False)
