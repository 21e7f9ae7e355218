"""Which settings there are under a profile: those of Kafka 4.4, or of the release that is imitated."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from dualwrite.broker_emulator.config import Profile
from dualwrite.broker_emulator.configs import kafka_3_9
from dualwrite.broker_emulator.configs.broker_settings import NOT_IN_A_FILE
from dualwrite.broker_emulator.configs.differences import BROKER_SETTINGS_HERE, DIFFERENCES, TOPIC_SETTINGS_HERE
from dualwrite.broker_emulator.configs.setting import Setting


@cache
def broker_settings(profile: Profile) -> Mapping[str, Setting]:
    """The settings of a broker."""
    if profile is not Profile.KAFKA_3_9:
        return BROKER_SETTINGS_HERE
    return _in_3_9(BROKER_SETTINGS_HERE, kafka_3_9.BROKER_CHANGES, kafka_3_9.BROKER_NOT_YET)


@cache
def alterable_broker_settings(profile: Profile) -> Mapping[str, Setting]:
    """The settings of a broker, and those that only requests can set."""
    return MappingProxyType({**broker_settings(profile), **NOT_IN_A_FILE})


@cache
def topic_settings(profile: Profile) -> Mapping[str, Setting]:
    """The settings of a topic."""
    if profile is not Profile.KAFKA_3_9:
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
