"""Settings through the administration clients of kafka-python, confluent-kafka and aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource as AiokafkaResource
from aiokafka.admin.config_resource import ConfigResourceType as AiokafkaType
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)
from kafka.admin import ConfigResource as KafkaPythonResource
from kafka.admin import KafkaAdminClient

from dualwrite.broker_emulator import BrokerConfig, Emulator


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)
    with Emulator(config=config, topics={"confluent": 1, "kafka-python": 1, "aiokafka": 1}) as broker:
        yield broker


@pytest.fixture
def confluent(emulator: Emulator) -> AdminClient:
    return AdminClient({"bootstrap.servers": emulator.bootstrap_servers})


def described(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    (answer,) = admin.describe_configs([ConfigResource(kind, name)]).values()
    found: dict[str, ConfigEntry] = answer.result(60)
    return found


def source_of(entry: ConfigEntry) -> Any:
    """Return the number of its source, which confluent-kafka annotates as ConfigSource."""
    return entry.source


def altered(admin: AdminClient, kind: ResourceType, name: str, **changes: tuple[AlterConfigOpType, str | None]) -> None:
    entries = [
        ConfigEntry(key.replace("_", "."), value or "", incremental_operation=operation)
        for key, (operation, value) in changes.items()
    ]
    (answer,) = admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=entries)]).values()
    answer.result(60)


def test_confluent_kafka_alters_a_topic(confluent: AdminClient) -> None:
    topic, operation = ResourceType.TOPIC, AlterConfigOpType
    before = described(confluent, topic, "confluent")
    assert before["segment.bytes"].is_default
    assert source_of(before["cleanup.policy"]) == ConfigSource.DEFAULT_CONFIG.value
    altered(
        confluent,
        topic,
        "confluent",
        retention_ms=(operation.SET, "5000"),
        cleanup_policy=(operation.APPEND, "compact"),
    )
    after = described(confluent, topic, "confluent")
    assert (after["retention.ms"].value, after["cleanup.policy"].value) == ("5000", "delete,compact")
    assert source_of(after["retention.ms"]) == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert list(after["max.message.bytes"].synonyms) == ["message.max.bytes"]
    altered(confluent, topic, "confluent", retention_ms=(operation.DELETE, None))
    assert described(confluent, topic, "confluent")["retention.ms"].value == "604800000"
    with pytest.raises(KafkaException, match="Unknown topic config name: colour"):
        altered(confluent, topic, "confluent", colour=(operation.SET, "blue"))


def test_confluent_kafka_alters_a_broker(confluent: AdminClient) -> None:
    broker, operation = ResourceType.BROKER, AlterConfigOpType
    assert described(confluent, broker, "0")["num.partitions"].is_read_only
    assert described(confluent, broker, "0")["ssl.key.password"].is_sensitive
    altered(confluent, broker, "0", log_retention_ms=(operation.SET, "7000"))
    assert described(confluent, broker, "0")["log.retention.ms"].value == "7000"
    altered(confluent, broker, "0", log_retention_ms=(operation.DELETE, None))
    with pytest.raises(KafkaException, match="Cannot update these configs dynamically"):
        altered(confluent, broker, "0", num_partitions=(operation.SET, "3"))


def test_confluent_kafka_creates_a_topic_with_settings(confluent: AdminClient) -> None:
    (created,) = confluent.create_topics([NewTopic("made", 1, 1, config={"retention.ms": "9000"})]).values()
    created.result(60)
    assert described(confluent, ResourceType.TOPIC, "made")["retention.ms"].value == "9000"
    (refused,) = confluent.create_topics([NewTopic("refused", 1, 1, config={"colour": "blue"})]).values()
    with pytest.raises(KafkaException, match="Unknown topic config name: colour"):
        refused.result(60)


def test_kafka_python(emulator: Emulator) -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=emulator.bootstrap_servers)
    try:
        found = admin.describe_configs([KafkaPythonResource("TOPIC", "kafka-python")], config_filter="all")
        assert found["topic"]["kafka-python"]["retention.ms"]["value"] == "604800000"
        for incremental, value in ((True, "6000"), (False, "7000")):
            change = KafkaPythonResource("TOPIC", "kafka-python", {"retention.ms": value})
            admin.alter_configs([change], incremental=incremental)
            found = admin.describe_configs([KafkaPythonResource("TOPIC", "kafka-python")])
            assert found["topic"]["kafka-python"]["retention.ms"]["value"] == value
        refused = admin.alter_configs([KafkaPythonResource("TOPIC", "kafka-python", {"retention.ms": "soon"})])
        assert "Not a number of type LONG" in str(refused)
    finally:
        admin.close()


def test_aiokafka(emulator: Emulator) -> None:
    async def act() -> dict[str, str | None]:
        admin: Any = AIOKafkaAdminClient(bootstrap_servers=emulator.bootstrap_servers)
        await admin.start()
        try:
            resource = AiokafkaResource(AiokafkaType.TOPIC, "aiokafka", {"retention.ms": "8000"})
            await admin.alter_configs([resource])
            (answer,) = await admin.describe_configs([AiokafkaResource(AiokafkaType.TOPIC, "aiokafka")])
            (row,) = answer.resources
            return {config[0]: config[1] for config in row[4]}
        finally:
            await admin.close()

    assert asyncio.run(act())["retention.ms"] == "8000"
