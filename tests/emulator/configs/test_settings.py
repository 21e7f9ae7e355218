"""The tables of settings are consistent: in themselves, with `BrokerConfig`, and with their documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dualwrite.broker_emulator import BrokerConfig
from dualwrite.broker_emulator.configs.broker_settings import BROKER_SETTINGS, BROKER_SYNONYMS
from dualwrite.broker_emulator.configs.description import DOCUMENTATION
from dualwrite.broker_emulator.configs.differences import (
    BROKER_SETTINGS_HERE,
    DIFFERENCES,
    OWN_SETTINGS,
    TOPIC_SETTINGS_HERE,
)
from dualwrite.broker_emulator.configs.effective import broker_log_config
from dualwrite.broker_emulator.configs.reading import given_text
from dualwrite.broker_emulator.configs.resource_settings import (
    BROKER_SETTING_OF_TOPIC,
    CLIENT_METRICS_SETTINGS,
    GROUP_SETTINGS,
)
from dualwrite.broker_emulator.configs.security_settings import AUTHORIZER_SETTINGS
from dualwrite.broker_emulator.configs.setting import ConfigType, InvalidValueError, Setting
from dualwrite.broker_emulator.log.log_config import LogConfig

EVERY = [
    *BROKER_SETTINGS_HERE.values(),
    *TOPIC_SETTINGS_HERE.values(),
    *GROUP_SETTINGS.values(),
    *CLIENT_METRICS_SETTINGS.values(),
    *OWN_SETTINGS.values(),
]

IN_OTHER_UNITS = {"log.retention.ms", "log.roll.ms"}
"""Settings whose defaults Kafka has in hours."""


def test_a_field_has_the_default_that_the_table_says() -> None:
    defaults = BrokerConfig()
    told = {name: setting.default for name, setting in {**BROKER_SETTINGS_HERE, **OWN_SETTINGS}.items()}
    told |= {"node.id": "0"}  # Kafka has none
    fields = {field.replace("_", "."): given_text(getattr(defaults, field)) for field in BrokerConfig.names()}
    compared = (fields.keys() & told.keys()) - IN_OTHER_UNITS
    assert {name: fields[name] for name in compared} == {name: told[name] or "" for name in compared}


def test_every_field_is_a_setting() -> None:
    unknown = {field.replace("_", ".") for field in BrokerConfig.names()} - BROKER_SETTINGS.keys() - OWN_SETTINGS.keys()
    assert unknown == {"super.users", "allow.everyone.if.no.acl.found"}, "of the authorizer; others belong into a table"


def test_exactly_the_settings_with_an_effect_are_documented() -> None:
    fields = {field.replace("_", ".") for field in BrokerConfig.names()} - OWN_SETTINGS.keys()
    assert fields <= DOCUMENTATION.keys()
    known = {setting.name for setting in EVERY} | AUTHORIZER_SETTINGS.keys()
    assert known >= DOCUMENTATION.keys()
    of_topics = {name.replace("_", ".") for name in LogConfig.__dataclass_fields__}
    assert of_topics == DOCUMENTATION.keys() & TOPIC_SETTINGS_HERE.keys() | {"min.insync.replicas"}


def test_a_topic_without_settings_goes_by_the_brokers() -> None:
    assert broker_log_config(BrokerConfig()) == LogConfig()
    of_kafka_4 = BROKER_SETTING_OF_TOPIC.keys() & TOPIC_SETTINGS_HERE.keys()
    for name in of_kafka_4:
        of_brokers = BROKER_SETTING_OF_TOPIC[name]
        theirs, own = BROKER_SETTINGS_HERE[of_brokers], TOPIC_SETTINGS_HERE[name]
        assert (
            (theirs.type, theirs.rule) == (own.type, own.rule)
            or theirs.name in BROKER_SYNONYMS
            or (name in ("retention.bytes", "retention.ms", "segment.ms", "flush.ms"))
        ), name


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("retention.ms", "1_0", "Not a number of type LONG"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
        ("min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
        ("cleanup.policy", "compact,shred", "String must be one of: compact, delete"),
        ("compression.gzip.level", "0", "Value must be at least 1"),
        ("leader.replication.throttled.replicas", "x", r"it takes '\*' or a list"),
    ],
)
def test_values_that_a_setting_does_not_take(name: str, text: str, reason: str) -> None:
    with pytest.raises(InvalidValueError, match=f"for configuration {name}: {reason}"):
        TOPIC_SETTINGS_HERE[name].parse(text)


def test_an_error_does_not_reveal_a_secret() -> None:
    secret = Setting("password", ConfigType.PASSWORD, None, TOPIC_SETTINGS_HERE["compression.type"].rule)
    with pytest.raises(InvalidValueError) as refused:
        secret.parse("hunter2")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(("kind", "value"), [("BIDIRECTIONAL", True), ("Upgrade", True), ("sideways", False)])
def test_names_in_whichever_case(kind: str, value: bool) -> None:
    setting = BROKER_SETTINGS["group.consumer.migration.policy"]
    if value:
        assert setting.parse(kind) == kind
    else:
        with pytest.raises(InvalidValueError):
            setting.parse(kind)


def test_the_page_names_every_difference_and_every_effect() -> None:
    settings = (Path(__file__).parents[3] / "docs" / "emulator-settings.md").read_text()
    named = set(re.findall(r"`([a-z0-9.]+)`", settings))
    assert named >= DIFFERENCES.keys() | OWN_SETTINGS.keys()
    effective = DOCUMENTATION.keys() - AUTHORIZER_SETTINGS.keys() - {"log.flush.scheduler.interval.ms"}
    assert effective <= named
    for name, difference in DIFFERENCES.items():
        assert f"| {difference.reason} |" in settings, name
