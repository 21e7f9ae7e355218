"""aiokafka behind the face of the foreign clients."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import aiokafka
import aiokafka.errors

from tests.interop.foreign_client import TIMEOUT_MS, FencedError, ForeignProducer, Message
from tests.interop.logged_records import CODECS
from tests.interop.wire import DEADLINE_S


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
    codecs = CODECS
    shortest_timeout_ms = 100

    def producer(
        self, servers: str, transactional_id: str, *, timeout_ms: int = TIMEOUT_MS, compression: str = "none"
    ) -> ForeignProducer:
        return AiokafkaProducer(servers, transactional_id, timeout_ms, compression)

    def write(
        self, servers: str, topic: str, messages: Sequence[Message], *, codec: str = "none", idempotent: bool = False
    ) -> None:
        async def send() -> None:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=servers,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                linger_ms=50,
                max_request_size=2_000_000,
            )
            async with producer:
                sent = [
                    await producer.send(
                        topic, each.value, each.key, 0, timestamp_ms=each.timestamp_ms, headers=list(each.headers)
                    )
                    for each in messages
                ]
                await asyncio.gather(*sent)

        asyncio.run(asyncio.wait_for(send(), DEADLINE_S))

    def consume(self, servers: str, topic: str, group: str, count: int) -> list[Message]:
        async def read_all(consumer: Any) -> list[Message]:
            consumer.subscribe([topic])
            found = [await consumer.getone() for _ in range(count)]
            await consumer.commit()
            return [Message(each.value, each.key, tuple(each.headers), each.timestamp) for each in found]

        found: list[Message] = self._consume(servers, group, True, read_all)
        return found

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
                auto_offset_reset="earliest",
                isolation_level="read_committed" if committed else "read_uncommitted",
            )
            await consumer.start()
            try:
                return await asyncio.wait_for(use(consumer), DEADLINE_S)
            finally:
                await consumer.stop()

        return asyncio.run(run())
