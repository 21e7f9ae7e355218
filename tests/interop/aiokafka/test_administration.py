"""Administration with aiokafka's AIOKafkaAdminClient."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiokafka
import aiokafka.admin
import aiokafka.errors
import pytest
from aiokafka.admin import NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.interop.conftest import Broker
from tests.interop.logged_records import values_of
from tests.interop.wire import DEADLINE_S, EARLIEST, GROUP, Wire, wait_for


@pytest.fixture
def administer(broker: Broker) -> Callable[[Callable[[Any], Awaitable[Any]]], Any]:
    """Runs a call on a new client."""

    async def run(ask: Callable[[Any], Awaitable[Any]]) -> Any:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.start()
        try:
            return await asyncio.wait_for(ask(admin), DEADLINE_S)
        finally:
            await admin.close()

    return lambda ask: asyncio.run(run(ask))


def test_topics(administer: Any, topic: str) -> None:
    name = f"{topic}-made"
    made = administer(lambda admin: admin.create_topics([NewTopic(name, 2, 1)]))
    assert made.topic_errors[0][1] == 0
    administer(lambda admin: admin.create_partitions({name: NewPartitions(4)}))

    def count() -> int:
        (described,) = administer(lambda admin: admin.describe_topics([name]))
        return len(described["partitions"])

    wait_for(count, lambda found: found == 4)
    administer(lambda admin: admin.delete_topics([name]))
    wait_for(lambda: name in administer(lambda admin: admin.list_topics()), lambda is_there: not is_there)


def test_settings(administer: Any, topic: str) -> None:
    def retention() -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = administer(lambda admin: admin.describe_configs([resource]))
        value: str = {entry[0]: entry[1] for entry in answer.resources[0][4]}["retention.ms"]
        return value

    assert retention() == "604800000"
    wanted = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "5000"})
    administer(lambda admin: admin.alter_configs([wanted]))
    wait_for(retention, lambda value: value == "5000")


def test_records_and_groups(administer: Any, wire: Wire, topic: str, group: str) -> None:
    for value in (b"a", b"b", b"c"):
        wire.write(topic, value)
    partition = aiokafka.TopicPartition(topic, 0)
    administer(lambda admin: admin.delete_records({partition: RecordsToDelete(before_offset=2)}))
    assert wire.list_offsets(topic, EARLIEST) == 2
    assert values_of(wire, topic) == [b"c"]
    wire.wait_for_coordinator(group, GROUP)
    offsets = administer(lambda admin: admin.list_consumer_group_offsets(group, partitions=[partition]))
    assert offsets[partition].offset == -1


def test_cluster(administer: Any, broker: Broker) -> None:
    described = administer(lambda admin: admin.describe_cluster())
    assert [f"{node['host']}:{node['port']}" for node in described["brokers"]] == [broker.bootstrap_servers]
