"""Kafka's side of the dual writes under one transactional id, for asyncio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dualwrite.async_producer import AsyncProducer
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.buffer import BufferedOffsets, BufferedRecord


class AsyncKafkaParticipant:
    """`KafkaParticipant` with the producer for asyncio. It is bound to the event loop of its take-over."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._producer: AsyncProducer | None = None

    async def take_over(self, kafka_id: str) -> PreparedTxnState:
        await self.give_up()
        producer = self._producer = AsyncProducer(**self._settings, transactional_id=kafka_id)
        await producer.init_transactions(keep_prepared_txn=True)
        return producer.prepared_txn_state

    async def complete(self, row: PreparedTxnState) -> None:
        await self._live.complete_before_fencing(row)

    async def own(self) -> None:
        await self._live.fence_others()

    async def is_current(self) -> bool:
        return await self._live.is_current()

    @property
    def bounded_ms(self) -> int | None:
        return self._live.bounded_ms

    @property
    def next_state(self) -> PreparedTxnState:
        return self._live.next_prepared_state

    async def begin(self) -> None:
        await self._live.begin_transaction()

    async def send(self, entries: Iterable[BufferedRecord | BufferedOffsets], after_each: Callable[[], None]) -> None:
        producer = self._live
        for entry in entries:
            if isinstance(entry, BufferedOffsets):
                await producer.send_offsets_to_transaction(entry.offsets, entry.group_metadata)
                continue
            entry.fate = await producer.send_checked(
                entry.topic, entry.value, entry.key, entry.headers, entry.partition, entry.timestamp_ms
            )
            after_each()

    async def prepare(self) -> PreparedTxnState:
        return await self._live.prepare_transaction()

    def start_commit(self) -> None:
        self._live.start_commit()

    async def commit(self) -> None:
        await self._live.commit_transaction()

    async def abort(self) -> None:
        await self._live.abort_transaction()

    async def give_up(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(timeout_s=0)

    @property
    def _live(self) -> AsyncProducer:
        assert self._producer is not None, "no producer: the id was not taken over"
        return self._producer
