"""Settings that Kafka does not have: DescribeConfigs does not show them, and nobody alters them over the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dualwrite.broker_emulator.configs.setting import Between, ConfigType, OneOf, Setting, by_name

OWN_SETTINGS: Final[Mapping[str, Setting]] = by_name(
    (
        Setting("profile", ConfigType.STRING, "kip-939", OneOf(("kip-939", "kafka-4.3", "kafka-3.9"))),
        Setting("transaction.version", ConfigType.INT, "2", Between(0, 2)),
        Setting("group.version", ConfigType.INT, "1", Between(0, 1)),
        Setting("max.request.elements", ConfigType.INT, "100000", Between(0)),
        Setting("memory.limit.bytes", ConfigType.LONG, "1073741824", Between(0)),
        Setting("fsync", ConfigType.STRING, "interval", OneOf(("always", "interval", "never"))),
    )
)
