"""Other people's clients behind one face, so that one test runs with each: confluent-kafka, aiokafka, kafka-python.

Every client keeps its own protocol versions, batching and error handling; only the calls are made alike.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, Self

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors

from .wire import DEADLINE_S, wait_until

TIMEOUT_MS = 60_000


class FencedError(Exception):
    """The client says that another producer has taken over."""


class ForeignProducer(Protocol):
    """A transactional producer."""

    def init(self) -> None: ...
    def begin(self) -> None: ...
    def send(self, topic: str, value: bytes, partition: int = 0) -> None: ...
    def send_offsets(self, group: str, topic: str, offset: int) -> None: ...
    def flush(self) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class ForeignClient(Protocol):
    """One library."""

    name: str
    shortest_timeout_ms: int
    """The least `transaction.timeout.ms` that the library lets through."""

    def producer(
        self, servers: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, compression: str = "none"
    ) -> ForeignProducer: ...

    def read(self, servers: str, topic: str, end: int, *, committed: bool) -> list[bytes]:
        """Values of partition 0 from the beginning until the consumer's position is `end`."""

    def end_offset(self, servers: str, topic: str, *, committed: bool) -> int:
        """High watermark, or last stable offset."""

    def committed_offset(self, servers: str, group: str, topic: str) -> int | None:
        """What a consumer of that group would start from."""


# -- confluent-kafka, which is librdkafka


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
    shortest_timeout_ms = 1000

    def producer(
        self, servers: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, compression: str = "none"
    ) -> ForeignProducer:
        return ConfluentProducer(servers, transactional_id, timeout_ms, compression)

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

    def _consumer(self, servers: str, group: str, committed: bool) -> Any:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "auto.offset.reset": "error",
            }
        )


# -- aiokafka


class AiokafkaProducer:
    def __init__(self, servers: str, transactional_id: str, timeout_ms: int, compression: str) -> None:
        self._loop = asyncio.new_event_loop()

        async def create() -> Any:
            return aiokafka.AIOKafkaProducer(
                bootstrap_servers=servers,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                compression_type=None if compression == "none" else compression,
                retry_backoff_ms=20,
            )

        self._producer = self._loop.run_until_complete(create())
        self._sent: list[Any] = []

    def init(self) -> None:
        self._do(self._producer.start())

    def begin(self) -> None:
        self._do(self._producer.begin_transaction())

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self._sent.append(self._do(self._producer.send(topic, value, partition=partition)))

    def send_offsets(self, group: str, topic: str, offset: int) -> None:
        offsets = {aiokafka.TopicPartition(topic, 0): aiokafka.OffsetAndMetadata(offset, "")}
        self._do(self._producer.send_offsets_to_transaction(offsets, group))

    def flush(self) -> None:
        async def all_sent(futures: Sequence[Any]) -> None:
            await asyncio.gather(*futures)

        sent, self._sent = self._sent, []
        self._do(all_sent(sent))

    def commit(self) -> None:
        self._do(self._producer.commit_transaction())

    def abort(self) -> None:
        self._do(self._producer.abort_transaction())

    def close(self) -> None:
        try:
            self._loop.run_until_complete(asyncio.wait_for(self._producer.stop(), DEADLINE_S))
        finally:
            self._loop.close()

    def _do(self, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self._loop.run_until_complete(asyncio.wait_for(call, DEADLINE_S))
        except aiokafka.errors.ProducerFenced as error:
            raise FencedError(str(error)) from error


class Aiokafka:
    name = "aiokafka"
    shortest_timeout_ms = 100

    def producer(
        self, servers: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, compression: str = "none"
    ) -> ForeignProducer:
        return AiokafkaProducer(servers, transactional_id, timeout_ms, compression)

    def read(self, servers: str, topic: str, end: int, *, committed: bool) -> list[bytes]:
        partition = aiokafka.TopicPartition(topic, 0)

        async def read_all(consumer: Any) -> list[bytes]:
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            values: list[bytes] = []
            while await consumer.position(partition) < end:
                for messages in (await consumer.getmany(timeout_ms=100)).values():
                    values.extend(message.value for message in messages)
            return values

        values: list[bytes] = self._consume(servers, None, committed, read_all)
        return values

    def end_offset(self, servers: str, topic: str, *, committed: bool) -> int:
        async def ask(consumer: Any) -> int:
            partition = aiokafka.TopicPartition(topic, 0)
            return int((await consumer.end_offsets([partition]))[partition])

        answer: int = self._consume(servers, None, committed, ask)
        return answer

    def committed_offset(self, servers: str, group: str, topic: str) -> int | None:
        async def ask(consumer: Any) -> int | None:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            offset: int | None = await consumer.committed(partition)
            return offset

        answer: int | None = self._consume(servers, group, True, ask)
        return answer

    def _consume(self, servers: str, group: str | None, committed: bool, use: Any) -> Any:
        async def run() -> Any:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=servers,
                group_id=group,
                enable_auto_commit=False,
                isolation_level="read_committed" if committed else "read_uncommitted",
            )
            await consumer.start()
            try:
                return await asyncio.wait_for(use(consumer), DEADLINE_S)
            finally:
                await consumer.stop()

        return asyncio.run(run())


# -- kafka-python


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
    """With `api_version` it speaks the protocol of that release instead of the newest that both sides know."""

    shortest_timeout_ms = 100

    def __init__(self, api_version: tuple[int, ...] | None = None) -> None:
        self._api_version = api_version
        self.name = "kafka-python" if api_version is None else f"kafka-python {'.'.join(map(str, api_version))}"

    def producer(
        self, servers: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, compression: str = "none"
    ) -> ForeignProducer:
        return KafkaPythonProducer(servers, transactional_id, timeout_ms, compression, self._api_version)

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
                isolation_level="read_committed" if committed else "read_uncommitted",
                api_version=self._api_version,
            )
        )


class _ClosingConsumer:
    def __init__(self, consumer: Any) -> None:
        self.kafka = consumer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kafka.close(autocommit=False)


CLIENTS: tuple[ForeignClient, ...] = (Confluent(), Aiokafka(), KafkaPython(), KafkaPython((2, 5)))
