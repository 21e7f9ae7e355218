"""The private attributes of consumer libraries that the adapters use still exist and still mean the same."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import confluent_kafka

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import Emulator
from dualwrite.producer import TopicPartition
from dualwrite.recipes.consume.consume import adapter_of
from dualwrite.recipes.consume.consumer_aiokafka import AiokafkaAdapter
from dualwrite.recipes.consume.consumer_confluent import ConfluentAdapter
from dualwrite.recipes.core import blocking
from tests.support.conditions import until
from tests.support.consumers import aiokafka_consumer, kafka_python


def cluster_id_of(emulator: Emulator) -> str | None:
    with TransactionAdmin(bootstrap_servers=emulator.bootstrap_servers) as admin:
        return admin.describe_topic_ids([]).cluster_id


def test_kafka_python_knows_the_cluster_id(emulator: Emulator) -> None:
    emulator.create_topic("in", 1)
    consumer = kafka_python(emulator.bootstrap_servers, "movers")
    adapter = adapter_of(consumer)
    until(lambda: consumer.partitions_for_topic("in") is not None)
    assert blocking.run(adapter.cluster_id()) == cluster_id_of(emulator)
    consumer.close()


def test_aiokafka_shows_its_settings_and_connections(emulator: Emulator) -> None:
    emulator.create_topic("in", 1)

    async def use() -> None:
        async with aiokafka_consumer(emulator.bootstrap_servers, "movers") as consumer:
            adapter = AiokafkaAdapter(consumer)
            assert adapter.group_id == "movers"
            assert await adapter.cluster_id() == cluster_id_of(emulator)
            consumer.subscribe(["in"])
            assert await adapter.committed([TopicPartition("in", 0)]) == {}

    asyncio.run(asyncio.wait_for(use(), 30))


def test_aiokafka_has_another_assignment_after_each_rebalance(emulator: Emulator) -> None:
    """Also of partitions that it keeps, and then starts at the offsets of the group."""
    emulator.create_topic("in", 1)

    async def use() -> None:
        async with aiokafka_consumer(emulator.bootstrap_servers, "movers") as consumer:
            adapter = AiokafkaAdapter(consumer)
            assert adapter._current_assignment() is None
            consumer.subscribe(["in"])
            await wait_for_change(adapter, None)
            first = adapter._current_assignment()
            async with aiokafka_consumer(emulator.bootstrap_servers, "movers") as other:
                other.subscribe(["in"])
                await wait_for_change(adapter, first)

    async def wait_for_change(adapter: AiokafkaAdapter, before: object) -> None:
        await asyncio.to_thread(until, lambda: adapter._current_assignment() is not before)

    asyncio.run(use())


class ClosedLate(confluent_kafka.Consumer):
    """A consumer that hears of its first assignment while it is being closed, and has left its group by then."""

    has_left = False

    def consumer_group_metadata(self) -> Any:
        if self.has_left:
            raise RuntimeError("Consumer group metadata not available")
        return super().consumer_group_metadata()

    def close(self) -> None:
        self.has_left = True
        super().close()


def test_a_closing_confluent_consumer_is_assigned_partitions(emulator: Emulator) -> None:
    emulator.create_topic("in", 1)
    consumer = ClosedLate({"bootstrap.servers": emulator.bootstrap_servers, "group.id": "movers"})
    asked: list[Any] = []

    async def start(partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        asked.append(partitions)
        return {}

    adapter = ConfluentAdapter(consumer)
    adapter.start = start
    blocking.run(adapter.subscribe(["in"]))
    until(lambda: [group.state for group in emulator.groups()] == ["Stable"])
    consumer.close()
    assert asked == []
