"""The adapter for confluent-kafka's consumer. The underscored constants of its KafkaError are its public API."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from importlib import import_module
from typing import Any

from dualwrite.client.records.record import ConsumerGroupMetadata, TopicPartition
from dualwrite.client.transactions.group_metadata import group_of
from dualwrite.errors import KafkaTimeoutError
from dualwrite.recipes.consume.consumers import Batch, Bounds, ConsumedRecord, Positions, StartPositions, no_offset

_log = logging.getLogger(__name__)


async def _call_here(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


class ConfluentAdapter:
    """confluent-kafka's Consumer. Its settings cannot be read back: `enable.auto.commit` must be false.

    Partitions are assigned with their positions, and assigned again to change them, because librdkafka refuses to seek
    a partition that has not started fetching. `call` calls the consumer's methods, all of which may block.
    """

    start: StartPositions
    is_torn = False
    _TIMEOUT_S = 30.0
    _SLICE_S = 0.05

    def __init__(self, consumer: Any, call: Callable[..., Awaitable[Any]] = _call_here) -> None:
        self._consumer = consumer
        self._call = call
        self._library = import_module("confluent_kafka")
        self.group_id = self._membership().group_id
        self._topic: str | None = None
        self._is_cooperative = False
        self._new_partitions: set[TopicPartition] = set()
        self._failure: Exception | None = None
        self._moved: set[TopicPartition] = set()
        self._assigned_at: dict[TopicPartition, int] = {}

    async def subscribe(self, topics: Collection[str]) -> None:
        self._consumer.subscribe(list(topics), on_assign=self.on_assign, on_revoke=self.on_revoke)

    def on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        """Note new partitions, none of which librdkafka may start at the group's own offsets."""
        self._new_partitions |= _named(partitions)
        self._moved |= _named(partitions)
        self._assign([], set())

    def on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        revoked = _named(partitions)
        self._new_partitions -= revoked
        self._moved |= revoked
        if self._is_cooperative:  # librdkafka would refuse to take away new ones, which are not assigned yet
            self._consumer.incremental_unassign(self._at(revoked & _named(self._consumer.assignment()), {}))

    async def _place(self) -> None:
        """Assign the new partitions at their positions. After an error the next poll tries again."""
        new = self._new_partitions.copy()
        self._topic = next(iter(new)).topic
        positions = await self.start(new)
        await self._call(self._assign_anew, new, positions)

    def _assign_anew(self, partitions: set[TopicPartition], positions: Positions) -> None:
        """Assign partitions at their positions, or the group's; after an interruption they count as new."""
        self._new_partitions |= partitions
        self._assign(self._at(partitions, positions), _named(self._consumer.assignment()))
        self._new_partitions -= partitions

    def _assign(self, partitions: list[Any], assigned: set[TopicPartition]) -> None:
        """Assign as the group's protocol requires (KIP-429): librdkafka shows it only by refusing the other way."""
        if not self._is_cooperative:
            given = [*partitions, *self._positions(assigned - _named(partitions))]
            self._assigned_at = {_name(each): each.offset for each in given}
            try:
                self._consumer.assign(given)
            except self._library.KafkaException as error:
                if error.args[0].code() != self._library.KafkaError._STATE:  # noqa: SLF001 - a public constant
                    raise
                self._is_cooperative = True
        if self._is_cooperative:
            if again := [each for each in partitions if _name(each) in assigned]:
                self._consumer.incremental_unassign(again)
            self._consumer.incremental_assign(partitions)

    async def poll(self, timeout_ms: int, max_records: int) -> Batch:
        if self._new_partitions:
            await self._place()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self.is_torn = True
        messages, membership = await self._call(self._poll, timeout_ms / 1000, max_records)
        records = [of_confluent(message) for message in messages if message.error() is None]
        reset = self._library.KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
        stopped = {_of(each) for each in messages if each.error() is not None and each.error().code() == reset}
        if stopped:  # librdkafka reads them no more until they are assigned again
            self._new_partitions |= stopped & await self.assignment()
        failures = [failure for failure in map(self._failure_of, messages) if failure is not None]
        if failures and not records:
            self.is_torn = False
            raise failures[0]
        if failures:  # raised at the next poll, because these records would not be fetched again
            self._failure = failures[0]
        return Batch(records, membership)

    def _poll(self, timeout_s: float, max_records: int) -> tuple[list[Any], ConsumerGroupMetadata]:
        """Return messages, and the membership of the first one."""
        end_s = time.monotonic() + timeout_s
        while True:  # poll() goes on waiting after an assignment
            left_s = end_s - time.monotonic()
            # consume() waits until it has all records asked for, so ask for more only once there is one
            first = self._consumer.poll(max(0, min(left_s, self._SLICE_S)))
            if first is not None or self._new_partitions or left_s <= self._SLICE_S:
                break
        # before consume(), which may run a rebalance, after which the first record belongs to another consumer
        membership = self._membership()
        if first is None:
            return [], membership
        self._moved.clear()
        more = self._consumer.consume(max_records - 1, 0) if max_records > 1 else []
        if first.error() is None and _of(first) in self._moved:
            return more, membership  # after a rebalance, the first record is another consumer's, or comes again
        return [first, *more], membership

    def _failure_of(self, message: Any) -> Exception | None:
        error, codes = message.error(), self._library.KafkaError
        if error is None or error.code() == codes._PARTITION_EOF:  # noqa: SLF001
            return None
        if error.code() == codes._MAX_POLL_EXCEEDED:  # noqa: SLF001
            _log.warning("the consumer took too long between polls and left its group; it rejoins: %s", error.str())
            return None
        if error.code() == codes._AUTO_OFFSET_RESET and message.offset() is None:  # noqa: SLF001
            return no_offset([_of(message)])
        failure: Exception = self._library.KafkaException(error)
        return failure

    async def assignment(self) -> set[TopicPartition]:
        return _named(await self._call(self._consumer.assignment))

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        asked = [self._library.TopicPartition(*each) for each in partitions]
        found = await self._call(self._consumer.committed, asked, self._TIMEOUT_S)
        return {_name(each): each.offset for each in found if each.offset >= 0}

    async def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        found = {}
        for each in partitions:
            asked = self._library.TopicPartition(*each)
            bounds = await self._call(self._consumer.get_watermark_offsets, asked, self._TIMEOUT_S)
            if bounds is None:
                raise KafkaTimeoutError(
                    f"the first and last offsets of {each.topic}-{each.partition} were not received within "
                    f"{self._TIMEOUT_S:.0f} s; nothing was written: try again"
                )
            found[each] = Bounds(*bounds)
        return found

    async def cluster_id(self) -> str | None:
        found: str | None = (await self._call(self._consumer.list_topics, self._topic, self._TIMEOUT_S)).cluster_id
        return found

    async def seek(self, positions: Positions) -> None:
        await self._call(self._seek, positions)
        self.is_torn = False

    def _seek(self, positions: Positions) -> None:
        assigned = _named(self._consumer.assignment())  # to assign another one would take it from its owner
        if sought := assigned if self.is_torn else assigned & positions.keys():
            self._assign_anew(sought, positions)

    def _positions(self, partitions: Collection[TopicPartition]) -> list[Any]:
        """Return the positions; a partition without a record since its assignment is still at its assigned position."""
        found: list[Any] = self._consumer.position(self._at(partitions, {})) if partitions else []
        for each in found:
            if each.offset < 0:
                each.offset = self._assigned_at.get(_name(each), each.offset)
        return found

    def _at(self, partitions: Iterable[TopicPartition], positions: Positions) -> list[Any]:
        """Return the library's own names of partitions, at their positions or at the group's offsets."""
        of_group = self._library.OFFSET_INVALID
        return [self._library.TopicPartition(*each, positions.get(each, of_group)) for each in partitions]

    def _membership(self) -> ConsumerGroupMetadata:
        return group_of(self._consumer.consumer_group_metadata())


def _name(partition: Any) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


def _of(message: Any) -> TopicPartition:
    return TopicPartition(message.topic(), message.partition())


def _named(partitions: Iterable[Any]) -> set[TopicPartition]:
    return set(map(_name, partitions))


def of_confluent(message: Any) -> ConsumedRecord:
    return ConsumedRecord(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        list(message.headers() or ()),
        message.timestamp()[1],
        message,
    )
