"""Use one partition of a topic as a log: append a record and get its offset, read, and delete the beginning.

For one event loop. Records are sent alone, without a producer id: a record without a response is sent again, so it may
be in the log several times.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from dualwrite.client.admin.cluster_codec import describe_settings
from dualwrite.client.admin.codec import Call, Reply
from dualwrite.client.admin.driver import (
    UNKNOWN_TOPIC,
    AdminDriver,
    AdminTransport,
    Located,
    Results,
)
from dualwrite.client.log import codec, partition_codec
from dualwrite.client.messages import ANY_NODE
from dualwrite.client.records.batch_reading import StoredBatch, records_of
from dualwrite.client.records.batches import HEADER, HEADER_BYTES, stamp_and_build
from dualwrite.client.records.compression import codec_for
from dualwrite.client.records.record import TopicPartition
from dualwrite.client.records.value_batch import ValueBatch
from dualwrite.config import AdminConfig
from dualwrite.errors import AdminError, InvalidRecordError, KafkaError, KafkaTimeoutError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

UNKNOWN_FOR_S: Final = 3.0
"""How long brokers must say that a topic does not exist: one that has just started does not know all topics."""
_SHOWN_WITHIN_S: Final = 3.0
"""How long a newly elected leader may not show a record that it has."""

_GZIP: Final = 1
_MOST_REPLICAS: Final = 3
_TOO_LARGE: Final = (10, 18)
"""MESSAGE_TOO_LARGE and RECORD_LIST_TOO_LARGE."""


class LogRecord(NamedTuple):
    """A record of the log. If two logs have the same leader epoch at an offset, they are the same up to it."""

    offset: int
    leader_epoch: int
    timestamp_ms: int
    value: bytes | None
    is_plain: bool
    """False for a record of a transaction, or of a broker."""


class OffsetOutOfRangeError(AdminError):
    """The log has no such offset: it begins later, or ends earlier."""


class LogDescription(NamedTuple):
    """Partitions, replicas and settings of the topic of a log."""

    partitions: int
    replicas: int
    settings: Mapping[str, str]


class PartitionLogCalls:
    """The log in partition 0 of a topic. Every `deadline_s` is by the loop's clock.

    Each call raises KafkaTimeoutError, and KafkaUnreachableError earlier if no broker can be reached.
    """

    def __init__(
        self, config: AdminConfig, topic: str, loop: asyncio.AbstractEventLoop, *, unreachable_timeout_ms: int
    ) -> None:
        self._config = config
        self._topic = topic
        self._where = TopicPartition(topic, 0)
        self._transport = AdminTransport(config, loop, unreachable_timeout_ms=unreachable_timeout_ms)
        self._driver = AdminDriver(config, self._transport)
        self._leader: int | None = None
        self._asked: int | None = None

    async def close(self) -> None:
        """Release the connections."""
        await self._transport.close()

    async def append(self, value: bytes, deadline_s: float, *, most_bytes: int) -> int:
        """Append a record with the acknowledgement of all in-sync replicas; return one of its offsets.

        Raises InvalidRecordError if its compressed size is more than `most_bytes`.
        """
        batch = _batch_of(value)
        if len(batch) > most_bytes:
            raise InvalidRecordError(
                f"the record has {len(batch)} bytes, compressed, and at most {most_bytes} may be sent"
            )
        call = partition_codec.append(self._where, batch, self._config.request_timeout_ms)
        try:
            return await self._of_leader(call, deadline_s)
        except KafkaError as error:
            if error.error_code in _TOO_LARGE:
                raise InvalidRecordError(f"the record has {len(batch)} bytes, compressed: {error}") from error
            raise

    async def start(self, deadline_s: float) -> int:
        """Return the first offset."""
        return await self._of_leader(partition_codec.first_offset(self._where), deadline_s)

    async def delete_before(self, offset: int, deadline_s: float) -> None:
        """Delete the records before this offset."""
        call = partition_codec.delete_records(self._where, offset, self._config.request_timeout_ms)
        await self._of_leader(call, deadline_s)

    async def read(self, first: int, last: int, deadline_s: float) -> list[LogRecord]:
        """Return the records from the offset `first` to at least `last`. Raises OffsetOutOfRangeError."""
        found: list[LogRecord] = []
        position, stalled_since_s = first, asyncio.get_running_loop().time()
        backoff = self._driver.new_backoff()
        while position <= last:
            fetched = await self._fetch(position, deadline_s)
            records = [
                record for batch in fetched.batches for record in self._records(batch) if record.offset >= position
            ]
            if records:
                found += records
                position, stalled_since_s = records[-1].offset + 1, asyncio.get_running_loop().time()
                backoff = self._driver.new_backoff()
                continue
            if asyncio.get_running_loop().time() - stalled_since_s > _SHOWN_WITHIN_S:
                await self._fetch(last + 1, deadline_s)  # out of range if the log has lost that record
            if not await self._driver.pause(backoff, deadline_s):
                raise KafkaTimeoutError(f"the leader of {self._topic}-0 does not show offset {last} in time")
        return found

    async def _fetch(self, offset: int, deadline_s: float) -> codec.Fetched:
        fetched = await self._of_leader(codec.fetch({self._where: offset}, read_committed=False), deadline_s)
        if fetched.out_of_range:
            raise OffsetOutOfRangeError(f"{self._topic}-0 has no offset {offset}")
        return fetched

    def _records(self, batch: StoredBatch) -> list[LogRecord]:
        epoch = HEADER.unpack_from(batch.data)[2] if len(batch.data) >= HEADER_BYTES else -1
        is_plain = not (batch.is_transactional or batch.is_control)
        return [
            LogRecord(record.offset, epoch, record.timestamp_ms, record.value, is_plain)
            for record in records_of(self._topic, 0, batch)
        ]

    # ---- the topic ------------------------------------------------------------------------------------------

    async def describe(self, names: Sequence[str], deadline_s: float) -> LogDescription | None:
        """Return partitions, replicas and these settings of the topic; None if it does not exist."""
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        backoff = self._driver.new_backoff()
        while True:
            topic = (await self._driver.metadata([self._topic], deadline_s)).topics.get(self._topic)
            if topic is not None and topic.replicas:
                break
            if loop.time() - since_s > UNKNOWN_FOR_S:
                return None
            if not await self._driver.pause(backoff, deadline_s):
                raise KafkaTimeoutError(f"cannot find out whether the topic {self._topic} exists")
        settings = await self._of_any(describe_settings([self._topic], names), deadline_s)
        return LogDescription(len(topic.replicas), len(topic.replicas.get(0, ())), settings)

    async def exists(self, deadline_s: float) -> bool:
        """Return whether a broker knows the topic now."""
        topic = (await self._driver.metadata([self._topic], deadline_s)).topics.get(self._topic)
        return topic is not None and bool(topic.replicas)

    async def create(self, settings: Mapping[str, str], replicated: Mapping[str, str], deadline_s: float) -> None:
        """Create the topic with one partition on up to three brokers, unless it exists.

        `replicated`: additional settings if it has several replicas.
        """
        cluster = (await self._driver.metadata([], deadline_s)).cluster
        replicas = max(1, min(_MOST_REPLICAS, len(cluster.brokers)))
        given = {**settings, **(replicated if replicas > 1 else {})}
        call = partition_codec.create_topic(self._topic, replicas, given, self._config.request_timeout_ms)

        async def controller(some: Sequence[str]) -> Located[str]:
            found = (await self._driver.metadata([], deadline_s)).cluster.controller_id
            if found is None:
                return Located({}, {}, dict.fromkeys(some, "the cluster has no controller"))
            return Located(dict.fromkeys(some, found), {}, {})

        results = await self._driver.fulfil([self._topic], controller, lambda _, some: call, deadline_s=deadline_s)
        if error := results.failed.get(self._topic):
            raise error
        backoff = self._driver.new_backoff()
        while not await self.exists(deadline_s):
            if not await self._driver.pause(backoff, deadline_s):
                raise KafkaTimeoutError(f"the topic {self._topic} was created, and no broker knows it yet")

    # ---- requests -------------------------------------------------------------------------------------------

    async def _of_leader(self, call: Call[dict[TopicPartition, Reply[T]]], deadline_s: float) -> T:
        """Return the leader's result."""

        async def once() -> Results[TopicPartition, T]:
            return await self._driver.fulfil([self._where], self._look_up, lambda _, some: call, deadline_s=deadline_s)

        result = await self._repeated(once, self._where, deadline_s)
        self._leader = self._asked
        return result

    async def _repeated(self, once: Callable[[], Awaitable[Results[K, T]]], key: K, deadline_s: float) -> T:
        """Return the result of the only key. A topic that does not exist is requested again, for a while."""
        self._transport.retry_refused()
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        backoff = self._driver.new_backoff()
        while True:
            results = await once()
            error = results.failed.get(key)
            if error is None:
                return results.done[key]
            if error.error_code != UNKNOWN_TOPIC or loop.time() - since_s > UNKNOWN_FOR_S:
                raise error
            if not await self._driver.pause(backoff, deadline_s):
                raise error

    async def _look_up(self, partitions: Sequence[TopicPartition]) -> Located[TopicPartition]:
        """Return the leader that responded last, once; then look it up."""
        known, self._leader = self._leader, None
        if known is not None:
            located = Located(dict.fromkeys(partitions, known), {}, {})
        else:
            deadline_s = asyncio.get_running_loop().time() + self._config.request_timeout_ms / 1000
            located = await self._driver.leaders(partitions, deadline_s)
        self._asked = located.nodes.get(self._where)
        return located

    async def _of_any(self, call: Call[dict[str, Reply[T]]], deadline_s: float) -> T:
        async def any_broker(some: Sequence[str]) -> Located[str]:
            return Located(dict.fromkeys(some, ANY_NODE), {}, {})

        async def once() -> Results[str, T]:
            return await self._driver.fulfil([self._topic], any_broker, lambda _, some: call, deadline_s=deadline_s)

        return await self._repeated(once, self._topic, deadline_s)


def _batch_of(value: bytes) -> bytes:
    """Return a batch of one record, compressed, without a producer id."""
    now_ms = int(time.time() * 1000)
    records = ValueBatch(transactional=False, batch_size=HEADER_BYTES)
    records.append(0, now_ms, None, value, [])
    return bytes(stamp_and_build(records, -1, -1, -1, codec=codec_for(_GZIP, None)))
