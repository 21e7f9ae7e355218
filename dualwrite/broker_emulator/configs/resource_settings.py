"""Kafka 4.4's settings of topics, groups (KIP-848, KIP-932, KIP-1071) and client metrics subscriptions (KIP-714)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dualwrite.broker_emulator.configs.setting import (
    Between,
    BetweenOr,
    ConfigType,
    OffsetReset,
    OneOf,
    Setting,
    ThrottledReplicas,
    by_name,
)

TOPIC_SETTINGS: Final[Mapping[str, Setting]] = by_name(
    (
        Setting("segment.bytes", ConfigType.INT, "1073741824", Between(1048576)),
        Setting("segment.ms", ConfigType.LONG, "604800000", Between(1)),
        Setting("segment.jitter.ms", ConfigType.LONG, "0", Between(0)),
        Setting("segment.index.bytes", ConfigType.INT, "10485760", Between(4)),
        Setting("flush.messages", ConfigType.LONG, "9223372036854775807", Between(1)),
        Setting("flush.ms", ConfigType.LONG, "9223372036854775807", Between(0)),
        Setting("retention.bytes", ConfigType.LONG, "-1"),
        Setting("retention.ms", ConfigType.LONG, "604800000", Between(-1)),
        Setting("max.message.bytes", ConfigType.INT, "1048588", Between(0)),
        Setting("max.decompressed.message.bytes", ConfigType.INT, "2147483639", Between(1, 2147483639)),
        Setting("index.interval.bytes", ConfigType.INT, "4096", Between(0)),
        Setting("delete.retention.ms", ConfigType.LONG, "86400000", Between(0)),
        Setting("min.compaction.lag.ms", ConfigType.LONG, "0", Between(0)),
        Setting("max.compaction.lag.ms", ConfigType.LONG, "9223372036854775807", Between(1)),
        Setting("file.delete.delay.ms", ConfigType.LONG, "60000", Between(0)),
        Setting("min.cleanable.dirty.ratio", ConfigType.DOUBLE, "0.5", Between(0, 1)),
        Setting("cleanup.policy", ConfigType.LIST, "delete", OneOf(("compact", "delete"))),
        Setting("unclean.leader.election.enable", ConfigType.BOOLEAN, "false"),
        Setting("min.insync.replicas", ConfigType.INT, "1", Between(1)),
        Setting(
            "compression.type",
            ConfigType.STRING,
            "producer",
            OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
        ),
        Setting("compression.gzip.level", ConfigType.INT, "-1", BetweenOr(1, 9, -1)),
        Setting("compression.lz4.level", ConfigType.INT, "9", Between(1, 17)),
        Setting("compression.zstd.level", ConfigType.INT, "3", Between(-131072, 22)),
        Setting("preallocate", ConfigType.BOOLEAN, "false"),
        Setting("message.timestamp.type", ConfigType.STRING, "CreateTime", OneOf(("CreateTime", "LogAppendTime"))),
        Setting("message.timestamp.before.max.ms", ConfigType.LONG, "9223372036854775807", Between(0)),
        Setting("message.timestamp.after.max.ms", ConfigType.LONG, "3600000", Between(0)),
        Setting("leader.replication.throttled.replicas", ConfigType.LIST, "", ThrottledReplicas()),
        Setting("follower.replication.throttled.replicas", ConfigType.LIST, "", ThrottledReplicas()),
        Setting("remote.storage.enable", ConfigType.BOOLEAN, "false"),
        Setting("local.retention.ms", ConfigType.LONG, "-2", Between(-2)),
        Setting("local.retention.bytes", ConfigType.LONG, "-2", Between(-2)),
        Setting("remote.log.copy.disable", ConfigType.BOOLEAN, "false"),
        Setting("remote.copy.lag.ms", ConfigType.LONG, "0", Between(-1)),
        Setting("remote.copy.lag.bytes", ConfigType.LONG, "-1", Between(-1)),
        Setting("remote.log.delete.on.disable", ConfigType.BOOLEAN, "false"),
        Setting("errors.deadletterqueue.group.enable", ConfigType.BOOLEAN, "false"),
        Setting("internal.segment.bytes", ConfigType.INT, None, is_internal=True),
    )
)

BROKER_SETTING_OF_TOPIC: Final[Mapping[str, str]] = {
    "segment.bytes": "log.segment.bytes",
    "segment.ms": "log.roll.ms",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.index.bytes": "log.index.size.max.bytes",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "max.message.bytes": "message.max.bytes",
    "max.decompressed.message.bytes": "max.decompressed.message.bytes",
    "index.interval.bytes": "log.index.interval.bytes",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "cleanup.policy": "log.cleanup.policy",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
    "min.insync.replicas": "min.insync.replicas",
    "compression.type": "compression.type",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.zstd.level": "compression.zstd.level",
    "preallocate": "log.preallocate",
    "message.timestamp.type": "log.message.timestamp.type",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "local.retention.ms": "log.local.retention.ms",
    "local.retention.bytes": "log.local.retention.bytes",
    "remote.copy.lag.ms": "log.remote.copy.lag.ms",
    "message.format.version": "log.message.format.version",  # these three: until Kafka 3.9
    "message.downconversion.enable": "log.message.downconversion.enable",
    "message.timestamp.difference.max.ms": "log.message.timestamp.difference.max.ms",
    "remote.copy.lag.bytes": "log.remote.copy.lag.bytes",
}
"""The broker setting that applies to a topic without a value of its own."""


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
        Setting("streams.num.warmup.replicas", ConfigType.INT, "2", Between(0), is_internal=True),
        Setting("streams.initial.rebalance.delay.ms", ConfigType.INT, "3000", Between(0)),
        Setting("streams.assignment.interval.ms", ConfigType.INT, "1000", Between(0)),
        Setting("streams.assignor.name", ConfigType.STRING, None),
        Setting("streams.rack.aware.assignment.tags", ConfigType.LIST, ""),
        Setting("errors.deadletterqueue.topic.name", ConfigType.STRING, ""),
        Setting("errors.deadletterqueue.copy.record.enable", ConfigType.BOOLEAN, "false"),
    )
)

BROKER_SETTING_OF_GROUP: Final[Mapping[str, str]] = {
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
    "streams.num.warmup.replicas": "group.streams.num.warmup.replicas",
    "streams.initial.rebalance.delay.ms": "group.streams.initial.rebalance.delay.ms",
    "streams.assignment.interval.ms": "group.streams.assignment.interval.ms",
    "streams.assignor.name": "group.streams.assignors",
    "streams.rack.aware.assignment.tags": "group.streams.rack.aware.assignment.tags",
}
"""The broker setting that applies to a group without a value of its own."""

CLIENT_METRICS_SETTINGS: Final[Mapping[str, Setting]] = by_name(
    (
        Setting("interval.ms", ConfigType.INT, "300000"),
        Setting("match", ConfigType.LIST, ""),
        Setting("metrics", ConfigType.LIST, ""),
    )
)
