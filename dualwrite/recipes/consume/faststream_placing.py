"""Move a FastStream subscriber to the rows on assignment of partitions, and check that their logs are the same.

Without this, a quiet partition whose group has offsets ahead of the rows would go unnoticed: no delivery shows that
records were left out. Placing is done in the background, again and again until it succeeds. It may therefore happen
while messages are being taken, and does not report the new positions to `ExactlyOnce`, which compares each delivery
with the row as always.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from dualwrite.client.records.record import TopicPartition
from dualwrite.errors import ConfigError, ConsumedLogReplacedError
from dualwrite.recipes.consume.consumed_logs import ConsumedLogs, WriterTopicIds
from dualwrite.recipes.consume.consumed_offsets import OffsetsInDatabase
from dualwrite.recipes.consume.consumers import Bounds, ConfluentAdapter, ConsumerAdapter
from dualwrite.recipes.core import blocking

_log = logging.getLogger("dualwrite.recipes.consume.faststream")

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
_TIMEOUT_S: Final = 30


class Placing:
    """Places one subscriber, which `subscribe` makes."""

    def __init__(self, group_id: str, offsets: OffsetsInDatabase, look_up: WriterTopicIds) -> None:
        self.group_id: Final = group_id
        self.subscriber: Any = None
        self._offsets = offsets.of_one_consumer()
        self._logs = ConsumedLogs(self, look_up)  # type: ignore[arg-type]  # asks for bounds and the cluster only
        self._assigned: set[TopicPartition] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._replaced: set[TopicPartition] = set()
        self._seen: set[TopicPartition] = set()
        """Partitions whose logs were checked."""

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """The ids of the topics, to be stored with the offsets."""
        return self._logs.topic_ids

    def subscribe(self, broker: Any, topics: Collection[str], own: Mapping[str, Any], settings: dict[str, Any]) -> Any:
        """Return a subscriber of the broker. Raises ConfigError if `settings` has a name in `own`."""
        is_confluent = type(broker).__module__.startswith("faststream.confluent")
        hooks = self._hooks_of_confluent() if is_confluent else {"listener": self._listener()}
        taken = {*own, *hooks} & settings.keys()
        if taken or self.subscriber is not None:
            why = f"it sets {', '.join(sorted(taken))} itself" if taken else "it has a subscriber already"
            raise ConfigError(f"ExactlyOnce.subscriber() did not subscribe: {why}; use another ExactlyOnce, or leave "
                              "these settings out")  # fmt: skip
        defaults = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        self.subscriber = broker.subscriber(*topics, **defaults | settings, **own, **hooks)
        return self.subscriber

    # ---- notifications of assignments -------------------------------------------------------------------------------

    def _listener(self) -> Any:
        from aiokafka import ConsumerRebalanceListener

        placing = self

        class Listener(ConsumerRebalanceListener):
            async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                placing._assigned.difference_update(TopicPartition(*each) for each in revoked)

            async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                placing._begin({TopicPartition(*each) for each in assigned})

        return Listener()

    def _hooks_of_confluent(self) -> dict[str, Any]:
        """Return callbacks, which confluent-kafka calls in a thread."""

        def assigned(consumer: Any, partitions: list[Any]) -> None:
            for task in self.subscriber.tasks[:1]:  # the polling task; none while the consumer is closed
                task.get_loop().call_soon_threadsafe(self._begin, _named(partitions))

        def lost(consumer: Any, partitions: list[Any]) -> None:
            for task in self.subscriber.tasks[:1]:
                task.get_loop().call_soon_threadsafe(self._assigned.difference_update, _named(partitions))

        return {"on_assign": assigned, "on_revoke": lost, "on_lost": lost}

    # ---- the steps --------------------------------------------------------------------------------------------------

    def _begin(self, partitions: set[TopicPartition]) -> None:
        self._assigned |= partitions
        if partitions:
            task = asyncio.get_running_loop().create_task(self._place_until_done(self.subscriber.consumer, partitions))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _place_until_done(self, consumer: Any, partitions: set[TopicPartition]) -> None:
        pause_s = FIRST_PAUSE_S
        while self.subscriber.consumer is consumer and (partitions := partitions & self._assigned):
            try:
                for partition, offset in (await self.positions(partitions)).items():
                    await _wait_for_position(consumer, partition)
                    if partition in self._assigned:
                        await seek_one(consumer, partition, offset)
            except ConsumedLogReplacedError as error:
                _log.error("%s", error)
                return
            except Exception as error:  # of the database, of Kafka, or of a consumer that does not fetch yet
                _log.info("group %s is not positioned at its stored offsets yet: %s", self.group_id, error)
            else:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def positions(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the rows of those partitions that have one. Raises ConsumedLogReplacedError."""
        rows = await self._offsets.start(self, partitions)  # type: ignore[arg-type]  # needs group_id only
        try:
            found = await self._logs.place(partitions, rows, self._offsets.stored_ids)
        except ConsumedLogReplacedError:
            self._replaced.update(partitions)
            raise
        self._seen.update(partitions)
        self._replaced.difference_update(partitions)
        return found

    async def check(self, first: Mapping[TopicPartition, int], rows: Mapping[TopicPartition, int]) -> None:
        """Raise ConsumedLogReplacedError if a log was replaced; checks new logs, and those that go back.

        `first` are the offsets of the first delivered records.
        """
        back = {each for each, offset in first.items() if offset < rows.get(each, 0)}
        doubted = back | (first.keys() - self._seen) | (first.keys() & self._replaced)
        if doubted:
            await self.positions(doubted)

    # ---- the consumer of ConsumedLogs -------------------------------------------------------------------------------

    async def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the first and the end offsets of the logs."""
        consumer = self.subscriber.consumer
        if not is_of_confluent(consumer):
            return await _of_aiokafka(consumer).bounds(partitions)
        asked = ConfluentAdapter(consumer.consumer).bounds(partitions)
        found: dict[TopicPartition, Bounds] = await self._in_thread(lambda: blocking.run(asked))
        return found

    async def cluster_id(self) -> str | None:
        """Return the id of the cluster that the consumer reads."""
        consumer = self.subscriber.consumer
        if not is_of_confluent(consumer):
            return await _of_aiokafka(consumer).cluster_id()
        topic = next(iter(self._assigned)).topic
        found: str | None = await self._in_thread(lambda: consumer.consumer.list_topics(topic, _TIMEOUT_S).cluster_id)
        return found

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        """Call a function of confluent-kafka's consumer like FastStream: one at a time, and not during `close`."""
        executor = self.subscriber.consumer._thread_pool  # noqa: SLF001
        return await asyncio.get_running_loop().run_in_executor(executor, function)


def is_of_confluent(consumer: Any) -> bool:
    """Return whether a consumer is FastStream's wrapper around a confluent-kafka consumer."""
    return hasattr(consumer, "consumer")


async def seek_one(consumer: Any, partition: TopicPartition, offset: int) -> None:
    """Move FastStream's consumer, of either library, to an offset of a partition."""
    if is_of_confluent(consumer):
        await consumer.seek(topic=partition.topic, partition=partition.partition, offset=offset)
        return
    from aiokafka import TopicPartition as Partition

    consumer.seek(Partition(*partition), offset)


async def _wait_for_position(consumer: Any, partition: TopicPartition) -> None:
    """Wait until aiokafka has the group's offset, which would otherwise replace the one of an earlier seek.

    confluent-kafka refuses to seek before that.
    """
    if not is_of_confluent(consumer):
        from aiokafka import TopicPartition as Partition

        await consumer.position(Partition(*partition))


def _of_aiokafka(consumer: Any) -> ConsumerAdapter:
    from dualwrite.recipes.consume.consumer_aiokafka import AiokafkaAdapter

    return AiokafkaAdapter(consumer)


def _named(partitions: Iterable[Any]) -> set[TopicPartition]:
    return {TopicPartition(each.topic, each.partition) for each in partitions}
