"""The settings that exist under a profile, and the effective value of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.configs import kafka_3_9
from dualwrite.broker_emulator.configs.broker_settings import DYNAMIC_ONLY_SETTINGS, broker_synonyms
from dualwrite.broker_emulator.configs.differences import (
    BROKER_SETTINGS_HERE,
    DIFFERENCES,
    OWN_SETTINGS,
    TOPIC_SETTINGS_HERE,
)
from dualwrite.broker_emulator.configs.reading import given_text
from dualwrite.broker_emulator.configs.resource_settings import BROKER_SETTING_OF_GROUP, GROUP_SETTINGS
from dualwrite.broker_emulator.configs.setting import Setting, Value
from dualwrite.broker_emulator.log.log_config import CleanupPolicy, LogConfig
from dualwrite.broker_emulator.profiles import Settings


@cache
def broker_settings(release: Settings) -> Mapping[str, Setting]:
    """Return the broker settings of a release."""
    if release is Settings.KAFKA_4_4:
        return BROKER_SETTINGS_HERE
    return _in_3_9(BROKER_SETTINGS_HERE, kafka_3_9.BROKER_CHANGES, kafka_3_9.BROKER_NOT_YET)


@cache
def alterable_broker_settings(release: Settings) -> Mapping[str, Setting]:
    """Return the broker settings of a release, including those that only requests can set."""
    return MappingProxyType({**broker_settings(release), **DYNAMIC_ONLY_SETTINGS})


@cache
def topic_settings(release: Settings) -> Mapping[str, Setting]:
    """Return the topic settings of a release."""
    if release is Settings.KAFKA_4_4:
        return TOPIC_SETTINGS_HERE
    return _in_3_9(TOPIC_SETTINGS_HERE, kafka_3_9.TOPIC_CHANGES, kafka_3_9.TOPIC_NOT_YET)


def _in_3_9(
    newest: Mapping[str, Setting], changes: Mapping[str, Setting], not_yet: frozenset[str]
) -> Mapping[str, Setting]:
    kept = {name: setting for name, setting in newest.items() if name not in not_yet}
    changed = {
        name: DIFFERENCES[name].applied_to(setting) if name in DIFFERENCES else setting
        for name, setting in changes.items()
    }
    return MappingProxyType({**kept, **changed})


def broker_value(config: BrokerConfig, name: str) -> str | None:
    """Return the effective value of a broker setting as text; None if it is unset and has no default."""
    field = name.replace(".", "_")
    if name in BROKER_SETTINGS_HERE and field in BrokerConfig.names():
        return given_text(getattr(config, field))
    if name in config.properties:
        return config.properties[name]
    setting = BROKER_SETTINGS_HERE.get(name)
    return None if setting is None else setting.default


def static_properties(config: BrokerConfig) -> dict[str, str]:
    """Return the settings given at the broker's start: in a file, or in Python if not the default."""
    found = dict(config.properties)
    defaults = BrokerConfig()
    for field in BrokerConfig.names():
        value = getattr(config, field)
        name = field.replace("_", ".")
        if value != getattr(defaults, field) and not any(synonym in found for synonym in broker_synonyms(name)):
            found[name] = given_text(value)
    return {name: text for name, text in found.items() if name not in OWN_SETTINGS}


def group_values(config: BrokerConfig, own: Mapping[str, str]) -> dict[str, str]:
    """Return the effective settings of a group: its own, the broker's, or the default."""
    values = {}
    for name, setting in GROUP_SETTINGS.items():
        of_brokers = broker_value(config, BROKER_SETTING_OF_GROUP[name]) if name in BROKER_SETTING_OF_GROUP else None
        value = own.get(name, setting.default if of_brokers is None else of_brokers)
        if value is not None:
            values[name] = value
    return values


def broker_log_config(config: BrokerConfig) -> LogConfig:
    """Return the log settings of topics without their own. Raises ValueError."""
    return LogConfig(
        segment_bytes=config.log_segment_bytes,
        segment_ms=config.log_roll_ms,
        cleanup_policy=_policies(TOPIC_SETTINGS_HERE["cleanup.policy"].parse(config.log_cleanup_policy)),
        retention_ms=config.log_retention_ms,
        retention_bytes=config.log_retention_bytes,
        delete_retention_ms=config.log_cleaner_delete_retention_ms,
        min_cleanable_dirty_ratio=config.log_cleaner_min_cleanable_ratio,
        min_compaction_lag_ms=config.log_cleaner_min_compaction_lag_ms,
        max_compaction_lag_ms=config.log_cleaner_max_compaction_lag_ms,
        max_message_bytes=config.message_max_bytes,
        max_decompressed_message_bytes=config.max_decompressed_message_bytes,
        min_insync_replicas=config.min_insync_replicas,
        message_timestamp_type=config.log_message_timestamp_type,
        message_timestamp_before_max_ms=config.log_message_timestamp_before_max_ms,
        message_timestamp_after_max_ms=config.log_message_timestamp_after_max_ms,
    )


_LOG_FIELDS: Final = {member.name.replace("_", "."): member.name for member in fields(LogConfig)}


def with_topic_configs(config: LogConfig, configs: Mapping[str, str | None]) -> LogConfig:
    """Return log settings overridden by a topic's configs; unknown names are ignored.

    Raises ValueError, with a sentence for the user, on a value that a setting does not accept.
    """
    values: dict[str, Any] = {}
    for name, text in configs.items():
        if name in _LOG_FIELDS and text is not None:
            value = TOPIC_SETTINGS_HERE[name].parse(text)
            values[_LOG_FIELDS[name]] = _policies(value) if name == "cleanup.policy" else value
    return replace(config, **values) if values else config


def _policies(names: Value) -> frozenset[CleanupPolicy]:
    assert isinstance(names, list)
    return frozenset(map(CleanupPolicy, names))
