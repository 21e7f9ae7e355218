"""The adapter for confluent-kafka's consumer. The underscored constants of its KafkaError are its public API."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from importlib import import_module
from typing import Any

from dualwrite.client.records.record import ConsumerGroupMetadata, TopicPartition
from dualwrite.client.transactions.group_metadata import group_of
from dualwrite.errors import KafkaTimeoutError
from dualwrite.recipes.consume.consumers import Batch, Bounds, ConsumedRecord, StartPositions

_log = logging.getLogger(__name__)


async def _call_here(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


class ConfluentAdapter:
    """confluent-kafka's Consumer. Its settings cannot be read back: `enable.auto.commit` must be false.

    Partitions are assigned with their positions, and assigned again to change them, because librdkafka refuses to seek
    a partition that has not started fetching. `call` calls the consumer's methods, all of which may block.
    """

    start: StartPositions
    _TIMEOUT_S = 30.0
    _SLICE_S = 0.05

    def __init__(self, consumer: Any, call: Callable[..., Awaitable[Any]] = _call_here) -> None:
        self._consumer = consumer
        self._call = call
        self._library = import_module("confluent_kafka")
        self.group_id = self._membership().group_id
        self._topic: str
        self._is_cooperative = False
        self._new_partitions: list[Any] = []
        self._failure: Any = None
        self._moved: set[TopicPartition] = set()
        self._assigned_at: dict[TopicPartition, int] = {}

    async def subscribe(self, topics: Collection[str]) -> None:
        self._consumer.subscribe(list(topics), on_assign=self.on_assign, on_revoke=self.on_revoke)

    def on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        """Note new partitions, none of which librdkafka may start at the group's own offsets."""
        self._assign([])
        self._new_partitions += partitions
        self._moved.update(_named(partitions))

    def on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        revoked = _named(partitions)
        self._new_partitions = [each for each in self._new_partitions if _name(each) not in revoked]
        self._moved.update(revoked)
        assigned = [each for each in partitions if self._assigned_at.pop(_name(each), None) is not None]
        if self._is_cooperative:  # librdkafka would refuse to take away new ones, which are not assigned yet
            self._consumer.incremental_unassign(assigned)

    async def _place(self) -> None:
        """Assign the new partitions at their positions. After an error the next poll tries again."""
        partitions = self._new_partitions
        self._topic = partitions[0].topic
        positions = await self.start(_named(partitions))
        for each in partitions:
            each.offset = positions.get(_name(each), each.offset)
        await self._call(self._assign, partitions)
        self._assigned_at.update({_name(each): each.offset for each in partitions})
        self._new_partitions = []

    def _assign(self, partitions: list[Any]) -> None:
        """Assign as the group's protocol requires (KIP-429): librdkafka shows it only by refusing the other way."""
        try:
            self._consumer.assign(partitions)
        except self._library.KafkaException as error:
            if error.args[0].code() != self._library.KafkaError._STATE:  # noqa: SLF001 - a public constant
                raise
            self._is_cooperative = True
            self._consumer.incremental_assign(partitions)

    async def poll(self, timeout_ms: int, max_records: int) -> Batch:
        if self._new_partitions:
            await self._place()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise self._library.KafkaException(failure)
        messages, membership = await self._call(self._poll, timeout_ms / 1000, max_records)
        records = [of_confluent(message) for message in messages if message.error() is None]
        errors = [message.error() for message in messages if self._is_failure(message)]
        if errors and not records:
            raise self._library.KafkaException(errors[0])
        if errors:  # raised at the next poll, because these records would not be fetched again
            self._failure = errors[0]
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
        if first.error() is None and TopicPartition(first.topic(), first.partition()) in self._moved:
            return more, membership  # after a rebalance, the first record is another consumer's, or comes again
        return [first, *more], membership

    def _is_failure(self, message: Any) -> bool:
        error = message.error()
        if error is None or error.code() == self._library.KafkaError._PARTITION_EOF:  # noqa: SLF001 - a public constant
            return False
        if error.code() == self._library.KafkaError._MAX_POLL_EXCEEDED:  # noqa: SLF001 - a public constant
            _log.warning("the consumer took too long between polls and left its group; it rejoins: %s", error.str())
            return False
        return True

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

    async def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        if positions:
            await self._call(self._seek, positions)

    def _seek(self, positions: Mapping[TopicPartition, int]) -> None:
        assigned = _named(self._consumer.assignment())  # to assign another one would take it from its owner
        positions = {each: offset for each, offset in positions.items() if each in assigned}
        if not positions:
            return
        self._assigned_at.update(positions)
        given = [self._library.TopicPartition(*partition, offset) for partition, offset in positions.items()]
        if self._is_cooperative:
            self._consumer.incremental_unassign([self._library.TopicPartition(*each) for each in positions])
            self._consumer.incremental_assign(given)
            return
        others = self._positions(assigned - positions.keys())
        self._consumer.assign([*given, *others])
        self._assigned_at.update({_name(each): each.offset for each in others if each.offset >= 0})

    def _positions(self, partitions: Collection[TopicPartition]) -> list[Any]:
        """Return the positions; a partition without a record since its assignment is still at its assigned position."""
        found: list[Any] = self._consumer.position([self._library.TopicPartition(*each) for each in partitions])
        for each in found:
            if each.offset < 0:
                each.offset = self._assigned_at.get(_name(each), each.offset)
        return found

    def _membership(self) -> ConsumerGroupMetadata:
        return group_of(self._consumer.consumer_group_metadata())


def _name(partition: Any) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


def _named(partitions: Iterable[Any]) -> set[TopicPartition]:
    return set(map(_name, partitions))


def of_confluent(message: Any) -> ConsumedRecord:
    """Return a message of confluent-kafka that is not an error."""
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
