"""The adapter for aiokafka's consumer.

aiokafka fetches a group's offsets without waiting for in-doubt transactions (OffsetFetch before version 7, KIP-447):
after a crash between the two commits it would return records again whose consumption is decided. So the adapter
requests stable offsets itself, on aiokafka's connection to the group coordinator.

For that, and to check the consumer's settings, `_Internals` reads private attributes of aiokafka, which has no public
ones; tests/recipes/test_consumer_internals.py fails if they disappear.
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
from dualwrite.recipes.consume.consumers import (
    AUTO_COMMIT,
    DESERIALIZERS,
    READ_UNCOMMITTED,
    Batch,
    Bounds,
    StartPositions,
    of_kafka_python,
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


class AiokafkaAdapter:
    """aiokafka's AIOKafkaConsumer, started.

    A rebalance listener runs in a task of the library. So it only notes the partitions. Their positions are set after
    the poll in which it was called, and records of that poll from other positions are dropped.
    """

    def __init__(self, consumer: Any) -> None:
        if not isinstance(consumer, AIOKafkaConsumer):
            raise ConfigError(f"consumer takes an aiokafka.AIOKafkaConsumer, not {consumer!r}; nothing was read")
        self._internals = _Internals(consumer)
        if self._internals.commits_by_itself:
            raise ConfigError(AUTO_COMMIT)
        if self._internals.isolation_level != "read_committed":
            raise ConfigError(READ_UNCOMMITTED)
        if self._internals.has_deserializers:
            raise ConfigError(DESERIALIZERS)
        if self._internals.group_id is None:
            raise ConfigError("the consumer has no group_id; nothing was read: set one, so that partitions are shared")
        self._consumer: Any = consumer
        self._new_partitions: set[TopicPartition] = set()

    async def subscribe(self, topics: Collection[str], start: StartPositions) -> None:
        new_partitions = self._new_partitions

        class Listener(ConsumerRebalanceListener):
            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                new_partitions.difference_update(TopicPartition(*each) for each in revoked)

            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                new_partitions.update(TopicPartition(*each) for each in assigned)

        self._start = start
        self._consumer.subscribe(list(topics), listener=Listener())

    async def poll(self, timeout_ms: int, max_records: int) -> Batch:
        found: Mapping[Any, list[Any]] = {}
        try:
            async with asyncio.timeout(timeout_ms / 1000 + 1):  # a rebalance would block it indefinitely
                found = await self._consumer.getmany(timeout_ms=timeout_ms, max_records=max_records)
        except TimeoutError:
            """Its buffers still hold every record."""
        except NoOffsetForPartitionError:  # with auto_offset_reset="none": Kafka has none, the database may have one
            if not await self._place(timeout_ms / 1000):
                raise
        membership = self._membership()  # before the next await, during which it may be lost
        first = {TopicPartition(*each): records[0].offset for each, records in found.items()}
        try:
            placed = await self._place(timeout_ms / 1000)
        except BaseException:
            self.seek(first)
            raise
        if placed is None:
            self.seek(first)
            return Batch([], membership)
        records = [
            of_kafka_python(record)
            for partition, records in found.items()
            if TopicPartition(*partition) not in placed
            for record in records
        ]
        return Batch(records, membership)

    async def _place(self, timeout_s: float) -> Collection[TopicPartition] | None:
        """Seek newly assigned partitions to their positions and return them, or None if they are not stable yet.

        After None or an error, the next poll tries again.
        """
        if not self._new_partitions:
            return ()
        new = frozenset(self._new_partitions)
        try:
            stable = await self._stable_offsets(new, timeout_s)
        except KafkaTimeoutError:
            return None
        positions = {**stable, **await self._start(new)}
        if not new <= self._new_partitions:
            return None  # there was a rebalance meanwhile
        self.seek(positions)
        self._new_partitions -= new
        return positions.keys()

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(*each) for each in self._consumer.assignment()}

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._stable_offsets(partitions, _TIMEOUT_S)

    async def _stable_offsets(
        self, partitions: Collection[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Return the stable offsets. Raises KafkaTimeoutError while a transaction with these partitions is in doubt."""
        deadline_s = time.monotonic() + timeout_s
        while partitions:
            try:
                return await self._fetch_stable_offsets(partitions)
            except KafkaError as error:
                if not error.retriable:
                    raise
                if time.monotonic() >= deadline_s:
                    raise KafkaTimeoutError(
                        f"the offsets of group {self.group_id!r} are not stable: a transaction that contains some of "
                        "them is not completed yet, or the group coordinator is unavailable; nothing was read: try "
                        "again; if the owner of that transaction is gone, recover its transactional id"
                    ) from error
            await asyncio.sleep(_RETRY_S)
        return {}

    async def _fetch_stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        response = await self._internals.send_to_coordinator(_StableOffsets(self.group_id, partitions))
        _raise_for(response.error_code)
        offsets: dict[TopicPartition, int] = {}
        for topic, fetched, _ in response.topics:
            for partition, offset, _, _, error_code, _ in fetched:
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
        response = await self._internals.send_to_any_broker(MetadataRequest([], False))
        found: str | None = getattr(response, "cluster_id", None)
        return found

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        assigned = self.assignment()
        for partition, offset in positions.items():
            if partition in assigned:
                self._consumer.seek(Partition(*partition), offset)

    @property
    def group_id(self) -> str:
        return str(self._internals.group_id)

    def _membership(self) -> ConsumerGroupMetadata:
        return group_of(self._consumer)


class _Internals:
    """The private attributes of aiokafka's consumer that the adapter needs, in one place."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    @property
    def commits_by_itself(self) -> bool:
        return bool(self._consumer._enable_auto_commit)  # noqa: SLF001

    @property
    def isolation_level(self) -> str:
        return str(self._consumer._isolation_level)  # noqa: SLF001

    @property
    def has_deserializers(self) -> bool:
        return bool(self._consumer._key_deserializer or self._consumer._value_deserializer)  # noqa: SLF001

    @property
    def group_id(self) -> str | None:
        found: str | None = self._consumer._group_id  # noqa: SLF001
        return found

    async def send_to_coordinator(self, request: Any) -> Any:
        """Send a request to the group's coordinator and return the response."""
        coordinator = self._consumer._coordinator  # noqa: SLF001
        await coordinator.ensure_coordinator_known()
        return await coordinator._send_req(request)  # noqa: SLF001

    async def send_to_any_broker(self, request: Any) -> Any:
        """Send a request to a random broker and return the response."""
        client = self._consumer._client  # noqa: SLF001
        return await client.send(client.get_random_node(), request)


class _UnstableOffsetsError(KafkaError):
    """UNSTABLE_OFFSET_COMMIT, for which aiokafka has no error."""

    retriable = True


def _raise_for(error_code: int) -> None:
    if error_code == _UNSTABLE_OFFSET_COMMIT:
        raise _UnstableOffsetsError
    if error_code:
        raise for_code(error_code)()
