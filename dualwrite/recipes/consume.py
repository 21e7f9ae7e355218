"""`ConsumeTransformWrite`: read from Kafka, write a database and Kafka, each input record in effect exactly once.

    consumer = KafkaConsumer(group_id="billing", enable_auto_commit=False, isolation_level="read_committed", ...)
    pipeline = ConsumeTransformWrite(writer, consumer, ["orders"], bill, offsets=OffsetsInDatabase(engine))
    pipeline.run(stopped.is_set)

    def bill(tx, record):
        tx.session.add(Invoice(...))
        tx.send("invoices", key=record.key, value=...)

A batch of records is one dual write, and the offsets behind it are a part of that: the data, the records that were
sent and the progress are committed by one decision. How the two places of offsets keep out a consumer that has lost its
partitions: `dualwrite.recipes.consumed_offsets` and docs/consume.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from sqlalchemy.exc import DBAPIError

from dualwrite.client.records import ConsumerGroupMetadata, TopicPartition
from dualwrite.errors import DualWriteError
from dualwrite.recipes.consumed_offsets import OffsetPlace, OffsetsInDatabase, OffsetsInTransaction
from dualwrite.recipes.consumer_side import ConsumedRecord, side_of
from dualwrite.recipes.slot import SlotState
from dualwrite.recipes.sqlalchemy import DualTransaction, DualWriter
from dualwrite.recipes.telemetry import count_consumed

__all__ = ["ConsumeTransformWrite", "ConsumedRecord", "OffsetsInDatabase", "OffsetsInTransaction"]

_log = logging.getLogger(__name__)

_POLL_MS: Final = 500

Handler = Callable[[DualTransaction, ConsumedRecord], object]
PoisonHandler = Callable[[DualTransaction, ConsumedRecord, Exception], object]


class Writer(Protocol):
    """A DualWriter, or a pool of them."""

    def transaction(self) -> AbstractContextManager[DualTransaction]: ...


class _RefusedRecordError(Exception):
    """The handler raised, and did so because of this record."""

    def __init__(self, record: ConsumedRecord, error: Exception) -> None:
        super().__init__(record, error)
        self.record = record
        self.error = error


class ConsumeTransformWrite:
    """Carries what one consumer reads through `handle` into dual writes. For one thread.

    `consumer` is a `kafka.KafkaConsumer` or a `confluent_kafka.Consumer` with a group, not subscribed yet, that does
    not commit offsets by itself and reads with `read_committed`. It stays the caller's to close. Up to `max_records`
    records are one dual write.

    `handle(tx, record)` is called for each record in order. Where it raises, nothing of its batch is written, and the
    records are tried one by one; one that raises again by itself goes to `poison(tx, record, error)` in a dual write
    of its own, which may store or send it elsewhere, and is then passed over. Raising there, or without `poison`, ends
    `step()` and `run()` with the error, and the record will be read again. Errors of dual writes, and of a database
    connection that is gone, are nobody's fault of a record and are raised at once.
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
        self._writer = writer
        self._consumer = side_of(consumer)
        self._topics = topics
        self._handle = handle
        self._offsets = offsets
        self._poison = poison
        self._max_records = max_records
        self._subscribed = False
        self._lost_its_place = False
        self._go_on_at: dict[TopicPartition, int] = {}
        self._membership: ConsumerGroupMetadata

    def run(self, stopped: Callable[[], bool]) -> None:
        """Take step after step until `stopped()`. Raises what `step()` raises."""
        while not stopped():
            self.step()

    def step(self, timeout_ms: int = _POLL_MS) -> int:
        """Read once, for `timeout_ms` at the most, and write what came; how many input records that was.

        After an error it may be called again: it goes on where both sides say, which may be behind the batch if that
        was committed after all. A partition that another consumer has taken over is no error.
        """
        self._get_ready()
        polled, membership = self._consumer.poll(timeout_ms, self._max_records)
        records = [record for record in polled if not self._offsets.is_behind(record.topic_partition, record.offset)]
        if not records:
            return 0
        self._go_on_at = _first_offsets(records)
        self._membership = membership
        try:
            self._write(records)
        except BaseException as error:
            self._lost_its_place = True  # the consumer is ahead of what is written
            if not self._offsets.lost_membership(error):
                raise
            _log.info("another consumer has the partitions; what was read here is left to it: %s", error)
            return 0
        return len(records)

    def _get_ready(self) -> None:
        """What this transactional id left open comes first: it may hold the very offsets that are asked for."""
        if self._subscribed and not self._lost_its_place:
            return
        if isinstance(self._writer, DualWriter) and self._writer.state is not SlotState.READY:
            self._writer.recover()
        if not self._subscribed:
            self._consumer.subscribe(self._topics, lambda new: self._offsets.start(self._consumer, new))
            self._subscribed = True
        if self._lost_its_place:
            assigned = self._consumer.assignment()
            positions = {**self._go_on_at, **self._offsets.where_to_go_on(self._consumer, assigned)}
            self._consumer.go_on_at({each: positions[each] for each in assigned if each in positions})
            self._lost_its_place = False

    def _write(self, records: Sequence[ConsumedRecord]) -> None:
        try:
            self._write_together(records, self._handle_all)
        except _RefusedRecordError as refused:
            if len(records) == 1:
                self._set_aside(refused)
                return
            _log.warning("%s was refused; its batch of %d is tried one by one", _name(refused.record), len(records))
            for record in records:
                self._write([record])
        else:
            count_consumed("written", len(records))

    def _write_together(
        self, records: Sequence[ConsumedRecord], handle: Callable[[DualTransaction, Iterable[ConsumedRecord]], None]
    ) -> None:
        """One dual write, with the offsets first: who may not write finds out before any work is done."""
        next_offsets = _next_offsets(records)
        with self._writer.transaction() as tx:
            self._offsets.move(tx, self._membership, next_offsets)
            handle(tx, records)
        self._offsets.moved(next_offsets)
        self._go_on_at.update(next_offsets)

    def _handle_all(self, tx: DualTransaction, records: Iterable[ConsumedRecord]) -> None:
        for record in records:
            try:
                self._handle(tx, record)
            except Exception as error:
                if _is_nobodys_fault(error):
                    raise
                raise _RefusedRecordError(record, error) from error

    def _set_aside(self, refused: _RefusedRecordError) -> None:
        poison = self._poison
        if poison is None:
            raise refused.error
        self._write_together([refused.record], lambda tx, _: _ignore(poison(tx, refused.record, refused.error)))
        count_consumed("poison", 1)
        _log.error("%s was set aside", _name(refused.record), exc_info=refused.error)


def _is_nobodys_fault(error: Exception) -> bool:
    return isinstance(error, DualWriteError) or (isinstance(error, DBAPIError) and error.connection_invalidated)


def _first_offsets(records: Iterable[ConsumedRecord]) -> dict[TopicPartition, int]:
    first: dict[TopicPartition, int] = {}
    for record in records:
        first.setdefault(record.topic_partition, record.offset)
    return first


def _next_offsets(records: Iterable[ConsumedRecord]) -> Mapping[TopicPartition, int]:
    return {record.topic_partition: record.offset + 1 for record in records}


def _name(record: ConsumedRecord) -> str:
    return f"record {record.topic}-{record.partition}@{record.offset}"


def _ignore(result: object) -> None:
    return None
