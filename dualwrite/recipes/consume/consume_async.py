"""`AsyncConsumeTransformWrite`: `ConsumeTransformWrite` in an event loop, with aiokafka."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any

from dualwrite.recipes.consume.consume import POLL_MS
from dualwrite.recipes.consume.consumed_offsets import OffsetPlace, OffsetsInDatabase, OffsetsInTransaction
from dualwrite.recipes.consume.consumer_aiokafka import AiokafkaAdapter
from dualwrite.recipes.consume.consumers import ConsumedRecord
from dualwrite.recipes.consume.steps import ConsumeSteps
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualTransaction, AsyncDualWriter

__all__ = ["AsyncConsumeTransformWrite", "ConsumedRecord", "OffsetsInDatabase", "OffsetsInTransaction"]

AsyncHandler = Callable[[AsyncDualTransaction, ConsumedRecord], Awaitable[object]]
AsyncPoisonHandler = Callable[[AsyncDualTransaction, ConsumedRecord, Exception], Awaitable[object]]


class AsyncConsumeTransformWrite:
    """`ConsumeTransformWrite` for asyncio: the same settings, rules and errors; `handle` and `poison` are coroutines.

    `consumer` is an `aiokafka.AIOKafkaConsumer` that is started, has a group, is not subscribed yet, does not commit
    offsets by itself and reads with `read_committed`. The caller stops it. `OffsetsInDatabase` takes the AsyncEngine.
    For one task only. A step that is cancelled has written all of its batch or nothing; the next step finds out which
    and continues from there.
    """

    def __init__(
        self,
        writer: AsyncDualWriter,
        consumer: Any,
        topics: Collection[str],
        handle: AsyncHandler,
        *,
        offsets: OffsetPlace,
        poison: AsyncPoisonHandler | None = None,
        max_records: int = 500,
    ) -> None:
        self._steps = ConsumeSteps(
            writer,
            AiokafkaAdapter(consumer),
            topics=topics,
            handle=handle,
            offsets=offsets,
            poison=poison,
            max_records=max_records,
        )

    async def run(self, stopped: Callable[[], bool]) -> None:
        """Call `step()` until `stopped()` returns True. Raises the errors of `step()`."""
        while not stopped():
            await self.step()

    async def step(self, timeout_ms: int = POLL_MS) -> int:
        """Poll once, and write the records, as `ConsumeTransformWrite.step` does. Return their number."""
        return await self._steps.step(timeout_ms)
