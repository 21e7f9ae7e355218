"""A consumer of kafka-python or confluent-kafka, as consume-transform-dual-write needs it.

The methods are coroutines so that the steps are written once (`consume_steps.py`); with these two, which block, they
never suspend. aiokafka's is in `consumer_side_aiokafka.py`.

All are told where to go on when partitions are assigned, before any record of them is given out: what was fetched
from where the group's own offsets point must not be written again, or left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol

from dualwrite.client.records.record import ConsumerGroupMetadata, TopicPartition
from dualwrite.client.transactions.group_metadata import group_of
from dualwrite.errors import ConfigError, KafkaTimeoutError
from dualwrite.recipes.core import blocking

_log = logging.getLogger(__name__)

Start = Callable[[Collection[TopicPartition]], Coroutine[Any, Any, Mapping[TopicPartition, int]]]
"""Asked with newly assigned partitions: where to go on; those it leaves out follow the group's offsets."""

AUTO_COMMIT: Final = "the consumer commits offsets by itself; nothing was read: set enable_auto_commit=False"
READ_UNCOMMITTED: Final = (
    "the consumer reads what may still be aborted, and offsets that are not decided; nothing was read: "
    "set isolation_level='read_committed'"
)
DESERIALIZERS: Final = "deserialize in the handler, where what is malformed can be set aside; nothing was read"


@dataclass(frozen=True, slots=True)
class ConsumedRecord:
    """A record that was read, whichever library read it."""

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


class Batch(NamedTuple):
    """What one poll gave, and the group membership under which it did.

    The membership is not that of later: a heartbeat in the background finds out that it is lost and forgets it, and a
    group coordinator takes offsets without membership from anybody.
    """

    records: list[ConsumedRecord]
    membership: ConsumerGroupMetadata


class Bounds(NamedTuple):
    """The offsets of a log: the first one that is there, and the next one that may be read."""

    start: int
    end: int


class ConsumerSide(Protocol):
    """One consumer, used by one thread or task. Raises what its library raises."""

    async def subscribe(self, topics: Collection[str], start: Start) -> None: ...

    async def poll(self, timeout_ms: int, max_records: int) -> Batch:
        """What is there, waiting `timeout_ms` for the first; in order within each partition."""

    def assignment(self) -> set[TopicPartition]: ...

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The group's offsets in Kafka; without those it has none for."""

    def go_on_at(self, positions: Mapping[TopicPartition, int]) -> None:
        """Give out nothing else of these partitions than what is there from these offsets on."""

    async def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Of the logs, as their leaders say now."""

    async def cluster_id(self) -> str | None:
        """Of the cluster that is read; None where it has none, or the library does not tell."""

    @property
    def group_id(self) -> str: ...


def side_of(consumer: Any) -> ConsumerSide:
    """Raises ConfigError for a consumer of another library, and for one that would commit offsets by itself."""
    library = type(consumer).__module__.partition(".")[0]
    if library == "kafka":
        return KafkaPythonSide(consumer)
    if hasattr(consumer, "consumer_group_metadata"):
        return ConfluentSide(consumer)
    raise ConfigError(
        f"consumer takes a kafka.KafkaConsumer or a confluent_kafka.Consumer, not {consumer!r}; nothing was read "
        "(an aiokafka.AIOKafkaConsumer is for AsyncConsumeTransformWrite)"
    )


class KafkaPythonSide:
    """kafka-python's KafkaConsumer.

    What its rebalance listener raises is only logged, so the listener just takes note, and the positions are set after
    the poll that it was called in, whose records are dropped where others are wanted.
    """

    def __init__(self, consumer: Any) -> None:
        if consumer.config["enable_auto_commit"]:
            raise ConfigError(AUTO_COMMIT)
        if consumer.config["isolation_level"] != "read_committed":
            raise ConfigError(READ_UNCOMMITTED)
        if consumer.config["key_deserializer"] or consumer.config["value_deserializer"]:
            raise ConfigError(DESERIALIZERS)
        self._consumer = consumer
        self._structs = import_module("kafka.structs")
        self._no_offset = import_module("kafka.errors").NoOffsetForPartitionError
        self._unplaced: set[TopicPartition] = set()

    async def subscribe(self, topics: Collection[str], start: Start) -> None:
        base: Any = import_module("kafka").ConsumerRebalanceListener
        unplaced = self._unplaced

        class Listener(base):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                unplaced.difference_update(TopicPartition(*each) for each in revoked)

            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                unplaced.update(TopicPartition(*each) for each in assigned)

        self._start = start
        for topic in topics:  # its assignor gives nothing of a topic that it has not heard of, and does not try again
            self._consumer.partitions_for_topic(topic)
        self._consumer.subscribe(list(topics), listener=Listener())

    async def poll(self, timeout_ms: int, max_records: int) -> Batch:
        try:
            found = self._consumer.poll(timeout_ms, max_records=max_records)
        except self._no_offset:  # with auto_offset_reset="none": the group has no offset, but others may be kept
            positions = await self._place()
            if not positions:
                raise
            return Batch([], self._membership())
        membership = self._membership()
        try:
            replaced = await self._place()
        except BaseException:
            self.go_on_at({TopicPartition(*each): records[0].offset for each, records in found.items()})
            raise
        records = [
            _of_kafka_python(record)
            for partition, records in found.items()
            if TopicPartition(*partition) not in replaced
            for record in records
        ]
        return Batch(records, membership)

    async def _place(self) -> Collection[TopicPartition]:
        """Set what was assigned to its positions. Stays to be done where this raises."""
        if not self._unplaced:
            return ()
        positions = await self._start(frozenset(self._unplaced))
        self.go_on_at(positions)
        self._unplaced.clear()
        return positions.keys()

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(*each) for each in self._consumer.assignment()}

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        found = {each: self._consumer.committed(self._structs.TopicPartition(*each)) for each in partitions}
        return {partition: offset for partition, offset in found.items() if offset is not None}

    async def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        asked = [self._structs.TopicPartition(*each) for each in partitions]
        starts, ends = self._consumer.beginning_offsets(asked), self._consumer.end_offsets(asked)
        return {TopicPartition(*each): Bounds(starts[each], ends[each]) for each in asked}

    async def cluster_id(self) -> str | None:
        found: str | None = self._consumer._cluster.cluster_id
        return found

    def go_on_at(self, positions: Mapping[TopicPartition, int]) -> None:
        for partition, offset in positions.items():
            self._consumer.seek(self._structs.TopicPartition(*partition), offset)

    @property
    def group_id(self) -> str:
        return self._membership().group_id

    def _membership(self) -> ConsumerGroupMetadata:
        return group_of(self._consumer.group_metadata())


def _of_kafka_python(record: Any) -> ConsumedRecord:
    return ConsumedRecord(
        record.topic,
        record.partition,
        record.offset,
        record.key,
        record.value,
        list(record.headers),
        record.timestamp,
    )


class ConfluentSide:
    """confluent-kafka's Consumer, whose settings nobody can look at: `enable.auto.commit` must be false.

    Partitions are assigned with their positions, and again to change them: a seek is refused while a partition has
    not begun to fetch.
    """

    _TIMEOUT_S = 30.0

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._library = import_module("confluent_kafka")
        self._is_cooperative = False
        self._unplaced: list[Any] = []
        self._failure: Any = None
        self._cluster_id: str | None = None
        self._moved: set[TopicPartition] = set()
        self._assigned_at: dict[TopicPartition, int] = {}

    async def subscribe(self, topics: Collection[str], start: Start) -> None:
        def assigned(consumer: Any, partitions: list[Any]) -> None:
            self._moved.update(TopicPartition(each.topic, each.partition) for each in partitions)
            self._unplaced = partitions
            blocking.run(self._place())

        def revoked(consumer: Any, partitions: list[Any]) -> None:
            self._moved.update(TopicPartition(each.topic, each.partition) for each in partitions)
            self._unplaced = []

        self._start = start
        # not in the callbacks, where it makes the library forget in which call it is, and end the process
        self._cluster_id = self._consumer.list_topics(*list(topics)[:1], timeout=self._TIMEOUT_S).cluster_id
        self._consumer.subscribe(list(topics), on_assign=assigned, on_revoke=revoked)

    async def _place(self) -> None:
        """Assign what the group gave, at its positions. Stays to be done where this raises."""
        partitions = self._unplaced
        try:
            positions = await self._start([TopicPartition(each.topic, each.partition) for each in partitions])
        except BaseException:
            self._assign([])  # else they would be assigned by themselves, wherever the group's own offsets are
            raise
        for each in partitions:
            partition = TopicPartition(each.topic, each.partition)
            each.offset = self._assigned_at[partition] = positions.get(partition, each.offset)
        self._assign(partitions)
        self._unplaced = []

    def _assign(self, partitions: list[Any]) -> None:
        """As the group's protocol wants it (KIP-429), which librdkafka tells only by refusing the other way."""
        try:
            self._consumer.assign(partitions)
        except self._library.KafkaException as error:
            if error.args[0].code() != self._library.KafkaError._STATE:
                raise
            self._is_cooperative = True
            self._consumer.incremental_assign(partitions)

    async def poll(self, timeout_ms: int, max_records: int) -> Batch:
        if self._unplaced:
            await self._place()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise self._library.KafkaException(failure)
        # consume() waits until it has all that it may have, so it is asked for more only once there is something
        first = self._consumer.poll(timeout_ms / 1000)
        # before more is taken, because that may carry out a rebalance, after which the first is another consumer's
        membership = self._membership()
        if first is None:
            return Batch([], membership)
        self._moved.clear()
        more = self._consumer.consume(max_records - 1, 0) if max_records > 1 else ()
        if first.error() is None and TopicPartition(first.topic(), first.partition()) in self._moved:
            messages = more  # a rebalance came in between: the first is another consumer's, or is given again
        else:
            messages = [first, *more]
        records = [self._of_confluent(message) for message in messages if message.error() is None]
        errors = [message.error() for message in messages if self._is_failure(message)]
        if errors and not records:
            raise self._library.KafkaException(errors[0])
        if errors:  # not with records that were taken: the consumer will not give them again
            self._failure = errors[0]
        return Batch(records, membership)

    def _is_failure(self, message: Any) -> bool:
        error = message.error()
        if error is None or error.code() == self._library.KafkaError._PARTITION_EOF:
            return False
        if error.code() == self._library.KafkaError._MAX_POLL_EXCEEDED:
            _log.warning("the consumer took too long and has left its group, which it joins again: %s", error.str())
            return False
        return True

    @staticmethod
    def _of_confluent(message: Any) -> ConsumedRecord:
        return ConsumedRecord(
            message.topic(),
            message.partition(),
            message.offset(),
            message.key(),
            message.value(),
            list(message.headers() or ()),
            message.timestamp()[1],
        )

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
                    f"the bounds of {each.topic}-{each.partition} were not told within {self._TIMEOUT_S:.0f} s; "
                    "nothing was written: try again"
                )
            found[each] = Bounds(*bounds)
        return found

    async def cluster_id(self) -> str | None:
        return self._cluster_id

    def go_on_at(self, positions: Mapping[TopicPartition, int]) -> None:
        if not positions:
            return
        self._assigned_at.update(positions)
        given = [self._library.TopicPartition(*partition, offset) for partition, offset in positions.items()]
        if self._is_cooperative:
            self._consumer.incremental_unassign([self._library.TopicPartition(*each) for each in positions])
            self._consumer.incremental_assign(given)
            return
        others = self.assignment() - positions.keys()
        self._consumer.assign([*given, *self._where_they_are(others)])

    def _where_they_are(self, partitions: Collection[TopicPartition]) -> list[Any]:
        """One that has given no record since it was assigned has no position, and is where it was assigned."""
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
