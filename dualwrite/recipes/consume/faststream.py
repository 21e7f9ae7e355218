"""`ExactlyOnce`: turns the messages of a FastStream subscriber into dual writes, each record exactly once.

    billing = ExactlyOnce(pool, bill, group_id="billing", offsets=OffsetsInDatabase(engine))

    @billing.subscriber(broker, "orders")
    async def on_orders(message: KafkaMessage) -> None:
        await billing.take(message)

    async def bill(tx, record): ...

FastStream owns the consumer: it assigns partitions, delivers, and goes on behind a message whose subscriber failed. So
its own view of progress is ignored. The row of a partition in `kafka_consumed_offset` is moved in the dual write by
compare-and-set, as in `steps.py`: of two consumers that have the same record, one writes. And the consumer is moved to
the row wherever the two may differ: when it is assigned partitions (`faststream_placing.py`), after a failure, and when
the generation of the group is new.

FastStream must commit no offsets itself: in a partition without a row, failed records before them would be skipped. So
no message is ever acknowledged, and a subscriber that was not made by `subscriber` is refused with its first message.

Not every delivered message reaches the subscriber: FastStream logs errors of its parser, its decoder, a middleware or a
dependency, and goes on. Our parser sees each message first, so one that did not reach `take` is detected, and read
again. Only the middlewares of a broker receive messages before they are parsed: if there are any, `middleware` must be
the first of them.

Both of FastStream's Kafka brokers work, on aiokafka and on confluent-kafka; this module imports neither.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from dualwrite.client.records.record import ConsumerGroupMetadata, TopicPartition
from dualwrite.client.transactions.group_metadata import group_of
from dualwrite.errors import ConfigError, IllegalStateError
from dualwrite.recipes.consume.consume_async import AsyncHandler, AsyncPoisonHandler
from dualwrite.recipes.consume.consumed_logs import WriterTopicIds, first_offsets, offsets_behind
from dualwrite.recipes.consume.consumed_offsets import OffsetsInDatabase
from dualwrite.recipes.consume.consumers import ConsumedRecord, of_confluent, of_kafka_python
from dualwrite.recipes.consume.faststream_placing import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Placing,
    is_of_confluent,
    seek_one,
)
from dualwrite.recipes.consume.steps import RefusedError, blames_records, divided, handle_each
from dualwrite.recipes.consume.tracing import processing
from dualwrite.recipes.core.metrics import Counted, count
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualWriter

_log = logging.getLogger(__name__)

_NOT_BY_FASTSTREAM: Final = "by its dual write"
"""The mark of a message that FastStream must take for acknowledged, so that it commits no offset for it."""


class Message(Protocol):
    """FastStream's KafkaMessage, of either broker."""

    raw_message: Any
    body: Any
    consumer: Any
    committed: Any


class ExactlyOnce:
    """Takes the messages of one FastStream subscriber, which `subscriber` makes.

    `handle(tx, record)` is called for each record in order, in a dual write of all records of a message (several with
    `batch=True`). If a record fails, the message is divided until that record is alone: those before it are written,
    and it is delivered again after a pause, with those behind it. With `poison`, it is passed to `poison(tx, record,
    error)` in a separate dual write, and then skipped.
    """

    def __init__(
        self,
        writer: AsyncDualWriter,
        handle: AsyncHandler,
        *,
        group_id: str,
        offsets: OffsetsInDatabase,
        poison: AsyncPoisonHandler | None = None,
    ) -> None:
        self.group_id: Final = group_id
        """The group of the subscriber, which is also the group of the rows."""
        self._writer = writer
        self._handle = handle
        self._offsets = offsets.of_one_consumer()
        self._poison = poison
        self._next: dict[TopicPartition, int] = {}
        """Current positions of partitions read without a gap since their row was last seen."""
        self._sought: dict[TopicPartition, int] = {}
        """Offsets to which the consumer was moved, and from which it has delivered no record yet."""
        self._followed: dict[TopicPartition, tuple[int, int]] = {}
        """The offset to which the consumer was last moved, and the first one delivered then: neighbours in the log."""
        self._unwritten: dict[TopicPartition, int] = {}
        """Offsets of the first delivered records that are not known to be written."""
        self._sees_receipts = True
        """Whether no middleware can drop a message before it is noted here."""
        self._placing = Placing(group_id, offsets, WriterTopicIds(writer))
        self._busy: set[TopicPartition] = set()
        self._refused: set[TopicPartition] = set()
        """The busy partitions of which a later message was refused."""
        self._generation = -1
        self._failures = 0

    def subscriber(self, broker: Any, *topics: str, **settings: Any) -> Callable[[Callable[..., Any]], Any]:
        """Return a subscriber of a FastStream broker or router, which decorates the function that calls `take`.

        `settings` are those of `broker.subscriber()`, for example `batch=True`, except for those that the guarantees
        depend on. By default `auto_offset_reset` is "earliest" and `isolation_level` "read_committed". Raises
        ConfigError for an excluded setting, and if there is a subscriber already.
        """
        from faststream import AckPolicy

        own = {
            "group_id": self.group_id,
            "ack_policy": AckPolicy.MANUAL,
            "parser": self._parse,
            "decoder": _body_of,
        }
        subscriber: Callable[[Callable[..., Any]], Any] = self._placing.subscribe(broker, topics, own, settings)
        return subscriber

    def middleware(self, raw: Any, /, *, context: Any) -> Any:
        """Note that a message is delivered, before the middlewares behind this one can drop it.

        For a broker that has middlewares: `KafkaBroker(..., middlewares=[billing.middleware, ...])`.
        """
        subscriber = context.get_local("handler_")
        if getattr(subscriber, "group_id", None) == self.group_id:
            for partition, offset in first_offsets(_records_of(raw)).items():
                self._delivered(partition, offset)
        return _Receipt()

    async def _parse(self, raw: Any, parse: Callable[[Any], Awaitable[Message]]) -> Message:
        """Note that a message is delivered, and parse it as FastStream does, without unreadable headers.

        Handlers get the original headers.
        """
        self._sees_receipts = self._is_first(self._placing.subscriber._broker_middlewares)  # noqa: SLF001
        for partition, offset in first_offsets(_records_of(raw)).items():
            self._delivered(partition, offset)
        message = await _parsed(raw, parse)
        message.committed = _NOT_BY_FASTSTREAM
        return message

    def _is_first(self, middlewares: Sequence[Any]) -> bool:
        """Return whether the middlewares of other owners are all behind `middleware`."""
        for each in middlewares:
            if each == self.middleware:
                return True
            if not isinstance(getattr(each, "__self__", None), ExactlyOnce):
                return False
        return True

    def _delivered(self, partition: TopicPartition, offset: int) -> None:
        sought = self._sought.pop(partition, None)
        unwritten = self._unwritten.get(partition, offset)
        if sought is not None:
            self._followed[partition] = sought, offset
        self._unwritten[partition] = min(offset, unwritten)

    async def take(self, message: Message) -> None:
        """Write the unwritten records of the message. Raises the errors of the handler and the dual write.

        After an error neither side has the failed record or those behind it (after `OutcomeUnknown` that is not known
        yet), and the consumer is moved back: they are delivered again, here or to the next consumer of the partition.
        """
        records = _records_of(message.raw_message)
        first = first_offsets(records)
        try:
            if message.committed is not _NOT_BY_FASTSTREAM:
                raise ConfigError(_FOREIGN)
            with self._alone(first):
                await self._take(message, records, first)
        except BaseException as error:
            for partition, offset in first.items():
                self._unwritten[partition] = min(offset, self._unwritten.get(partition, offset))
            self._forget(first)
            if isinstance(error, Exception):
                await self._pause()
            await self._seek(message, first)
            raise
        self._failures = 0

    @contextmanager
    def _alone(self, partitions: Mapping[TopicPartition, int]) -> Iterator[None]:
        """Refuse a second message of a partition while one is being written: the later one could be written first."""
        if not self._busy.isdisjoint(partitions):
            self._refused |= self._busy & partitions.keys()
            raise IllegalStateError(
                f"a message of {', '.join(map(_name, sorted(partitions)))} was delivered while another one of the same "
                "partition is being written; this one was not written, and the partition is read again: leave the "
                "subscriber's max_workers at 1"
            )
        self._busy.update(partitions)
        try:
            yield
        finally:
            self._busy.difference_update(partitions)
            self._refused.difference_update(partitions)

    async def _take(
        self, message: Message, records: Sequence[ConsumedRecord], first: Mapping[TopicPartition, int]
    ) -> None:
        if not self._sees_receipts:
            raise IllegalStateError(_NO_MIDDLEWARE)
        generation = _membership(message).generation_id
        if generation != self._generation or generation < 0:  # others may have had the partitions meanwhile
            self._generation = generation
            self._forget([*self._next, *self._sought, *self._followed])
        unknown = first.keys() - self._next.keys()
        if unknown:
            rows = await self._offsets.resume_positions(self, unknown)  # type: ignore[arg-type]  # needs group_id only
            self._next.update(rows)
        await self._placing.check(first, self._next)
        skipped = self._skipped(unknown, first)
        if skipped:
            await self._read_again(message, first, skipped)
            return
        await self._write(records)
        for partition in first:
            self._unwritten.pop(partition, None)
            self._followed.pop(partition, None)
        self._unwritten.update({each: self._next[each] for each in self._refused & first.keys()})
        after = offsets_behind(records)
        ahead = {each: self._next[each] for each in first if self._next[each] > after[each]}
        if ahead:  # the message began before the row; everything up to the row is written
            await self._seek(message, ahead)

    def _skipped(
        self, unknown: Collection[TopicPartition], first: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return where to read again, in partitions whose delivery may have left records out.

        If the consumer was moved there already, the gap is in the log itself: markers, compaction, retention.
        """
        found: dict[TopicPartition, int] = {}
        for partition, offset in first.items():
            unwritten, row = self._unwritten.get(partition), self._next.get(partition)
            expected = row if partition in unknown else None
            if unwritten is not None and (row is None or unwritten >= row):
                expected = unwritten if expected is None else min(unwritten, expected)
            if expected is not None and expected < offset and self._followed.get(partition) != (expected, offset):
                found[partition] = expected
        return found

    async def _read_again(
        self, message: Message, first: Mapping[TopicPartition, int], skipped: Mapping[TopicPartition, int]
    ) -> None:
        """Move the consumer back to the skipped records; pause first if they were delivered but not taken."""
        dropped = {each: at for each, at in skipped.items() if self._followed.get(each) == (at, at)}
        self._forget(first)
        for partition, offset in dropped.items():
            _log.error(
                "the message at %s@%d is delivered again and again without reaching take(); FastStream's log has the "
                "reason. Later messages of the partition wait behind it",
                _name(partition),
                offset,
            )
        if dropped:
            await self._pause()
        await self._seek(message, {**first, **skipped})

    async def _write(self, records: Sequence[ConsumedRecord]) -> None:
        """Write records in as few dual writes as possible; divide a batch around the record that makes it fail."""
        batches = [records]
        while batches:
            batch = self._not_written(batches.pop())
            if not batch:
                continue
            try:
                await self._write_batch(batch, self._handle_all)
            except Exception as error:
                refused = error if isinstance(error, RefusedError) else RefusedError(error, None)
                if not blames_records(refused.error) or (len(batch) == 1 and self._poison is None):
                    raise refused.error from None
                partitions = {record.topic_partition for record in batch}
                self._next.update(await self._offsets.resume_positions(self, partitions))  # type: ignore[arg-type]
                if len(batch) > 1:
                    batches.extend(reversed(divided(batch, refused.index)))
                elif self._not_written(batch):
                    await self._set_aside(batch[0], refused.error)
            else:
                count(Counted.CONSUMED, len(batch), outcome="written")

    def _not_written(self, records: Sequence[ConsumedRecord]) -> list[ConsumedRecord]:
        """Return the records behind the rows: a dual write may be decided in spite of its error."""
        return [record for record in records if record.offset >= self._next.get(record.topic_partition, 0)]

    async def _handle_all(self, tx: Any, records: Sequence[ConsumedRecord]) -> None:
        await handle_each(self._handle, tx, records, self.group_id)

    async def _set_aside(self, record: ConsumedRecord, error: Exception) -> None:
        poison = self._poison
        assert poison is not None, "without it the error is raised"

        async def handle(tx: Any, _: Sequence[ConsumedRecord]) -> None:
            with processing(record, self.group_id):
                await poison(tx, record, error)

        await self._write_batch([record], handle)
        count(Counted.CONSUMED, outcome="poison")
        _log.error("record %s was set aside", record, exc_info=error)

    async def _write_batch(
        self, records: Sequence[ConsumedRecord], handle: Callable[[Any, Sequence[ConsumedRecord]], Awaitable[object]]
    ) -> None:
        """Write a batch in one dual write, its rows first: a consumer that has lost the partition fails there."""
        behind = offsets_behind(records)
        async with self._writer.transaction() as tx:
            await self._offsets.move(tx, ConsumerGroupMetadata(self.group_id), behind, self._placing.topic_ids)
            await handle(tx, records)
        self._offsets.moved(behind)
        self._next.update(behind)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Trust only the rows again."""
        for partition in partitions:
            self._next.pop(partition, None)
            self._sought.pop(partition, None)
            self._followed.pop(partition, None)

    async def _pause(self) -> None:
        """Wait a moment, longer with each failure, so that a record that cannot be written does not fill the log."""
        pause_s = min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
        self._failures += 1
        await asyncio.sleep(pause_s)

    async def _seek(self, message: Message, positions: Mapping[TopicPartition, int]) -> None:
        """Move the consumer to these offsets; skip a partition that it has lost to another consumer."""
        for partition, offset in positions.items():
            try:
                await seek_one(message.consumer, partition, offset)
            except Exception as error:  # of the library: the next delivery is compared with the row
                _log.info("%s could not be rewound to offset %d: %s", _name(partition), offset, error)
            else:
                self._sought[partition] = offset


# ---- FastStream's messages, of either library -----------------------------------------------------------------------


class _Receipt:
    """A middleware that does nothing, for one message: FastStream requires one."""

    async def __aenter__(self) -> _Receipt:
        return self

    async def __aexit__(self, *error: object) -> bool:
        return False

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], message: Any) -> Any:
        return await call_next(message)

    async def publish_scope(self, call_next: Callable[[Any], Awaitable[Any]], command: Any) -> Any:
        return await call_next(command)


async def _parsed(raw: Any, parse: Callable[[Any], Awaitable[Message]]) -> Message:
    try:
        return await parse(raw)
    except Exception as error:
        _log.debug("FastStream cannot decode the headers of a message, which arrives without them: %s", error)
    message = await parse(tuple(map(_Headerless, raw)) if isinstance(raw, tuple) else _Headerless(raw))
    message.raw_message = raw
    return message


async def _body_of(message: Message) -> Any:
    """Leave the body as it is: handlers get bytes. FastStream's own decoder may fail."""
    return message.body


class _Headerless:
    """A record of either library without its headers, which FastStream would decode as UTF-8 text."""

    def __init__(self, record: Any) -> None:
        self._record = record

    @property
    def headers(self) -> Any:
        return list if callable(self._record.headers) else ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)


def _membership(message: Message) -> ConsumerGroupMetadata:
    if is_of_confluent(message.consumer):
        return group_of(message.consumer.consumer.consumer_group_metadata())
    return group_of(message.consumer)


def _records_of(raw: Any) -> list[ConsumedRecord]:
    several = raw if isinstance(raw, tuple) else (raw,)
    return [of_confluent(each) if callable(each.topic) else of_kafka_python(each) for each in several]


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


_FOREIGN: Final = (
    "the subscriber was not made by this ExactlyOnce, so FastStream may commit offsets itself, skip a failed record, "
    "or write a record twice; nothing was written, and the messages are read again: make it with "
    "ExactlyOnce.subscriber(broker, topic)"
)

_NO_MIDDLEWARE: Final = (
    "the broker's middlewares receive messages before they are parsed, and one that fails would drop its message "
    "silently; nothing was written, and the message is read again: pass the middleware of this ExactlyOnce to the "
    "broker, before the others"
)
