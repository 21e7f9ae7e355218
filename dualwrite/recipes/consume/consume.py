"""`ConsumeTransformWrite`: read from Kafka, write to a database and to Kafka, with exactly-once effect per record.

    consumer = KafkaConsumer(group_id="billing", auto_offset_reset="earliest", enable_auto_commit=False,
                             isolation_level="read_committed", ...)
    pipeline = ConsumeTransformWrite(writer, consumer, ["orders"], bill, offsets=OffsetsInDatabase(engine))
    pipeline.run(stopped.is_set)

    def bill(tx, record):
        tx.session.add(Invoice(...))
        tx.send("invoices", key=record.key, value=...)

A step and why it is safe: `dualwrite.recipes.consume.steps`. For asyncio, with aiokafka:
`dualwrite.recipes.consume.consume_async`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from dualwrite.errors import ConfigError
from dualwrite.recipes.consume.consumed_offsets import (
    OffsetPlace,
    OffsetsInDatabase,
    OffsetsInTransaction,
    forget_consumed_offsets,
)
from dualwrite.recipes.consume.consumer_confluent import ConfluentAdapter
from dualwrite.recipes.consume.consumers import ConsumedRecord, ConsumerAdapter, KafkaPythonAdapter
from dualwrite.recipes.consume.steps import ConsumeSteps
from dualwrite.recipes.core import blocking
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


class ConsumeTransformWrite:
    """Passes the records of one consumer to `handle`, in dual writes. For one thread only.

    `consumer` is a `kafka.KafkaConsumer` or a `confluent_kafka.Consumer` that has a group, is not subscribed yet, does
    not commit offsets by itself and reads with `read_committed`. The caller closes it. Up to `max_records` records
    share a dual write.

    `handle(tx, record)` is called for each record in order. If it raises, or if its records cannot be sent, no part of
    the batch is written, and the batch is divided. A record that fails alone is passed to `poison(tx, record, error)`
    in a separate dual write, which may store or send it elsewhere, and is then skipped. If `poison` raises or is not
    given, `step()` and `run()` raise the error, and the record will be read again.

    Database failures not caused by a record (locks, deadlocks, a full disk, a lost connection) make the step repeat for
    about three seconds, then the error is raised. Errors of Kafka and of dual writes are raised at once. A log that is
    not the one consumed before raises ConsumedLogError.
    """

    def __init__(
        self,
        writer: DualWriter,
        consumer: Any,
        topics: Collection[str],
        handle: Handler,
        *,
        offsets: OffsetPlace,
        poison: PoisonHandler | None = None,
        max_records: int = 500,
    ) -> None:
        self._steps = ConsumeSteps(
            writer,
            adapter_of(consumer),
            topics=topics,
            handle=handle,
            offsets=offsets,
            poison=poison,
            max_records=max_records,
        )

    def run(self, stopped: Callable[[], bool]) -> None:
        """Call `step()` until `stopped()` returns True. Raises the errors of `step()`."""
        while not stopped():
            self.step()

    def step(self, timeout_ms: int = POLL_MS) -> int:
        """Poll once, for at most `timeout_ms`, write the records, and return their number.

        After an error it may be called again: it resumes at the last position on which database and Kafka agree, which
        is behind the batch if that was committed after all. Losing a partition to another consumer is not an error.
        """
        return blocking.run(self._steps.step(timeout_ms))


def adapter_of(consumer: Any) -> ConsumerAdapter:
    """Return the adapter for a consumer. Raises ConfigError for another library's, and for unsafe settings."""
    library = type(consumer).__module__.partition(".")[0]
    if library == "kafka":
        return KafkaPythonAdapter(consumer)
    if hasattr(consumer, "consumer_group_metadata"):
        return ConfluentAdapter(consumer)
    raise ConfigError(
        f"consumer takes a kafka.KafkaConsumer or a confluent_kafka.Consumer, not {consumer!r}; nothing was read "
        "(an aiokafka.AIOKafkaConsumer is for AsyncConsumeTransformWrite)"
    )
