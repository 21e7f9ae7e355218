"""The features of a cluster: the levels that a broker supports, and the finalized level.

Kafka has more features (KIP-584, KIP-1022); this broker has only those that affect its behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum
from typing import Any

from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.storage.storage import FinalizedFeatures

TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
SHARE_VERSION = "share.version"
NEWEST_LEVELS: Mapping[str, int] = {GROUP_VERSION: 1, SHARE_VERSION: 1, TRANSACTION_VERSION: 2}


class UpgradeType(IntEnum):
    """The kind of change to a feature's level, by its number in UpdateFeatures."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def supported_levels(feature: str, config: BrokerConfig) -> range | None:
    """Return the levels of a feature that a broker with `config` supports, or None for an unknown feature."""
    if feature not in NEWEST_LEVELS or not config.behaviours.has_features:
        return None
    return range(NEWEST_LEVELS[feature] + 1)


def finalized_level(feature: str, config: BrokerConfig) -> int:
    """Return the finalized level of a feature in a cluster with `config`; 0 for an unknown feature."""
    if supported_levels(feature, config) is None:
        return 0
    level: int = getattr(config, _field(feature))
    return level


def level_problem(level: int, upgrade_type: int, *, finalized: int, supported: range | None) -> str | None:
    """Return why a feature's finalized level cannot become `level`, checked in Kafka's order, or None.

    Level 0 means that the feature is not finalized, so even an unknown feature can be set to it.
    """
    if upgrade_type not in tuple(UpgradeType):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    if supported is None and level > 0:
        return "This broker does not support this feature."
    if supported is not None and level not in supported:
        return f"This broker only supports versions {supported[0]}-{supported[-1]}"
    if level < finalized and upgrade_type == UpgradeType.UPGRADE:
        return "A downgrade needs the upgrade type of a safe or an unsafe downgrade."
    if level > finalized and upgrade_type != UpgradeType.UPGRADE:
        return "A downgrade cannot lead to a newer version."
    return None


def as_finalized(config: BrokerConfig, features: FinalizedFeatures) -> BrokerConfig:
    """Return the settings with the levels set by updates of the features."""
    levels: dict[str, Any] = {_field(feature): level for feature, level in _levels(features)}
    return replace(config, **levels) if levels else config


def updated(features: FinalizedFeatures, levels: Mapping[str, int]) -> FinalizedFeatures:
    """Return the features with these levels; every update increments the epoch."""
    known = {_field(feature): level for feature, level in levels.items() if feature in NEWEST_LEVELS}
    return features._replace(epoch=features.epoch + 1, **known)


def unsupported(features: FinalizedFeatures, config: BrokerConfig) -> str | None:
    """Return a feature and its level that a broker with `config` does not support, or None. Level 0 is supported."""
    for feature, level in _levels(features):
        if level not in (supported_levels(feature, config) or range(1)):
            return f"{feature} {level}"
    return None


def _levels(features: FinalizedFeatures) -> list[tuple[str, int]]:
    levels = ((feature, getattr(features, _field(feature))) for feature in NEWEST_LEVELS)
    return [(feature, level) for feature, level in levels if level is not None]


def _field(feature: str) -> str:
    return feature.replace(".", "_")
