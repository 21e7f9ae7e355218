"""`ConsumeTransformWrite`: read from Kafka, write a database and Kafka, each input record in effect exactly once.

    consumer = KafkaConsumer(group_id="billing", auto_offset_reset="earliest", enable_auto_commit=False,
                             isolation_level="read_committed", ...)
    pipeline = ConsumeTransformWrite(writer, consumer, ["orders"], bill, offsets=OffsetsInDatabase(engine))
    pipeline.run(stopped.is_set)

    def bill(tx, record):
        tx.session.add(Invoice(...))
        tx.send("invoices", key=record.key, value=...)

What a step does, and why it is safe: `dualwrite.recipes.consume.steps`. In an event loop, with aiokafka:
`dualwrite.recipes.consume.consume_async`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, Final, Protocol

from dualwrite.recipes.consume.consumed_offsets import (
    OffsetPlace,
    OffsetsInDatabase,
    OffsetsInTransaction,
    forget_consumed_offsets,
)
from dualwrite.recipes.consume.consumer_side import ConsumedRecord, side_of
from dualwrite.recipes.consume.steps import ConsumeSteps
from dualwrite.recipes.consume.topic_ids import WritersTopicIds
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter

__all__ = [
    "ConsumeTransformWrite",
    "ConsumedRecord",
    "OffsetsInDatabase",
    "OffsetsInTransaction",
    "forget_consumed_offsets",
]

POLL_MS: Final = 500

Handler = Callable[[DualTransaction, ConsumedRecord], object]
PoisonHandler = Callable[[DualTransaction, ConsumedRecord, Exception], object]


class Writer(Protocol):
    """A DualWriter, or a pool of them."""

    def transaction(self) -> AbstractContextManager[DualTransaction]: ...


class _BlockingWriter:
    """`WriterSide` of a writer for threads."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[DualWrite]:
        with self._writer.transaction() as tx:
            yield tx

    async def recover(self) -> None:
        if isinstance(self._writer, DualWriter) and self._writer.state is not SlotState.READY:
            self._writer.recover()


class ConsumeTransformWrite:
    """Carries what one consumer reads through `handle` into dual writes. For one thread.

    `consumer` is a `kafka.KafkaConsumer` or a `confluent_kafka.Consumer` with a group, not subscribed yet, that does
    not commit offsets by itself and reads with `read_committed`. It stays the caller's to close. Up to `max_records`
    records are one dual write.

    `handle(tx, record)` is called for each record in order. Where it raises, or its records cannot be sent, nothing of
    its batch is written, and the batch is divided; a record that fails by itself goes to `poison(tx, record, error)` in
    a dual write of its own, which may store or send it elsewhere, and is then passed over. Raising there, or without
    `poison`, ends `step()` and `run()` with the error, and the record will be read again.

    Trouble of the database (locks, deadlocks, a full disk, a lost connection) is not the fault of a record: the step is
    repeated for about three seconds, then the error is raised. Errors of Kafka and of dual writes are raised at once.
    A log that is not the one that was consumed before is a ConsumedLogError.
    """

    def __init__(
        self,
        writer: Writer,
        consumer: Any,
        topics: Collection[str],
        handle: Handler,
        *,
        offsets: OffsetPlace,
        poison: PoisonHandler | None = None,
        max_records: int = 500,
    ) -> None:
        async def handled(tx: DualTransaction, record: ConsumedRecord) -> None:
            handle(tx, record)

        async def set_aside(tx: DualTransaction, record: ConsumedRecord, error: Exception) -> None:
            if poison is not None:
                poison(tx, record, error)

        self._steps = ConsumeSteps(
            _BlockingWriter(writer),
            side_of(consumer),
            topics,
            handled,
            offsets=offsets,
            poison=None if poison is None else set_aside,
            max_records=max_records,
            look_up=WritersTopicIds.blocking(writer),
            sleep=blocking.sleep,
        )

    def run(self, stopped: Callable[[], bool]) -> None:
        """Take step after step until `stopped()`. Raises what `step()` raises."""
        while not stopped():
            self.step()

    def step(self, timeout_ms: int = POLL_MS) -> int:
        """Read once, for `timeout_ms` at the most, and write what came; how many input records that was.

        After an error it may be called again: it goes on where both sides say, which may be behind the batch if that
        was committed after all. A partition that another consumer has taken over is no error.
        """
        return blocking.run(self._steps.step(timeout_ms))
