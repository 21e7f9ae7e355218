"""The adapters of consumers, and the one for kafka-python; those for other libraries have a file each.

The methods are coroutines so that the steps are written once (`steps.py`); those of blocking libraries never suspend.

Every adapter sets the positions of newly assigned partitions before it returns any of their records: records from the
group's own offsets may already be written, or come after others that are not. A rebalance listener only notes the
partitions; they are placed at the next poll.

`KafkaPythonAdapter` reads one private attribute of kafka-python's consumer, for lack of a public one;
tests/recipes/test_consumer_internals.py fails if it disappears.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from dualwrite.client.records.record import ConsumerGroupMetadata, TopicPartition
from dualwrite.client.transactions.group_metadata import group_of
from dualwrite.errors import ConfigError
from dualwrite.recipes.core.waiting import settled

Positions = Mapping[TopicPartition, int]
"""The offsets from which partitions are read."""

StartPositions = Callable[[Collection[TopicPartition]], Coroutine[Any, Any, Positions]]
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
    raw: Any = field(default=None, repr=False, compare=False)
    """The record as the consumer library has it."""

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

    start: StartPositions
    """Set before the first poll."""
    is_torn: bool
    """Whether a poll may have taken records that its caller has not noted. A poll sets it, and the caller clears it."""

    async def subscribe(self, topics: Collection[str]) -> None: ...

    async def poll(self, timeout_ms: int, max_records: int) -> Batch:
        """Return available records, in order within each partition; wait at most `timeout_ms` for the first."""

    async def assignment(self) -> set[TopicPartition]: ...

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's offsets in Kafka; partitions without one are omitted."""

    async def seek(self, positions: Positions) -> None:
        """Return only records from these offsets on, for these partitions, at the next polls.

        After a torn poll, the other partitions start again at the group's offsets, as when they were assigned.
        """

    async def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the current bounds of the logs, as reported by their leaders."""

    async def cluster_id(self) -> str | None:
        """Return the id of the cluster, or None if it has none or the library does not know it."""

    @property
    def group_id(self) -> str: ...


class NotingAdapter(ConsumerAdapter):
    """The common part of the adapters for kafka-python and aiokafka, whose records and partitions are alike.

    The positions of new partitions are set after the poll in which the listener was called, and records of that poll
    from other positions are dropped.
    """

    start: StartPositions
    is_torn = False
    _named: Callable[..., Any]
    """Makes the library's own name of a partition."""
    _no_offset: type[Exception]
    """The library's error for partitions without an offset, with auto_offset_reset="none"."""

    def __init__(
        self, consumer: Any, *, commits_by_itself: Any, isolation_level: str, deserializes: Any, reset: str
    ) -> None:
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
        self._reset = reset
        self._new_partitions: set[TopicPartition] = set()
        self._placed: set[TopicPartition] = set()
        self._placed_in: object = None
        """The assignment of which they are."""

    async def poll(self, timeout_ms: int, max_records: int) -> Batch:
        found: Mapping[Any, list[Any]] = {}
        without_offset: set[TopicPartition] = set()
        self.is_torn = True
        try:
            found = await self._fetch(timeout_ms, max_records)
        except self._no_offset as error:  # of Kafka; the database may have one
            named = error.args[0] if isinstance(error.args[0], set) else error.args
            without_offset = {TopicPartition(*each) for each in named}
        membership = self._membership()  # before the next await, during which it may be lost
        placed: Collection[TopicPartition] | None = None
        try:
            placed = await self._place(timeout_ms)
        finally:
            if placed is None:
                await self._seek({TopicPartition(*each): records[0].offset for each, records in found.items()})
                self.is_torn = False
        if placed is None:
            return Batch([], membership)
        if left := without_offset.intersection(await self.assignment()).difference(placed):
            raise no_offset(left)
        others = [records for partition, records in found.items() if TopicPartition(*partition) not in placed]
        return Batch([of_kafka_python(record) for records in others for record in records], membership)

    async def _fetch(self, timeout_ms: int, max_records: int) -> Mapping[Any, list[Any]]:
        """Return the library's own records by partition."""
        raise NotImplementedError

    async def _place(self, timeout_ms: int) -> Collection[TopicPartition] | None:
        """Seek new partitions to their positions and return them; None if the next poll has to try again."""
        assigned = await self.assignment()
        current = self._current_assignment()
        if current is not self._placed_in:
            self._placed, self._placed_in = set(), current
        # records may arrive before the listener is called
        new = {each for each in assigned if each in self._new_partitions or each not in self._placed}
        if not new:
            return ()
        positions = await self._positions_of(new, timeout_ms)
        is_same = new <= await self.assignment() and self._current_assignment() is current
        if positions is None or not is_same:  # there was a rebalance meanwhile
            return None
        await self._seek(positions)
        self._new_partitions -= new
        self._placed = new | (self._placed & assigned)
        return positions.keys()

    def _current_assignment(self) -> object:
        """Return an object that is another one after each rebalance, if the library has one."""
        return None

    async def _positions_of(self, new: Collection[TopicPartition], timeout_ms: int) -> Positions | None:
        return await self.start(new)

    async def assignment(self) -> set[TopicPartition]:
        return {TopicPartition(*each) for each in self._consumer.assignment()}

    async def seek(self, positions: Positions) -> None:
        await self._seek(positions)
        if self.is_torn:
            await self._start_again(await self.assignment() - positions.keys())
            self.is_torn = False

    async def _seek(self, positions: Positions) -> None:
        for partition in positions.keys() & await self.assignment():
            self._consumer.seek(self._named(*partition), positions[partition])

    async def _start_again(self, partitions: set[TopicPartition]) -> None:
        stored = await self.committed(partitions)
        await self._seek(stored)
        others = [self._named(*each) for each in await self.assignment() & partitions if each not in stored]
        if others and self._reset != "none":
            to_start = self._consumer.seek_to_end if self._reset == "latest" else self._consumer.seek_to_beginning
            await settled(to_start(*others))

    async def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        asked = [self._named(*each) for each in partitions]
        starts = await settled(self._consumer.beginning_offsets(asked))
        ends = await settled(self._consumer.end_offsets(asked))
        return {TopicPartition(*each): Bounds(starts[each], ends[each]) for each in asked}

    @property
    def group_id(self) -> str:
        return self._membership().group_id

    def _membership(self) -> ConsumerGroupMetadata:
        raise NotImplementedError


def no_offset(partitions: Iterable[TopicPartition]) -> ConfigError:
    names = ", ".join(f"{each.topic}-{each.partition}" for each in sorted(partitions))
    return ConfigError(
        f"neither the database nor Kafka has an offset of {names} for this group, and the consumer's auto_offset_reset "
        "forbids to choose one; nothing was read: set it to 'earliest' until the first records are written, or set the "
        "offsets with `kafka-consumer-groups --reset-offsets`"
    )


def listener(base: Any, new_partitions: set[TopicPartition]) -> Any:
    """Return a rebalance listener, derived from the library's own, that keeps the set of new partitions up to date."""

    class Listener(base):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
            new_partitions.difference_update(TopicPartition(*each) for each in revoked)

        def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            new_partitions.update(TopicPartition(*each) for each in assigned)

    return Listener()


class KafkaPythonAdapter(NotingAdapter):
    """kafka-python's KafkaConsumer, which only logs errors of a rebalance listener."""

    def __init__(self, consumer: Any) -> None:
        config = consumer.config
        super().__init__(
            consumer,
            commits_by_itself=config["enable_auto_commit"],
            isolation_level=config["isolation_level"],
            deserializes=config["key_deserializer"] or config["value_deserializer"],
            reset=config["auto_offset_reset"],
        )
        self._named = import_module("kafka.structs").TopicPartition
        self._no_offset = import_module("kafka.errors").NoOffsetForPartitionError

    async def subscribe(self, topics: Collection[str]) -> None:
        for topic in topics:  # its assignor skips a topic without metadata, and does not try again
            self._consumer.partitions_for_topic(topic)
        noting = listener(import_module("kafka").ConsumerRebalanceListener, self._new_partitions)
        self._consumer.subscribe(list(topics), listener=noting)

    async def _fetch(self, timeout_ms: int, max_records: int) -> Mapping[Any, list[Any]]:
        found: Mapping[Any, list[Any]] = self._consumer.poll(timeout_ms, max_records=max_records)
        return found

    async def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        found = {each: self._consumer.committed(self._named(*each)) for each in partitions}
        return {partition: offset for partition, offset in found.items() if offset is not None}

    async def cluster_id(self) -> str | None:
        found: str | None = self._consumer._cluster.cluster_id  # noqa: SLF001 - see above
        return found

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
        record,
    )
