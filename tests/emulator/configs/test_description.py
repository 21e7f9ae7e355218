"""The reported layer of a value, and the values that stay hidden."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dualwrite.broker_emulator import BrokerConfig
from dualwrite.broker_emulator.configs.description import (
    BrokerLayers,
    ConfigSource,
    Entry,
    all_brokers_entries,
    broker_entries,
    client_metrics_entries,
    group_entries,
    only,
    topic_entries,
)
from dualwrite.broker_emulator.configs.effective import (
    broker_settings,
    broker_value,
    group_values,
    static_properties,
    topic_settings,
)
from dualwrite.broker_emulator.profiles import Settings

TOPIC, BROKER, ALL_BROKERS, STATIC, DEFAULT, _, CLIENT_METRICS, GROUP = ConfigSource


def layers(
    own: Mapping[str, str] | None = None,
    of_all_brokers: Mapping[str, str] | None = None,
    given: Mapping[str, str] | None = None,
) -> BrokerLayers:
    config = BrokerConfig.from_properties(given or {})
    effective = config.altered(of_all_brokers or {}).altered(own or {})
    return BrokerLayers(
        broker_settings(Settings.KAFKA_4_4),
        own or {},
        of_all_brokers or {},
        static_properties(config),
        lambda name: broker_value(effective, name),
    )


def entry(entries: list[Entry], name: str) -> Entry:
    (found,) = only(entries, [name])
    return found


def sources(found: Entry) -> list[tuple[str, str | None, ConfigSource]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in found.synonyms]


def test_the_nearest_layer_counts_and_the_others_are_told() -> None:
    found = entry(
        broker_entries(layers({"message.max.bytes": "1"}, {"message.max.bytes": "2"}, {"message.max.bytes": "3"})),
        "message.max.bytes",
    )
    assert (found.value, found.source, found.is_read_only) == ("1", BROKER, False)
    assert sources(found) == [
        ("message.max.bytes", "1", BROKER),
        ("message.max.bytes", "2", ALL_BROKERS),
        ("message.max.bytes", "3", STATIC),
        ("message.max.bytes", "1048588", DEFAULT),
    ]


def test_a_value_in_another_unit_is_a_synonym_behind_one_of_its_own() -> None:
    hours = layers(given={"log.retention.hours": "2"})
    assert entry(broker_entries(hours), "log.retention.ms")[1:3] == (None, DEFAULT)
    assert entry(broker_entries(hours), "log.retention.hours")[1:3] == ("2", STATIC)
    retention = entry(topic_entries(topic_settings(Settings.KAFKA_4_4), {}, hours), "retention.ms")
    assert (retention.value, retention.source, sources(retention)) == ("7200000", DEFAULT, [])
    both = layers(of_all_brokers={"log.retention.ms": "5"}, given={"log.retention.hours": "2"})
    assert sources(entry(broker_entries(both), "log.retention.ms")) == [
        ("log.retention.ms", "5", ALL_BROKERS),
        ("log.retention.hours", "2", STATIC),
        ("log.retention.hours", "168", DEFAULT),
    ]


def test_a_topics_own_value_stands_before_its_brokers() -> None:
    entries = topic_entries(
        topic_settings(Settings.KAFKA_4_4), {"max.message.bytes": " 9 "}, layers({"message.max.bytes": "8"})
    )
    found = entry(entries, "max.message.bytes")
    assert (found.value, found.source) == ("9", TOPIC)
    assert sources(found)[1:] == [("message.max.bytes", "8", BROKER), ("message.max.bytes", "1048588", DEFAULT)]
    assert "internal.segment.bytes" not in {entry.name for entry in entries}


def test_what_python_set_is_static() -> None:
    config = BrokerConfig(message_max_bytes=7, log_retention_ms=5, log_segment_bytes=1, max_request_elements=3)
    assert static_properties(config) == {
        "message.max.bytes": "7",
        "log.retention.ms": "5",
        "log.segment.bytes": "1",
    }


@pytest.mark.parametrize("name", ["ssl.key.password", "a.class.of.mine"])
def test_secrets_and_unknown_settings_have_no_value(name: str) -> None:
    given = layers({name: "hunter2"})
    found = entry(broker_entries(given), name)
    assert (found.value, found.is_sensitive, sources(found)) == (None, True, [(name, None, BROKER)])


def test_what_was_altered_for_all_brokers() -> None:
    (found,) = all_brokers_entries(layers({"message.max.bytes": "1"}, {"log.retention.ms": "5"}))
    assert found[:3] == ("log.retention.ms", "5", ALL_BROKERS)
    assert sources(found) == [("log.retention.ms", "5", ALL_BROKERS)]


def test_a_group() -> None:
    given = layers(given={"group.share.heartbeat.interval.ms": "7000"})
    own = {"consumer.session.timeout.ms": "50000"}
    config = BrokerConfig.from_properties({"group.share.heartbeat.interval.ms": "7000"})
    entries = group_entries(own, group_values(config, own), given)
    assert entry(entries, "consumer.session.timeout.ms")[1:3] == ("50000", GROUP)
    assert entry(entries, "share.heartbeat.interval.ms")[1:3] == ("7000", STATIC)
    assert entry(entries, "share.isolation.level")[1:3] == ("read_uncommitted", DEFAULT)


def test_a_subscription_to_client_metrics() -> None:
    entries = client_metrics_entries({"interval.ms": "100"})
    assert [(found.name, found.value, found.source, found.synonyms) for found in entries] == [
        ("interval.ms", "100", CLIENT_METRICS, [("interval.ms", "100", CLIENT_METRICS)]),
        ("match", "", DEFAULT, []),
        ("metrics", "", DEFAULT, []),
    ]
