"""A consumer of aiokafka, as consume-transform-dual-write needs it.

aiokafka asks for a group's offsets in a way that does not wait for transactions which are still to be completed
(OffsetFetch before version 7, KIP-447): after a crash between the two commits it would give out records again whose
consumption is decided. So their stable offsets are asked for here, on its own connection to the coordinator.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka import TopicPartition as Partition
from aiokafka.errors import KafkaError, NoOffsetForPartitionError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from dualwrite.client.records.record import ConsumerGroupMetadata, TopicPartition
from dualwrite.client.transactions.group_metadata import group_of
from dualwrite.errors import ConfigError, KafkaTimeoutError
from dualwrite.recipes.consume.consumer_side import (
    AUTO_COMMIT,
    DESERIALIZERS,
    READ_UNCOMMITTED,
    Batch,
    Bounds,
    ConsumedRecord,
    Start,
)

_OFFSET_FETCH: Final = 9
_NO_OFFSET: Final = -1
_UNSTABLE_OFFSET_COMMIT: Final = 88
_RETRY_S: Final = 0.05
_TIMEOUT_S: Final = 30.0


class _OffsetFetchResponse(Response):
    API_KEY = _OFFSET_FETCH
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition_index", Int32),
                        ("committed_offset", Int64),
                        ("committed_leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class _OffsetFetchRequest(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = _OFFSET_FETCH
    API_VERSION = 7
    RESPONSE_TYPE = _OffsetFetchResponse
    SCHEMA = Schema(
        ("group_id", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")), ("partition_indexes", CompactArray(Int32)), ("tags", TaggedFields)
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


class _StableOffsets(Request[_OffsetFetchRequest]):
    API_KEY = _OFFSET_FETCH

    def __init__(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        self._group_id = group_id
        self._by_topic: dict[str, list[int]] = {}
        for partition in partitions:
            self._by_topic.setdefault(partition.topic, []).append(partition.partition)

    def build(self, request_struct_class: type[_OffsetFetchRequest]) -> _OffsetFetchRequest:
        no_tags: dict[int, bytes] = {}
        topics = [(topic, partitions, no_tags) for topic, partitions in self._by_topic.items()]
        return request_struct_class(self._group_id, topics, True, no_tags)


class AiokafkaSide:
    """aiokafka's AIOKafkaConsumer, started.

    Its rebalance listener runs in a task of the library, so it just takes note, and the positions are set after the
    poll that it was called in, whose records are dropped where others are wanted.
    """

    def __init__(self, consumer: Any) -> None:
        if not isinstance(consumer, AIOKafkaConsumer):
            raise ConfigError(f"consumer takes an aiokafka.AIOKafkaConsumer, not {consumer!r}; nothing was read")
        if consumer._enable_auto_commit:
            raise ConfigError(AUTO_COMMIT)
        if consumer._isolation_level != "read_committed":
            raise ConfigError(READ_UNCOMMITTED)
        if consumer._key_deserializer or consumer._value_deserializer:
            raise ConfigError(DESERIALIZERS)
        if consumer._group_id is None:
            raise ConfigError("the consumer has no group, whose partitions it would share; nothing was read")
        self._consumer: Any = consumer
        self._unplaced: set[TopicPartition] = set()

    async def subscribe(self, topics: Collection[str], start: Start) -> None:
        unplaced = self._unplaced

        class Listener(ConsumerRebalanceListener):
            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                unplaced.difference_update(TopicPartition(*each) for each in revoked)

            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                unplaced.update(TopicPartition(*each) for each in assigned)

        self._start = start
        self._consumer.subscribe(list(topics), listener=Listener())

    async def poll(self, timeout_ms: int, max_records: int) -> Batch:
        found: Mapping[Any, list[Any]] = {}
        try:
            async with asyncio.timeout(timeout_ms / 1000 + 1):  # it waits for the end of a rebalance without limit
                found = await self._consumer.getmany(timeout_ms=timeout_ms, max_records=max_records)
        except TimeoutError:
            """Nothing was taken out of its buffers."""
        except NoOffsetForPartitionError:  # with auto_offset_reset="none": the group has none, others may be kept
            if not await self._place(timeout_ms / 1000):
                raise
        membership = self._membership()  # before anything else is awaited, during which it may be lost
        first = {TopicPartition(*each): records[0].offset for each, records in found.items()}
        try:
            placed = await self._place(timeout_ms / 1000)
        except BaseException:
            self.go_on_at(first)
            raise
        if placed is None:
            self.go_on_at(first)
            return Batch([], membership)
        records = [
            _of_aiokafka(record)
            for partition, records in found.items()
            if TopicPartition(*partition) not in placed
            for record in records
        ]
        return Batch(records, membership)

    async def _place(self, timeout_s: float) -> Collection[TopicPartition] | None:
        """Set what was assigned to its positions; None where those are not stable yet. Stays to be done then, and where
        this raises."""
        if not self._unplaced:
            return ()
        new = frozenset(self._unplaced)
        try:
            stable = await self._stable_offsets(new, timeout_s)
        except KafkaTimeoutError:
            return None
        positions = {**stable, **await self._start(new)}
        if not new <= self._unplaced:
            return None  # a rebalance has come in between
        self.go_on_at(positions)
        self._unplaced -= new
        return positions.keys()

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(*each) for each in self._consumer.assignment()}

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._stable_offsets(partitions, _TIMEOUT_S)

    async def _stable_offsets(
        self, partitions: Collection[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Raises KafkaTimeoutError while a transaction that has offsets of them is still to be completed."""
        deadline_s = time.monotonic() + timeout_s
        while partitions:
            try:
                return await self._ask_for_stable_offsets(partitions)
            except KafkaError as error:
                if not error.retriable:
                    raise
                if time.monotonic() >= deadline_s:
                    raise KafkaTimeoutError(
                        f"the offsets of group {self.group_id!r} are not stable, because a transaction that has some "
                        "of them is still to be completed, or the group's coordinator is away; nothing was read: try "
                        "again; recover the transactional id if its owner is gone"
                    ) from error
            await asyncio.sleep(_RETRY_S)
        return {}

    async def _ask_for_stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        coordinator = self._consumer._coordinator
        await coordinator.ensure_coordinator_known()
        answer = await coordinator._send_req(_StableOffsets(self.group_id, partitions))
        _raise_for(answer.error_code)
        offsets: dict[TopicPartition, int] = {}
        for topic, answers, _ in answer.topics:
            for partition, offset, _, _, error_code, _ in answers:
                _raise_for(error_code)
                if offset != _NO_OFFSET:
                    offsets[TopicPartition(topic, partition)] = offset
        return offsets

    async def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        asked = [Partition(*each) for each in partitions]
        starts = await self._consumer.beginning_offsets(asked)
        ends = await self._consumer.end_offsets(asked)
        return {TopicPartition(*each): Bounds(starts[each], ends[each]) for each in asked}

    async def cluster_id(self) -> str | None:
        client = self._consumer._client
        answer = await client.send(client.get_random_node(), MetadataRequest([], False))
        found: str | None = getattr(answer, "cluster_id", None)
        return found

    def go_on_at(self, positions: Mapping[TopicPartition, int]) -> None:
        assigned = self.assignment()
        for partition, offset in positions.items():
            if partition in assigned:
                self._consumer.seek(Partition(*partition), offset)

    @property
    def group_id(self) -> str:
        return str(self._consumer._group_id)

    def _membership(self) -> ConsumerGroupMetadata:
        return group_of(self._consumer)


class _UnstableOffsetsError(KafkaError):
    """UNSTABLE_OFFSET_COMMIT, which aiokafka does not know."""

    retriable = True


def _raise_for(error_code: int) -> None:
    if error_code == _UNSTABLE_OFFSET_COMMIT:
        raise _UnstableOffsetsError
    if error_code:
        raise for_code(error_code)()


def _of_aiokafka(record: Any) -> ConsumedRecord:
    return ConsumedRecord(
        record.topic,
        record.partition,
        record.offset,
        record.key,
        record.value,
        list(record.headers),
        record.timestamp,
    )
