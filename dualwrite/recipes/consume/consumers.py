"""Adapters for the consumers of kafka-python and confluent-kafka; aiokafka's is in `consumer_aiokafka.py`.

The methods are coroutines so that the steps are written once (`steps.py`); those of these two libraries block and never
suspend.

Every adapter sets the positions of newly assigned partitions before it returns any of their records. Records fetched
from the group's own offsets may already be written, or may come after others that are not.

`KafkaPythonAdapter` reads one private attribute of kafka-python's consumer, for lack of a public one;
tests/recipes/test_consumer_internals.py fails if it disappears. The underscored constants of confluent-kafka's
KafkaError are its public API.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from dualwrite.client.records.record import ConsumerGroupMetadata, TopicPartition
from dualwrite.client.transactions.group_metadata import group_of
from dualwrite.errors import ConfigError, KafkaTimeoutError
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.waiting import settled

_log = logging.getLogger(__name__)

StartPositions = Callable[[Collection[TopicPartition]], Coroutine[Any, Any, Mapping[TopicPartition, int]]]
"""Called with newly assigned partitions, returns where to resume; omitted ones follow the group's offsets."""


@dataclass(frozen=True, slots=True)
class ConsumedRecord:
    """A consumed record, in the same form for every consumer library."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


class Batch(NamedTuple):
    """The records of one poll, and the group membership under which they were fetched.

    The membership must be taken at the poll: a background heartbeat discards a lost membership, and a group coordinator
    accepts offsets without a membership from any client.
    """

    records: list[ConsumedRecord]
    membership: ConsumerGroupMetadata


class Bounds(NamedTuple):
    """The first offset of a log, and the offset behind its last readable record."""

    start: int
    end: int


class ConsumerAdapter(Protocol):
    """One consumer, used by one thread or task. Raises its library's own errors."""

    async def subscribe(self, topics: Collection[str], start: StartPositions) -> None: ...

    async def poll(self, timeout_ms: int, max_records: int) -> Batch:
        """Return available records, in order within each partition; wait at most `timeout_ms` for the first."""

    def assignment(self) -> set[TopicPartition]: ...

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's offsets in Kafka; partitions without one are omitted."""

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Return only records from these offsets on, for these partitions, at the next polls."""

    async def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the current bounds of the logs, as reported by their leaders."""

    async def cluster_id(self) -> str | None:
        """Return the id of the cluster, or None if it has none or the library does not know it."""

    @property
    def group_id(self) -> str: ...


def adapter_of(consumer: Any) -> ConsumerAdapter:
    """Return the adapter for a consumer.

    Raises ConfigError for another library's consumer, and for settings that break the guarantee (such as auto-commit).
    """
    library = type(consumer).__module__.partition(".")[0]
    if library == "kafka":
        return KafkaPythonAdapter(consumer)
    if hasattr(consumer, "consumer_group_metadata"):
        return ConfluentAdapter(consumer)
    raise ConfigError(
        f"consumer takes a kafka.KafkaConsumer or a confluent_kafka.Consumer, not {consumer!r}; nothing was read "
        "(an aiokafka.AIOKafkaConsumer is for AsyncConsumeTransformWrite)"
    )


class NotingAdapter:
    """The common part of the adapters for kafka-python and aiokafka, whose records and partitions are alike.

    A rebalance listener only notes the partitions. Their positions are set after the poll in which it was called, and
    records of that poll from other positions are dropped.
    """

    _named: Callable[..., Any]
    """Makes the library's own name of a partition."""

    def __init__(self, consumer: Any, *, commits_by_itself: Any, isolation_level: str, deserializes: Any) -> None:
        if commits_by_itself:
            raise ConfigError(
                "the consumer commits offsets automatically; nothing was read: set enable_auto_commit=False"
            )
        if isolation_level != "read_committed":
            raise ConfigError(
                "the consumer reads records and offsets whose transaction may still be aborted; nothing was read: "
                "set isolation_level='read_committed'"
            )
        if deserializes:
            raise ConfigError(
                "the consumer has deserializers; nothing was read: deserialize in the handler, so that a malformed "
                "record can be set aside"
            )
        self._consumer = consumer
        self._new_partitions: set[TopicPartition] = set()

    def _listener(self, base: Any) -> Any:
        new_partitions = self._new_partitions

        class Listener(base):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                new_partitions.difference_update(TopicPartition(*each) for each in revoked)

            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                new_partitions.update(TopicPartition(*each) for each in assigned)

        return Listener()

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(*each) for each in self._consumer.assignment()}

    async def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        asked = [self._named(*each) for each in partitions]
        starts = await settled(self._consumer.beginning_offsets(asked))
        ends = await settled(self._consumer.end_offsets(asked))
        return {TopicPartition(*each): Bounds(starts[each], ends[each]) for each in asked}


def first_of(found: Mapping[Any, list[Any]]) -> dict[TopicPartition, int]:
    """Return the offset of the first record of each partition that was polled."""
    return {TopicPartition(*each): records[0].offset for each, records in found.items()}


def records_of(found: Mapping[Any, list[Any]], placed: Collection[TopicPartition]) -> list[ConsumedRecord]:
    """Return the records that were polled, but for those of partitions that were placed since."""
    of_others = [records for partition, records in found.items() if TopicPartition(*partition) not in placed]
    return [of_kafka_python(record) for records in of_others for record in records]


class KafkaPythonAdapter(NotingAdapter):
    """kafka-python's KafkaConsumer, which only logs errors of a rebalance listener."""

    def __init__(self, consumer: Any) -> None:
        config = consumer.config
        super().__init__(
            consumer,
            commits_by_itself=config["enable_auto_commit"],
            isolation_level=config["isolation_level"],
            deserializes=config["key_deserializer"] or config["value_deserializer"],
        )
        self._named = import_module("kafka.structs").TopicPartition
        self._no_offset = import_module("kafka.errors").NoOffsetForPartitionError

    async def subscribe(self, topics: Collection[str], start: StartPositions) -> None:
        self._start = start
        for topic in topics:  # its assignor skips a topic without metadata, and does not try again
            self._consumer.partitions_for_topic(topic)
        self._consumer.subscribe(
            list(topics), listener=self._listener(import_module("kafka").ConsumerRebalanceListener)
        )

    async def poll(self, timeout_ms: int, max_records: int) -> Batch:
        try:
            found = self._consumer.poll(timeout_ms, max_records=max_records)
        except self._no_offset:  # with auto_offset_reset="none": Kafka has no offset, but the database may have one
            positions = await self._place()
            if not positions:
                raise
            return Batch([], self._membership())
        membership = self._membership()
        try:
            replaced = await self._place()
        except BaseException:
            self.seek(first_of(found))
            raise
        return Batch(records_of(found, replaced), membership)

    async def _place(self) -> Collection[TopicPartition]:
        """Seek newly assigned partitions to their positions; return them. After an error the next poll tries again."""
        if not self._new_partitions:
            return ()
        positions = await self._start(frozenset(self._new_partitions))
        self.seek(positions)
        self._new_partitions.clear()
        return positions.keys()

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        found = {each: self._consumer.committed(self._named(*each)) for each in partitions}
        return {partition: offset for partition, offset in found.items() if offset is not None}

    async def cluster_id(self) -> str | None:
        found: str | None = self._consumer._cluster.cluster_id  # noqa: SLF001 - see above
        return found

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        for partition, offset in positions.items():
            self._consumer.seek(self._named(*partition), offset)

    @property
    def group_id(self) -> str:
        return self._membership().group_id

    def _membership(self) -> ConsumerGroupMetadata:
        return group_of(self._consumer.group_metadata())


def of_kafka_python(record: Any) -> ConsumedRecord:
    """Return a record of kafka-python or of aiokafka, whose records have the same fields."""
    return ConsumedRecord(
        record.topic,
        record.partition,
        record.offset,
        record.key,
        record.value,
        list(record.headers),
        record.timestamp,
    )


class ConfluentAdapter:
    """confluent-kafka's Consumer. Its settings cannot be read back: `enable.auto.commit` must be false.

    Partitions are assigned with their positions, and assigned again to change them, because librdkafka refuses to seek
    a partition that has not started fetching.
    """

    _TIMEOUT_S = 30.0

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._library = import_module("confluent_kafka")
        self._is_cooperative = False
        self._new_partitions: list[Any] = []
        self._failure: Any = None
        self._cluster_id: str | None = None
        self._moved: set[TopicPartition] = set()
        self._assigned_at: dict[TopicPartition, int] = {}

    async def subscribe(self, topics: Collection[str], start: StartPositions) -> None:
        def assigned(consumer: Any, partitions: list[Any]) -> None:
            self._moved.update(TopicPartition(each.topic, each.partition) for each in partitions)
            if self._is_closing():
                return
            self._new_partitions = partitions
            blocking.run(self._place())

        def revoked(consumer: Any, partitions: list[Any]) -> None:
            self._moved.update(TopicPartition(each.topic, each.partition) for each in partitions)
            self._new_partitions = []

        self._start = start
        # not in the callbacks: calling it there makes librdkafka lose track of its caller and abort the process
        self._cluster_id = self._consumer.list_topics(*list(topics)[:1], timeout=self._TIMEOUT_S).cluster_id
        self._consumer.subscribe(list(topics), on_assign=assigned, on_revoke=revoked)

    def _is_closing(self) -> bool:
        """Return whether this runs inside `close()`, which reports a last assignment and reads no records from it."""
        try:
            self._membership()
        except RuntimeError:  # confluent-kafka's way to say that the membership is lost
            return True
        return False

    async def _place(self) -> None:
        """Assign the group's partitions at their positions. After an error the next poll tries again."""
        partitions = self._new_partitions
        try:
            positions = await self._start([TopicPartition(each.topic, each.partition) for each in partitions])
        except BaseException:
            self._assign([])  # otherwise librdkafka would assign them itself, at the group's own offsets
            raise
        for each in partitions:
            partition = TopicPartition(each.topic, each.partition)
            each.offset = self._assigned_at[partition] = positions.get(partition, each.offset)
        self._assign(partitions)
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
        # consume() waits until it has all records asked for, so ask for more only once there is one
        first = self._consumer.poll(timeout_ms / 1000)
        # before consume(), which may run a rebalance, after which the first record belongs to another consumer
        membership = self._membership()
        if first is None:
            return Batch([], membership)
        self._moved.clear()
        more = self._consumer.consume(max_records - 1, 0) if max_records > 1 else ()
        if first.error() is None and TopicPartition(first.topic(), first.partition()) in self._moved:
            messages = more  # after a rebalance, the first record is another consumer's, or will be fetched again
        else:
            messages = [first, *more]
        records = [of_confluent(message) for message in messages if message.error() is None]
        errors = [message.error() for message in messages if self._is_failure(message)]
        if errors and not records:
            raise self._library.KafkaException(errors[0])
        if errors:  # raised at the next poll, because these records would not be fetched again
            self._failure = errors[0]
        return Batch(records, membership)

    def _is_failure(self, message: Any) -> bool:
        error = message.error()
        if error is None or error.code() == self._library.KafkaError._PARTITION_EOF:  # noqa: SLF001 - a public constant
            return False
        if error.code() == self._library.KafkaError._MAX_POLL_EXCEEDED:  # noqa: SLF001 - a public constant
            _log.warning("the consumer took too long between polls and left its group; it rejoins: %s", error.str())
            return False
        return True

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(each.topic, each.partition) for each in self._consumer.assignment()}

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        asked = [self._library.TopicPartition(*each) for each in partitions]
        found = self._consumer.committed(asked, self._TIMEOUT_S)
        return {TopicPartition(each.topic, each.partition): each.offset for each in found if each.offset >= 0}

    async def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        found = {}
        for each in partitions:
            bounds = self._consumer.get_watermark_offsets(self._library.TopicPartition(*each), self._TIMEOUT_S)
            if bounds is None:
                raise KafkaTimeoutError(
                    f"the first and last offsets of {each.topic}-{each.partition} were not received within "
                    f"{self._TIMEOUT_S:.0f} s; nothing was written: try again"
                )
            found[each] = Bounds(*bounds)
        return found

    async def cluster_id(self) -> str | None:
        return self._cluster_id

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        if not positions:
            return
        self._assigned_at.update(positions)
        given = [self._library.TopicPartition(*partition, offset) for partition, offset in positions.items()]
        if self._is_cooperative:
            self._consumer.incremental_unassign([self._library.TopicPartition(*each) for each in positions])
            self._consumer.incremental_assign(given)
            return
        others = self.assignment() - positions.keys()
        self._consumer.assign([*given, *self._positions(others)])

    def _positions(self, partitions: Collection[TopicPartition]) -> list[Any]:
        """Return the positions; a partition without a record since its assignment is still at its assigned position."""
        found: list[Any] = self._consumer.position([self._library.TopicPartition(*each) for each in partitions])
        for each in found:
            if each.offset < 0:
                each.offset = self._assigned_at.get(TopicPartition(each.topic, each.partition), each.offset)
        return found

    @property
    def group_id(self) -> str:
        return self._membership().group_id

    def _membership(self) -> ConsumerGroupMetadata:
        return group_of(self._consumer.consumer_group_metadata())


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
    )
