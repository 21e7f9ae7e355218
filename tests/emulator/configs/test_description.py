"""The reported layer of a value, and the values that stay hidden."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dualwrite.broker_emulator import BrokerConfig
from dualwrite.broker_emulator.configs.description import (
    BrokerLayers,
    ConfigSource,
    Entry,
    broker_entries,
    only,
    topic_entries,
)
from dualwrite.broker_emulator.configs.effective import (
    broker_settings,
    broker_value,
    static_properties,
    topic_settings,
)
from dualwrite.broker_emulator.profiles import Settings

BROKER, ALL_BROKERS, STATIC, DEFAULT = list(ConfigSource)[1:5]


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


def test_a_setting_in_another_unit_is_a_lower_synonym() -> None:
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


@pytest.mark.parametrize("name", ["ssl.key.password", "a.class.of.mine"])
def test_secrets_and_unknown_settings_have_no_value(name: str) -> None:
    given = layers({name: "hunter2"})
    found = entry(broker_entries(given), name)
    assert (found.value, found.is_sensitive, sources(found)) == (None, True, [(name, None, BROKER)])
