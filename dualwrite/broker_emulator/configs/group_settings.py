"""Settings of a group (GROUP resources: KIP-848, KIP-932, KIP-1071) and of a client metrics subscription (KIP-714)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dualwrite.broker_emulator.configs.setting import Between, ConfigType, OffsetReset, OneOf, Setting, by_name

GROUP_SETTINGS: Final[Mapping[str, Setting]] = by_name(
    (
        Setting("consumer.session.timeout.ms", ConfigType.INT, "45000", Between(1)),
        Setting("consumer.heartbeat.interval.ms", ConfigType.INT, "5000", Between(1)),
        Setting("consumer.assignment.interval.ms", ConfigType.INT, "1000", Between(0)),
        Setting("share.session.timeout.ms", ConfigType.INT, "45000", Between(1)),
        Setting("share.heartbeat.interval.ms", ConfigType.INT, "5000", Between(1)),
        Setting("share.record.lock.duration.ms", ConfigType.INT, "30000", Between(1000)),
        Setting("share.delivery.count.limit", ConfigType.INT, "5", Between(2)),
        Setting("share.partition.max.record.locks", ConfigType.INT, "2000", Between(100)),
        Setting("share.assignment.interval.ms", ConfigType.INT, "1000", Between(0)),
        Setting("share.auto.offset.reset", ConfigType.STRING, "latest", OffsetReset()),
        Setting(
            "share.isolation.level",
            ConfigType.STRING,
            "read_uncommitted",
            OneOf(("read_committed", "read_uncommitted")),
        ),
        Setting("share.renew.acknowledge.enable", ConfigType.BOOLEAN, "true"),
        Setting("streams.session.timeout.ms", ConfigType.INT, "45000", Between(1)),
        Setting("streams.heartbeat.interval.ms", ConfigType.INT, "5000", Between(1)),
        Setting("streams.num.standby.replicas", ConfigType.INT, "0", Between(0)),
        Setting("streams.initial.rebalance.delay.ms", ConfigType.INT, "3000", Between(0)),
        Setting("streams.assignment.interval.ms", ConfigType.INT, "1000", Between(0)),
        Setting("streams.assignor.name", ConfigType.STRING, None),
        Setting("streams.rack.aware.assignment.tags", ConfigType.LIST, ""),
        Setting("errors.deadletterqueue.topic.name", ConfigType.STRING, ""),
        Setting("errors.deadletterqueue.copy.record.enable", ConfigType.BOOLEAN, "false"),
    )
)

BROKER_SETTING_OF: Final[Mapping[str, str]] = {
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms": "group.consumer.assignment.interval.ms",
    "share.session.timeout.ms": "group.share.session.timeout.ms",
    "share.heartbeat.interval.ms": "group.share.heartbeat.interval.ms",
    "share.record.lock.duration.ms": "group.share.record.lock.duration.ms",
    "share.delivery.count.limit": "group.share.delivery.count.limit",
    "share.partition.max.record.locks": "group.share.partition.max.record.locks",
    "share.assignment.interval.ms": "group.share.assignment.interval.ms",
    "streams.session.timeout.ms": "group.streams.session.timeout.ms",
    "streams.heartbeat.interval.ms": "group.streams.heartbeat.interval.ms",
    "streams.num.standby.replicas": "group.streams.num.standby.replicas",
    "streams.initial.rebalance.delay.ms": "group.streams.initial.rebalance.delay.ms",
    "streams.assignment.interval.ms": "group.streams.assignment.interval.ms",
    "streams.assignor.name": "group.streams.assignors",
    "streams.rack.aware.assignment.tags": "group.streams.rack.aware.assignment.tags",
}
"""Which setting of its brokers a group goes by that has none of its own."""

CLIENT_METRICS_SETTINGS: Final[Mapping[str, Setting]] = by_name(
    (
        Setting("metrics", ConfigType.LIST, ""),
        Setting("interval.ms", ConfigType.INT, "300000"),
        Setting("match", ConfigType.LIST, ""),
    )
)
