"""How the settings of Apache Kafka 3.9 differ from those of 4.4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from dualwrite.broker_emulator.configs.broker_settings import BROKER_SETTINGS
from dualwrite.broker_emulator.configs.resource_settings import TOPIC_SETTINGS
from dualwrite.broker_emulator.configs.setting import Between, ConfigType, OneOf, Rule, Setting, UpdateMode, by_name

PER_BROKER: Final = UpdateMode.PER_BROKER
CLUSTER_WIDE: Final = UpdateMode.CLUSTER_WIDE

BROKER_CHANGES: Final[Mapping[str, Setting]] = by_name(
    (
        Setting("remote.log.manager.thread.pool.size", ConfigType.INT, "10", Between(1)),
        Setting("remote.log.manager.copier.thread.pool.size", ConfigType.INT, "-1"),
        Setting("remote.log.manager.expiration.thread.pool.size", ConfigType.INT, "-1"),
        Setting("remote.log.reader.threads", ConfigType.INT, "10", Between(1)),
        Setting("zookeeper.connect", ConfigType.STRING, None),
        Setting("zookeeper.session.timeout.ms", ConfigType.INT, "18000"),
        Setting("zookeeper.connection.timeout.ms", ConfigType.INT, None),
        Setting("zookeeper.set.acl", ConfigType.BOOLEAN, "false"),
        Setting("zookeeper.max.in.flight.requests", ConfigType.INT, "10", Between(1)),
        Setting("zookeeper.ssl.client.enable", ConfigType.BOOLEAN, "false"),
        Setting("zookeeper.clientCnxnSocket", ConfigType.STRING, None),
        Setting("zookeeper.ssl.keystore.location", ConfigType.STRING, None),
        Setting("zookeeper.ssl.keystore.password", ConfigType.PASSWORD, None),
        Setting("zookeeper.ssl.keystore.type", ConfigType.STRING, None),
        Setting("zookeeper.ssl.truststore.location", ConfigType.STRING, None),
        Setting("zookeeper.ssl.truststore.password", ConfigType.PASSWORD, None),
        Setting("zookeeper.ssl.truststore.type", ConfigType.STRING, None),
        Setting("zookeeper.ssl.protocol", ConfigType.STRING, "TLSv1.2"),
        Setting("zookeeper.ssl.enabled.protocols", ConfigType.LIST, None),
        Setting("zookeeper.ssl.cipher.suites", ConfigType.LIST, None),
        Setting("zookeeper.ssl.endpoint.identification.algorithm", ConfigType.STRING, "HTTPS"),
        Setting("zookeeper.ssl.crl.enable", ConfigType.BOOLEAN, "false"),
        Setting("zookeeper.ssl.ocsp.enable", ConfigType.BOOLEAN, "false"),
        Setting("broker.id.generation.enable", ConfigType.BOOLEAN, "true"),
        Setting("reserved.broker.max.id", ConfigType.INT, "1000", Between(0)),
        Setting("early.start.listeners", ConfigType.STRING, None),
        Setting("controlled.shutdown.max.retries", ConfigType.INT, "3"),
        Setting("controlled.shutdown.retry.backoff.ms", ConfigType.LONG, "5000"),
        Setting("process.roles", ConfigType.LIST, "", OneOf(("broker", "controller"))),
        Setting("node.id", ConfigType.INT, "-1"),
        Setting("controller.listener.names", ConfigType.STRING, None),
        Setting("metadata.log.segment.bytes", ConfigType.INT, "1073741824", Between(12)),
        Setting("metadata.log.segment.min.bytes", ConfigType.INT, "8388608", Between(12), is_internal=True),
        Setting("zookeeper.metadata.migration.enable", ConfigType.BOOLEAN, "false"),
        Setting("eligible.leader.replicas.enable", ConfigType.BOOLEAN, "false"),
        Setting("zookeeper.metadata.migration.min.batch.size", ConfigType.INT, "200", Between(1), is_internal=True),
        Setting("listeners", ConfigType.STRING, "PLAINTEXT://:9092", update=PER_BROKER),
        Setting("advertised.listeners", ConfigType.STRING, None, update=PER_BROKER),
        Setting("control.plane.listener.name", ConfigType.STRING, None),
        Setting("num.replica.fetchers", ConfigType.INT, "1", update=CLUSTER_WIDE),
        Setting("leader.imbalance.per.broker.percentage", ConfigType.INT, "10"),
        Setting("inter.broker.protocol.version", ConfigType.STRING, "3.9-IV0"),
        Setting(
            "group.coordinator.rebalance.protocols",
            ConfigType.LIST,
            "classic",
            OneOf(("consumer", "classic", "share", "unknown")),
        ),
        Setting("group.coordinator.threads", ConfigType.INT, "1", Between(1)),
        Setting("group.coordinator.append.linger.ms", ConfigType.INT, "10", Between(0)),
        Setting("group.coordinator.new.enable", ConfigType.BOOLEAN, "false", is_internal=True),
        Setting("offsets.commit.required.acks", ConfigType.SHORT, "-1"),
        Setting(
            "group.consumer.assignors",
            ConfigType.LIST,
            "org.apache.kafka.coordinator.group.assignor.UniformAssignor,org.apache.kafka.coordinator.group.assignor.RangeAssignor",
        ),
        Setting(
            "group.consumer.migration.policy",
            ConfigType.STRING,
            "disabled",
            OneOf(("DISABLED", "DOWNGRADE", "UPGRADE", "BIDIRECTIONAL"), ignores_case=True),
            is_internal=True,
        ),
        Setting("group.share.max.size", ConfigType.SHORT, "200", Between(10, 1000)),
        Setting("log.dir", ConfigType.STRING, "/tmp/kafka-logs"),
        Setting("log.dirs", ConfigType.STRING, None),
        Setting("log.segment.bytes", ConfigType.INT, "1073741824", Between(14), CLUSTER_WIDE),
        Setting("num.recovery.threads.per.data.dir", ConfigType.INT, "1", Between(1), CLUSTER_WIDE),
        Setting("log.message.format.version", ConfigType.STRING, "3.0-IV1"),
        Setting(
            "log.message.timestamp.difference.max.ms", ConfigType.LONG, "9223372036854775807", Between(0), CLUSTER_WIDE
        ),
        Setting("log.message.timestamp.after.max.ms", ConfigType.LONG, "9223372036854775807", Between(0), CLUSTER_WIDE),
        Setting("log.message.downconversion.enable", ConfigType.BOOLEAN, "true", update=CLUSTER_WIDE),
        Setting("group.share.enable", ConfigType.BOOLEAN, "false", is_internal=True),
        Setting("group.share.record.lock.duration.ms", ConfigType.INT, "30000", Between(1000, 60000)),
        Setting("group.share.max.groups", ConfigType.SHORT, "10", Between(1, 100)),
        Setting("group.share.partition.max.record.locks", ConfigType.INT, "200", Between(100, 10000)),
        Setting("controller.quorum.election.timeout.ms", ConfigType.INT, "1000"),
        Setting("controller.quorum.fetch.timeout.ms", ConfigType.INT, "2000"),
        Setting("controller.quorum.election.backoff.max.ms", ConfigType.INT, "1000"),
        Setting("controller.quorum.append.linger.ms", ConfigType.INT, "25"),
        Setting("controller.quorum.request.timeout.ms", ConfigType.INT, "2000"),
        Setting("controller.quorum.retry.backoff.ms", ConfigType.INT, "20"),
        Setting("metric.reporters", ConfigType.LIST, "", update=CLUSTER_WIDE),
        Setting("auto.include.jmx.reporter", ConfigType.BOOLEAN, "true"),
        Setting("sasl.oauthbearer.expected.audience", ConfigType.LIST, None),
        Setting("delegation.token.master.key", ConfigType.PASSWORD, None),
        Setting("password.encoder.secret", ConfigType.PASSWORD, None),
        Setting("password.encoder.old.secret", ConfigType.PASSWORD, None),
        Setting("password.encoder.keyfactory.algorithm", ConfigType.STRING, None),
        Setting("password.encoder.cipher.algorithm", ConfigType.STRING, "AES/CBC/PKCS5Padding"),
        Setting("password.encoder.key.length", ConfigType.INT, "128", Between(8)),
        Setting("password.encoder.iterations", ConfigType.INT, "4096", Between(1024)),
    )
)
"""Settings that 4.4 no longer has, or that were different."""

BROKER_NOT_YET: Final = frozenset(
    {
        "remote.log.index.file.cache.ttl.ms",
        "remote.log.manager.follower.thread.pool.size",
        "log.remote.copy.lag.ms",
        "log.remote.copy.lag.bytes",
        "remote.list.offsets.request.timeout.ms",
        "max.decompressed.message.bytes",
        "config.providers",
        "controller.performance.sample.period.ms",
        "controller.performance.always.log.threshold.ms",
        "internal.metadata.log.segment.bytes",
        "internal.metadata.max.batch.size.in.bytes",
        "internal.metadata.delete.delay.millis",
        "follower.fetch.last.tiered.offset.enable",
        "group.coordinator.background.threads",
        "group.coordinator.cached.buffer.max.bytes",
        "group.consumer.assignment.interval.ms",
        "group.consumer.min.assignment.interval.ms",
        "group.consumer.max.assignment.interval.ms",
        "group.consumer.assignor.offload.enable",
        "group.consumer.regex.refresh.interval.ms",
        "group.share.assignors",
        "group.share.assignment.interval.ms",
        "group.share.min.assignment.interval.ms",
        "group.share.max.assignment.interval.ms",
        "group.share.assignor.offload.enable",
        "group.share.initialize.retry.interval.ms",
        "errors.deadletterqueue.auto.create.topics.enable",
        "errors.deadletterqueue.topic.name.prefix",
        "group.streams.session.timeout.ms",
        "group.streams.min.session.timeout.ms",
        "group.streams.max.session.timeout.ms",
        "group.streams.heartbeat.interval.ms",
        "group.streams.min.heartbeat.interval.ms",
        "group.streams.max.heartbeat.interval.ms",
        "group.streams.max.size",
        "group.streams.num.standby.replicas",
        "group.streams.max.standby.replicas",
        "group.streams.initial.rebalance.delay.ms",
        "group.streams.assignment.interval.ms",
        "group.streams.min.assignment.interval.ms",
        "group.streams.max.assignment.interval.ms",
        "group.streams.assignors",
        "group.streams.assignor.offload.enable",
        "group.streams.task.offset.interval.ms",
        "group.streams.min.task.offset.interval.ms",
        "group.streams.num.warmup.replicas",
        "group.streams.max.warmup.replicas",
        "group.streams.rack.aware.assignment.tags",
        "group.streams.topology.description.plugin.class",
        "group.streams.acceptable.recovery.lag",
        "cordoned.log.dirs",
        "group.share.max.delivery.count.limit",
        "group.share.min.delivery.count.limit",
        "group.share.max.partition.max.record.locks",
        "group.share.min.partition.max.record.locks",
        "share.fetch.purgatory.purge.interval.requests",
        "group.share.max.share.sessions",
        "group.share.persister.class.name",
        "group.share.dlq.manager.class.name",
        "share.coordinator.state.topic.num.partitions",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.min.isr",
        "share.coordinator.state.topic.segment.bytes",
        "share.coordinator.threads",
        "share.coordinator.snapshot.update.records.per.snapshot",
        "share.coordinator.load.buffer.size",
        "share.coordinator.state.topic.compression.codec",
        "share.coordinator.append.linger.ms",
        "share.coordinator.write.timeout.ms",
        "share.coordinator.state.topic.prune.interval.ms",
        "share.coordinator.cold.partition.snapshot.interval.ms",
        "share.coordinator.cached.buffer.max.bytes",
        "transaction.two.phase.commit.enable",
        "controller.quorum.auto.join.enable",
        "controller.quorum.fetch.snapshot.max.bytes",
        "controller.quorum.fetch.max.bytes",
        "sasl.oauthbearer.jwt.retriever.class",
        "sasl.oauthbearer.jwt.validator.class",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.algorithm",
        "sasl.oauthbearer.assertion.claim.aud",
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        "sasl.oauthbearer.assertion.claim.iss",
        "sasl.oauthbearer.assertion.claim.jti.include",
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        "sasl.oauthbearer.assertion.claim.sub",
        "sasl.oauthbearer.assertion.file",
        "sasl.oauthbearer.assertion.private.key.file",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.template.file",
        "sasl.oauthbearer.allow.unverified.audience",
        "sasl.oauthbearer.allow.unverified.issuer",
        "add.partitions.to.txn.retry.backoff.max.ms",
        "add.partitions.to.txn.retry.backoff.ms",
    }
)
"""Settings that were added after 3.9."""

TOPIC_CHANGES: Final[Mapping[str, Setting]] = by_name(
    (
        Setting("segment.bytes", ConfigType.INT, "1073741824", Between(14)),
        Setting("message.format.version", ConfigType.STRING, "3.0-IV1"),
        Setting("message.timestamp.difference.max.ms", ConfigType.LONG, "9223372036854775807", Between(0)),
        Setting("message.timestamp.after.max.ms", ConfigType.LONG, "9223372036854775807", Between(0)),
        Setting("message.downconversion.enable", ConfigType.BOOLEAN, "true"),
    )
)
"""Settings that 4.4 no longer has, or that were different."""

TOPIC_NOT_YET: Final = frozenset(
    {
        "max.decompressed.message.bytes",
        "remote.copy.lag.ms",
        "remote.copy.lag.bytes",
        "errors.deadletterqueue.group.enable",
        "internal.segment.bytes",
    }
)
"""Settings that were added after 3.9."""


_MAX_LONG = "9223372036854775807"


class Difference(NamedTuple):
    """How a setting differs here; None: as in Kafka."""

    reason: str
    default: str | None = None
    rule: Rule | None = None

    def applied_to(self, setting: Setting) -> Setting:
        return setting._replace(
            default=setting.default if self.default is None else self.default, rule=self.rule or setting.rule
        )


DIFFERENCES: Final[Mapping[str, Difference]] = {
    "transaction.two.phase.commit.enable": Difference("two-phase commit is what this broker is for", "true"),
    "group.initial.rebalance.delay.ms": Difference(
        "tests should not wait; 0 in the file that Kafka ships for trying it, too", "0"
    ),
    "default.replication.factor": Difference("0: a replica on every node", "0"),
    "group.consumer.assignment.interval.ms": Difference("tests should not wait for batching", "0"),
    "log.segment.bytes": Difference(
        "records are deleted or compacted only when their segment is closed; Kafka accepted small ones until 3.9, too",
        "67108864",
        Between(14),
    ),
    "segment.bytes": Difference("as log.segment.bytes", "67108864", Between(14)),
    "transaction.state.log.segment.bytes": Difference("the whole log is read at every change of leader", "262144"),
    "offsets.topic.segment.bytes": Difference("the whole log is read at every change of leader", "262144"),
    "log.flush.interval.ms": Difference(
        "Kafka relies on replicas instead; applies with fsync=interval", "1000", Between(1)
    ),
    "flush.ms": Difference("as log.flush.interval.ms", "1000"),
    "log.cleaner.backoff.ms": Difference("an interval is at least a millisecond", rule=Between(1)),
    "log.message.timestamp.after.max.ms": Difference(
        "clients use the machine's time, the broker perhaps a virtual clock", _MAX_LONG
    ),
    "message.timestamp.after.max.ms": Difference("as log.message.timestamp.after.max.ms", _MAX_LONG),
}


def _with_differences(settings: Mapping[str, Setting]) -> Mapping[str, Setting]:
    return {
        name: DIFFERENCES[name].applied_to(setting) if name in DIFFERENCES else setting
        for name, setting in settings.items()
    }


BROKER_SETTINGS_HERE: Final = _with_differences(BROKER_SETTINGS)
TOPIC_SETTINGS_HERE: Final = _with_differences(TOPIC_SETTINGS)


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
"""Settings that Kafka does not have: DescribeConfigs does not show them, and requests cannot alter them."""
