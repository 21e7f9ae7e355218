"""The adapter for aiokafka's consumer.

aiokafka fetches a group's offsets without waiting for in-doubt transactions (OffsetFetch before version 7, KIP-447):
after a crash between the two commits it would return records again whose consumption is decided. So the adapter
requests stable offsets itself, on aiokafka's connection to the group coordinator.

For that, and to check the consumer's settings, it reads private attributes of aiokafka, which has no public ones;
tests/recipes/test_consumer_internals.py fails if they disappear.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka import TopicPartition as Partition
from aiokafka.errors import ConsumerStoppedError, KafkaError, NoOffsetForPartitionError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from dualwrite.client.records.record import ConsumerGroupMetadata, TopicPartition
from dualwrite.client.transactions.group_metadata import aiokafka_group_metadata
from dualwrite.errors import ConfigError, KafkaTimeoutError
from dualwrite.recipes.consume.consumers import NotingAdapter, Positions, listener

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


class AiokafkaAdapter(NotingAdapter):
    """aiokafka's AIOKafkaConsumer, started, which calls a rebalance listener in a task of its own.

    A consumer that is subscribed already has a listener that keeps `new_partitions` up to date.
    """

    _named = Partition
    _no_offset = NoOffsetForPartitionError

    def __init__(self, consumer: Any, new_partitions: set[TopicPartition] | None = None) -> None:
        if not isinstance(consumer, AIOKafkaConsumer):
            raise ConfigError(f"consumer takes an aiokafka.AIOKafkaConsumer, not {consumer!r}; nothing was read")
        private: Any = consumer
        super().__init__(
            consumer,
            commits_by_itself=private._enable_auto_commit,  # noqa: SLF001
            isolation_level=private._isolation_level,  # noqa: SLF001
            deserializes=private._key_deserializer or private._value_deserializer,  # noqa: SLF001
            reset=private._auto_offset_reset,  # noqa: SLF001
        )
        if private._group_id is None:  # noqa: SLF001
            raise ConfigError("the consumer has no group_id; nothing was read: set one, so that partitions are shared")
        if new_partitions is not None:
            self._new_partitions = new_partitions

    def _current_assignment(self) -> object:
        subscription = self._consumer._subscription.subscription  # noqa: SLF001
        return None if subscription is None else subscription.assignment

    async def subscribe(self, topics: Collection[str]) -> None:
        noting = listener(ConsumerRebalanceListener, self._new_partitions)
        self._consumer.subscribe(list(topics), listener=noting)

    async def _fetch(self, timeout_ms: int, max_records: int) -> Mapping[Any, list[Any]]:
        try:
            async with asyncio.timeout(timeout_ms / 1000 + 1):  # a rebalance would block it indefinitely
                found: Mapping[Any, list[Any]] = await self._consumer.getmany(
                    timeout_ms=timeout_ms, max_records=max_records
                )
        except TimeoutError:
            return {}  # its buffers still hold every record
        except (asyncio.CancelledError, ConsumerStoppedError):  # likewise
            self.is_torn = False
            raise
        return found

    async def _positions_of(self, new: Collection[TopicPartition], timeout_ms: int) -> Positions | None:
        try:
            stable = await self._stable_offsets(new, timeout_ms / 1000)
        except KafkaTimeoutError:
            return None
        return {**stable, **await self.start(new)}

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
        coordinator = self._consumer._coordinator  # noqa: SLF001
        await coordinator.ensure_coordinator_known()
        response = await coordinator._send_req(_StableOffsets(self.group_id, partitions))  # noqa: SLF001
        _raise_for(response.error_code)
        offsets: dict[TopicPartition, int] = {}
        for topic, fetched, _ in response.topics:
            for partition, offset, _, _, error_code, _ in fetched:
                _raise_for(error_code)
                if offset != _NO_OFFSET:
                    offsets[TopicPartition(topic, partition)] = offset
        return offsets

    async def cluster_id(self) -> str | None:
        client = self._consumer._client  # noqa: SLF001
        response = await client.send(client.get_random_node(), MetadataRequest([], False))
        found: str | None = getattr(response, "cluster_id", None)
        return found

    def _membership(self) -> ConsumerGroupMetadata:
        return aiokafka_group_metadata(self._consumer)


class _UnstableOffsetsError(KafkaError):
    """UNSTABLE_OFFSET_COMMIT, for which aiokafka has no error."""

    retriable = True


def _raise_for(error_code: int) -> None:
    if error_code == _UNSTABLE_OFFSET_COMMIT:
        raise _UnstableOffsetsError
    if error_code:
        raise for_code(error_code)()
