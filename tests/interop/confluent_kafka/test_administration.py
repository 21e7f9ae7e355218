"""Administration with confluent-kafka's AdminClient, which is librdkafka's."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from tests.interop.conftest import Broker
from tests.interop.logged_records import values_of
from tests.interop.wire import DEADLINE_S, EARLIEST, GROUP, Wire, wait_for


@pytest.fixture
def admin(broker: Broker) -> Any:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def only(futures: dict[Any, Future[Any]]) -> Any:
    """The one result."""
    (future,) = futures.values()
    return future.result(DEADLINE_S)


def error_of(futures: dict[Any, Future[Any]]) -> int:
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        only(futures)
    code: int = caught.value.args[0].code()
    return code


def test_topics(admin: Any, topic: str) -> None:
    name = f"{topic}-made"
    new = NewTopic(name, 2, 1, config={"retention.ms": "60000"})
    only(admin.create_topics([new]))
    assert error_of(admin.create_topics([new])) == KafkaError.TOPIC_ALREADY_EXISTS
    only(admin.create_partitions([NewPartitions(name, 4)]))
    wait_for(lambda: len(admin.list_topics(name).topics[name].partitions), lambda count: count == 4)
    assert settings_of(admin, ConfigResource.Type.TOPIC, name)["retention.ms"].value == "60000"
    refused = NewTopic(f"{name}-refused", 1, 1, config={"colour": "blue"})
    assert error_of(admin.create_topics([refused])) == KafkaError.INVALID_CONFIG
    assert error_of(admin.create_partitions([NewPartitions(name, 3)])) == KafkaError.INVALID_PARTITIONS
    only(admin.delete_topics([name]))
    wait_for(lambda: name in admin.list_topics().topics, lambda is_there: not is_there)
    assert error_of(admin.delete_topics([name])) == KafkaError.UNKNOWN_TOPIC_OR_PART


def alter(admin: Any, kind: Any, name: str, operation: Any, key: str, value: str | None) -> dict[Any, Future[Any]]:
    entry = ConfigEntry(key, value, incremental_operation=operation)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    futures: dict[Any, Future[Any]] = admin.incremental_alter_configs([resource])
    return futures


def settings_of(admin: Any, kind: Any, name: str) -> dict[str, ConfigEntry]:
    entries: dict[str, ConfigEntry] = only(admin.describe_configs([ConfigResource(kind, name)]))
    return entries


def test_topic_settings(admin: Any, topic: str) -> None:
    of_topic = ConfigResource.Type.TOPIC, topic

    def described(name: str) -> tuple[str | None, Any]:
        entry = settings_of(admin, *of_topic)[name]
        return entry.value, ConfigSource(entry.source)

    assert described("retention.ms") == ("604800000", ConfigSource.DEFAULT_CONFIG)
    only(alter(admin, *of_topic, AlterConfigOpType.SET, "retention.ms", "5000"))
    only(alter(admin, *of_topic, AlterConfigOpType.APPEND, "cleanup.policy", "compact"))
    expected = ("5000", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    wait_for(lambda: described("retention.ms"), lambda found: found == expected)
    wait_for(lambda: described("cleanup.policy")[0], lambda found: found == "delete,compact")
    assert list(settings_of(admin, *of_topic)["max.message.bytes"].synonyms) == ["message.max.bytes"]
    only(alter(admin, *of_topic, AlterConfigOpType.DELETE, "retention.ms", None))
    wait_for(lambda: described("retention.ms")[0], lambda found: found == "604800000")
    assert error_of(alter(admin, *of_topic, AlterConfigOpType.SET, "no.such.name", "1")) == KafkaError.INVALID_CONFIG
    assert error_of(alter(admin, *of_topic, AlterConfigOpType.SET, "retention.ms", "soon")) == KafkaError.INVALID_CONFIG


def test_broker_settings(admin: Any) -> None:
    (node,) = admin.list_topics().brokers
    of_broker = ConfigResource.Type.BROKER, str(node)
    entries = settings_of(admin, *of_broker)
    assert entries["node.id"].value == str(node)
    assert entries["node.id"].is_read_only
    assert entries["ssl.key.password"].is_sensitive
    assert entries["message.max.bytes"].value == "1048588"
    only(alter(admin, *of_broker, AlterConfigOpType.SET, "log.retention.ms", "700000000"))
    wait_for(lambda: settings_of(admin, *of_broker)["log.retention.ms"].value, lambda value: value == "700000000")
    only(alter(admin, *of_broker, AlterConfigOpType.DELETE, "log.retention.ms", None))
    refused = alter(admin, *of_broker, AlterConfigOpType.SET, "num.partitions", "3")
    assert error_of(refused) == KafkaError.INVALID_REQUEST


def test_groups(admin: Any, wire: Wire, topic: str, group: str) -> None:
    wire.write(topic, b"a", b"b")
    wire.wait_for_coordinator(group, GROUP)
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 1)])
    only(admin.alter_consumer_group_offsets([wanted]))
    listed = admin.list_consumer_groups().result(DEADLINE_S)
    assert (group, "EMPTY") in [(each.group_id, each.state.name) for each in listed.valid]
    described = only(admin.describe_consumer_groups([group]))
    assert (described.state.name, described.members) == ("EMPTY", [])
    (found,) = only(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])).topic_partitions
    assert (found.topic, found.partition, found.offset) == (topic, 0, 1)
    only(admin.delete_consumer_groups([group]))
    assert error_of(admin.delete_consumer_groups([group])) == KafkaError.GROUP_ID_NOT_FOUND


def test_records_and_offsets(admin: Any, wire: Wire, topic: str) -> None:
    wire.write(topic, b"a", b"b")
    wire.write(topic, b"c")
    assert only(admin.delete_records([TopicPartition(topic, 0, 2)])).low_watermark == 2
    assert wire.list_offsets(topic, EARLIEST) == 2
    assert values_of(wire, topic) == [b"c"]
    for spec, offset in ((OffsetSpec.earliest(), 2), (OffsetSpec.latest(), 3)):
        assert only(admin.list_offsets({TopicPartition(topic, 0): spec})).offset == offset
    assert error_of(admin.delete_records([TopicPartition(topic, 0, 9)])) == KafkaError.OFFSET_OUT_OF_RANGE


def test_cluster(admin: Any, broker: Broker) -> None:
    described = admin.describe_cluster().result(DEADLINE_S)
    assert [f"{node.host}:{node.port}" for node in described.nodes] == [broker.bootstrap_servers]
    assert described.controller.id == described.nodes[0].id
    assert described.cluster_id


def test_election(admin: Any, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    results = admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, [partition]).result(DEADLINE_S)
    assert results[partition].code() == KafkaError.ELECTION_NOT_NEEDED
