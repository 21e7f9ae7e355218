"""Settings over the wire: they are described, altered, take effect at once and survive restarts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile, VirtualClock
from tests.emulator.api.config_requests import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    DELETE,
    GROUP,
    SET,
    TOPIC,
    alter,
    describe,
    describe_result,
    listed,
    put,
    values_of,
)
from tests.emulator.api.raw_client import RawClient, milliseconds, plain_batch

CONFIG = BrokerConfig(transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)
DONE = (0, None)
TOO_LARGE, NOT_ENOUGH_REPLICAS, INVALID_CONFIG, INVALID_REQUEST = 10, 19, 40, 42
OF_TOPIC, OF_BROKER, OF_ALL_BROKERS, STATIC, DEFAULT, OF_LOGGER, _, OF_GROUP = range(1, 9)

_names = count(1)


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    """Start two nodes; every test creates its own topics."""
    with Emulator(nodes=2, config=CONFIG, clock=VirtualClock()) as broker:
        yield broker


@pytest.fixture
def topic(emulator: Emulator) -> str:
    """Create a topic that node 0 leads."""
    name = f"topic-{next(_names)}"
    emulator.create_topic(name)
    emulator.move_leader(name, 0, 0)
    return name


@pytest.fixture
def other_client(emulator: Emulator) -> Iterator[RawClient]:
    """Connect to node 1."""
    with RawClient(emulator.bootstrap_servers.split(",")[1]) as connection:
        yield connection


def error_of(client: RawClient, topic: str, value: bytes = b"v", **values: Any) -> int:
    return int(client.produce(topic, plain_batch(value), **values).error_code)


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"colour": "blue"}, "Unknown topic config name: colour"),
        ({"retention_ms": "x"}, "Not a number of type LONG"),
        ({"retention_ms": None}, "Null value not supported for topic configs: retention.ms"),
    ],
)
def test_a_topic_with_invalid_settings_is_not_created(
    client: RawClient, emulator: Emulator, configs: dict[str, Any], said: str
) -> None:
    refused = client.create_topic("refused", **configs)
    assert (refused.error_code, refused.configs) == (INVALID_CONFIG, ())
    assert said in refused.error_message
    assert describe_result(client, TOPIC, "refused").error_code == 3


def test_too_few_replicas(client: RawClient, emulator: Emulator, topic: str) -> None:
    assert alter(client, TOPIC, topic, ("min.insync.replicas", SET, "2")) == DONE
    assert error_of(client, topic) == 0
    emulator.stop_node(1)
    try:
        assert error_of(client, topic) == NOT_ENOUGH_REPLICAS
        assert error_of(client, topic, acks=1) == 0
        single = f"topic-{next(_names)}"
        assert client.create_topic(single, min_insync_replicas="2").error_code == 0
        assert error_of(client, single) == 0, "a topic with one copy has no second one to wait for"
    finally:
        emulator.start_node(1)


def test_all_brokers_and_one_of_them(client: RawClient, emulator: Emulator, topic: str) -> None:
    wide, narrow = ("message.max.bytes", SET, "2000"), ("message.max.bytes", SET, "500")
    assert alter(client, BROKER, "", wide) == DONE
    assert values_of(client, TOPIC, topic, "max.message.bytes") == [("2000", OF_ALL_BROKERS)]
    assert error_of(client, topic, bytes(1000)) == 0
    assert alter(client, BROKER, "0", narrow) == DONE
    assert error_of(client, topic, bytes(1000)) == TOO_LARGE
    emulator.move_leader(topic, 0, 1)
    with RawClient(emulator.bootstrap_servers.split(",")[1]) as other:
        assert error_of(other, topic, bytes(1000)) == 0, "the new leader goes by what all brokers do"
        assert values_of(other, BROKER, "1", "message.max.bytes") == [("2000", OF_ALL_BROKERS)]
    described = describe(client, BROKER, "0", ["message.max.bytes"])["message.max.bytes"]
    assert (described.value, described.read_only) == ("500", False)
    assert [(synonym.value, synonym.source) for synonym in described.synonyms] == [
        ("500", OF_BROKER),
        ("2000", OF_ALL_BROKERS),
        ("1048588", DEFAULT),
    ]
    assert [config.value for config in describe(client, BROKER, "").values()] == ["2000"]
    for name in ("", "0"):
        assert alter(client, BROKER, name, ("message.max.bytes", DELETE, None)) == DONE
    assert values_of(client, BROKER, "0", "message.max.bytes") == [("1048588", DEFAULT)]


def test_a_broker_speaks_for_itself_only(client: RawClient, other_client: RawClient) -> None:
    assert describe_result(client, BROKER, "1").error_code == INVALID_REQUEST
    assert values_of(other_client, BROKER, "1", "node.id", "broker.id") == [("1", STATIC), ("1", STATIC)]


def test_connections_are_counted_by_the_newest_limit(emulator: Emulator, client: RawClient) -> None:
    assert alter(client, BROKER, "0", ("max.connections", SET, "1")) == DONE
    with RawClient(emulator.bootstrap_servers) as refused:
        assert refused.is_closed()
    assert alter(client, BROKER, "0", ("max.connections", DELETE, None)) == DONE


def test_a_resource_is_named_once(client: RawClient, topic: str) -> None:
    config = {"name": "retention.ms", "config_operation": SET, "value": "5"}
    twice = {"resource_type": TOPIC, "resource_name": topic, "configs": (config,)}
    answered = client.call("incremental_alter_configs", 1, resources=(twice, twice), validate_only=False)
    said = "Each resource must appear at most once."
    assert [(row.error_code, row.error_message) for row in answered.responses] == [(INVALID_REQUEST, said)] * 2
    assert values_of(client, TOPIC, topic, "retention.ms") == [("604800000", DEFAULT)]


@pytest.mark.parametrize(
    ("resource_type", "name", "error"),
    [(TOPIC, "absent", 3), (TOPIC, "no name", 17), (GROUP, "", 42), (CLIENT_METRICS, "", 42), (BROKER_LOGGER, "", 42)]
    + [(resource_type, "x", 42) for resource_type in (0, 1, 77, BROKER, BROKER_LOGGER)],
)
def test_unknown_resources_cannot_be_described(client: RawClient, resource_type: int, name: str, error: int) -> None:
    refused = describe_result(client, resource_type, name)
    assert (refused.error_code, refused.configs) == (error, ())
    assert refused.error_message


def test_levels_of_loggers(client: RawClient) -> None:
    name = "dualwrite.broker_emulator.log.partition_log"
    try:
        assert alter(client, BROKER_LOGGER, "0", ("root", SET, "ERROR"), (name, SET, "DEBUG")) == DONE
        levels = {logger: config.value for logger, config in describe(client, BROKER_LOGGER, "0").items()}
        assert (levels["root"], levels[name]) == ("ERROR", "DEBUG")
        assert logging.getLogger(name).isEnabledFor(logging.DEBUG)
        assert alter(client, BROKER_LOGGER, "0", (name, DELETE, None)) == DONE
        assert values_of(client, BROKER_LOGGER, "0", name) == [("ERROR", OF_LOGGER)]
        assert alter(client, BROKER_LOGGER, "0", ("root", DELETE, None))[0] == INVALID_REQUEST
        assert alter(client, BROKER_LOGGER, "0", (name, SET, "LOUD"))[0] == INVALID_CONFIG
        assert alter(client, BROKER_LOGGER, "0", ("urllib3", SET, "INFO"))[0] == INVALID_CONFIG
    finally:
        logging.getLogger("dualwrite.broker_emulator").setLevel(logging.NOTSET)


def test_groups_and_subscriptions_are_listed_while_something_is_set(client: RawClient, topic: str) -> None:
    assert alter(client, GROUP, "listed", ("consumer.heartbeat.interval.ms", SET, "6000")) == DONE
    assert alter(client, CLIENT_METRICS, "all", ("interval.ms", SET, "1000"), ("metrics", SET, "*")) == DONE
    assert ("listed", GROUP) in listed(client, GROUP)[1]
    assert listed(client, version=0) == (0, [("all", None)])
    everything = listed(client)[1]
    assert {("0", BROKER), ("1", BROKER_LOGGER), (topic, TOPIC), ("all", CLIENT_METRICS)} <= set(everything)
    assert listed(client, 77) == (35, [])
    assert alter(client, GROUP, "listed", ("consumer.heartbeat.interval.ms", DELETE, None)) == DONE
    assert alter(client, CLIENT_METRICS, "all", ("interval.ms", DELETE, None), ("metrics", DELETE, None)) == DONE
    assert ("listed", GROUP) not in listed(client)[1]
    assert listed(client, CLIENT_METRICS) == (0, [])


def test_everything_altered_is_there_again_after_a_restart(tmp_path: Path) -> None:
    with Emulator(config=CONFIG, topics={"t": 1, "u": 1}, data_dir=tmp_path) as emulator:
        client = RawClient(emulator.bootstrap_servers)
        assert alter(client, TOPIC, "t", ("max.message.bytes", SET, "500")) == DONE
        assert put(client, TOPIC, "u", {"retention.ms": "5"}) == DONE
        assert put(client, TOPIC, "u", {}) == DONE
        assert alter(client, BROKER, "", ("log.retention.ms", SET, "9000")) == DONE
        assert alter(client, BROKER, "0", ("log.segment.bytes", SET, "1000")) == DONE
        assert alter(client, GROUP, "g", ("consumer.session.timeout.ms", SET, "50000")) == DONE
    with Emulator(config=CONFIG, data_dir=tmp_path) as emulator:
        client = RawClient(emulator.bootstrap_servers)
        assert values_of(client, TOPIC, "t", "max.message.bytes", "retention.ms", "segment.bytes") == [
            ("500", OF_TOPIC),
            ("9000", OF_ALL_BROKERS),
            ("1000", OF_BROKER),
        ]
        assert error_of(client, "t", bytes(1000)) == TOO_LARGE
        assert values_of(client, TOPIC, "u", "retention.ms") == [("9000", OF_ALL_BROKERS)]
        assert values_of(client, GROUP, "g", "consumer.session.timeout.ms") == [("50000", OF_GROUP)]


def test_deleting_topics_can_be_forbidden() -> None:
    with Emulator(config=BrokerConfig(delete_topic_enable=False), topics={"t": 1}) as emulator:
        client = RawClient(emulator.bootstrap_servers)
        for version, error in ((6, 73), (2, 42)):
            named = {"topic_names": ("t",)} if version < 6 else {}
            topics = () if version < 6 else ({"name": "t", "topic_id": None},)
            answered = client.call("delete_topics", version, topics=topics, timeout=milliseconds(1000), **named)
            assert answered.responses[0].error_code == error


def test_kafka_3_9_has_its_own_settings() -> None:
    with Emulator(config=BrokerConfig(profile=Profile.KAFKA_3_9), topics={"t": 1}) as emulator:
        client = RawClient(emulator.bootstrap_servers)
        described = describe(client, TOPIC, "t")
        assert {"message.format.version", "message.downconversion.enable"} <= described.keys()
        assert "remote.copy.lag.ms" not in described
        assert alter(client, TOPIC, "t", ("remote.copy.lag.ms", SET, "5"))[0] == INVALID_CONFIG
        assert [synonym.name for synonym in described["message.format.version"].synonyms] == [
            "log.message.format.version"
        ]
        assert "zookeeper.connect" in describe(client, BROKER, "0")
        assert describe_result(client, GROUP, "g").error_code == INVALID_REQUEST
        assert describe(client, CLIENT_METRICS, "s") == {}
        assert alter(client, CLIENT_METRICS, "s", ("interval.ms", SET, "1000")) == DONE
        assert describe(client, CLIENT_METRICS, "s").keys() == {"interval.ms"}


def test_the_topics_of_the_coordinators_have_kafkas_settings(client: RawClient) -> None:
    """Topic settings as Apache Kafka 4.4.0 creates them, but for the sizes of segments."""
    own = 1
    assert values_of(
        client, TOPIC, "__transaction_state", "cleanup.policy", "compression.type", "unclean.leader.election.enable"
    ) == [("compact", own), ("uncompressed", own), ("false", own)]
    assert values_of(client, TOPIC, "__transaction_state", "min.insync.replicas") == [("1", own)]
    assert values_of(client, TOPIC, "__consumer_offsets", "cleanup.policy", "compression.type") == [
        ("compact", own),
        ("producer", own),
    ]
