"""Administration with kafka-python's KafkaAdminClient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kafka
import kafka.errors
import pytest
from kafka.admin import ConfigResource, NewPartitions, NewTopic

from tests.interop.conftest import Broker
from tests.interop.logged_records import values_of
from tests.interop.wire import EARLIEST, Wire, wait_for


@pytest.fixture
def admin(broker: Broker) -> Iterator[Any]:
    client = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield client
    client.close()


def test_topics(admin: Any, topic: str) -> None:
    name = f"{topic}-made"
    admin.create_topics([NewTopic(name, 2, 1, topic_configs={"retention.ms": "60000"})])
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        admin.create_topics([NewTopic(name, 2, 1)])
    admin.create_partitions({name: NewPartitions(4)})
    wait_for(lambda: len(admin.describe_topics([name])[0]["partitions"]), lambda count: count == 4)
    admin.delete_topics([name])
    wait_for(lambda: name in admin.list_topics(), lambda is_there: not is_there)


@pytest.mark.parametrize("incremental", [True, False])
def test_settings(admin: Any, topic: str, incremental: bool) -> None:
    def retention() -> str:
        described = admin.describe_configs([ConfigResource("TOPIC", topic)], config_filter="all")
        value: str = described["topic"][topic]["retention.ms"]["value"]
        return value

    assert retention() == "604800000"
    admin.alter_configs([ConfigResource("TOPIC", topic, {"retention.ms": "6000"})], incremental=incremental)
    wait_for(retention, lambda value: value == "6000")
    refused = admin.alter_configs([ConfigResource("TOPIC", topic, {"retention.ms": "soon"})], incremental=incremental)
    assert "Not a number of type LONG" in str(refused)


def test_records(admin: Any, wire: Wire, topic: str) -> None:
    for value in (b"a", b"b", b"c"):
        wire.write(topic, value)
    admin.delete_records({kafka.TopicPartition(topic, 0): 2})
    assert wire.list_offsets(topic, EARLIEST) == 2
    assert values_of(wire, topic) == [b"c"]


def test_cluster(admin: Any, broker: Broker) -> None:
    described = admin.describe_cluster()
    assert [f"{node['host']}:{node['port']}" for node in described["brokers"]] == [broker.bootstrap_servers]
