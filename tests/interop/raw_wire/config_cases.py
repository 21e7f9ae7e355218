"""Alterations of settings with Apache Kafka 4.4.0's responses, and the emulator's where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)

THE_TOPIC = "<topic>"
THE_NODE = "1"
"""The id that both brokers have."""


class Case(NamedTuple):
    """One resource of a request with ValidateOnly, and its response: IncrementalAlterConfigs, or else AlterConfigs."""

    resource_type: int
    name: str
    changes: tuple[tuple[str, int, str | None], ...]
    error: int
    message: str | None
    is_incremental: bool = True


def _number(name: str, value: str, kind: str) -> str:
    return f"Invalid value {value} for configuration {name}: Not a number of type {kind}"


def _no_list(name: str, operation: str) -> str:
    return f"Can't {operation} to key {name} because its type is not LIST."


_PER_LISTENER = (
    "These security configs can be dynamically updated only per-listener using the listener prefix: "
    "[ssl.keystore.location]"
)
_CLEANUP = "Invalid value shred for configuration cleanup.policy: String must be one of: compact, delete"
_LEVELS = "as it is not a supported log level. Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN"

_REMOVED = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."

CASES: Final[Mapping[str, Case]] = {
    "a value": Case(TOPIC, THE_TOPIC, (("retention.ms", SET, "5"),), 0, None),
    "a value with spaces": Case(TOPIC, THE_TOPIC, (("retention.ms", SET, " 77 "),), 0, None),
    "nothing": Case(TOPIC, THE_TOPIC, (), 0, None),
    "an unknown name": Case(TOPIC, THE_TOPIC, (("colour", SET, "1"),), 40, "Unknown topic config name: colour"),
    "an unknown name deleted": Case(TOPIC, THE_TOPIC, (("colour", DELETE, None),), 0, None),
    "an unknown name appended": Case(TOPIC, THE_TOPIC, (("colour", APPEND, "1"),), 40, _no_list("colour", "APPEND")),
    "a broker's name": Case(
        TOPIC, THE_TOPIC, (("log.retention.ms", SET, "1"),), 40, "Unknown topic config name: log.retention.ms"
    ),
    "no number": Case(TOPIC, THE_TOPIC, (("retention.ms", SET, "x"),), 40, _number("retention.ms", "x", "LONG")),
    "an empty number": Case(TOPIC, THE_TOPIC, (("retention.ms", SET, ""),), 40, _number("retention.ms", "", "LONG")),
    "a number too large for its type": Case(
        TOPIC, THE_TOPIC, (("segment.bytes", SET, "99999999999"),), 40, _number("segment.bytes", "99999999999", "INT")
    ),
    "too small": Case(
        TOPIC,
        THE_TOPIC,
        (("retention.ms", SET, "-2"),),
        40,
        "Invalid value -2 for configuration retention.ms: Value must be at least -1",
    ),
    "too large": Case(
        TOPIC,
        THE_TOPIC,
        (("min.cleanable.dirty.ratio", SET, "2"),),
        40,
        "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
    ),
    "no ratio": Case(
        TOPIC,
        THE_TOPIC,
        (("min.cleanable.dirty.ratio", SET, "x"),),
        40,
        _number("min.cleanable.dirty.ratio", "x", "DOUBLE"),
    ),
    "null": Case(TOPIC, THE_TOPIC, (("retention.ms", SET, None),), 42, "Null value not supported for : retention.ms"),
    "twice": Case(
        TOPIC,
        THE_TOPIC,
        (("retention.ms", SET, "1"), ("retention.ms", SET, "2")),
        42,
        "Error due to duplicate config keys",
    ),
    "no such operation": Case(TOPIC, THE_TOPIC, (("retention.ms", 9, "1"),), -1, None),
    "append to what is no list": Case(
        TOPIC, THE_TOPIC, (("retention.ms", APPEND, "1"),), 40, _no_list("retention.ms", "APPEND")
    ),
    "subtract from what is no list": Case(
        TOPIC, THE_TOPIC, (("retention.ms", SUBTRACT, "1"),), 40, _no_list("retention.ms", "SUBTRACT")
    ),
    "append": Case(TOPIC, THE_TOPIC, (("cleanup.policy", APPEND, "compact"),), 0, None),
    "append something unknown": Case(TOPIC, THE_TOPIC, (("cleanup.policy", APPEND, "shred"),), 40, _CLEANUP),
    "subtract everything": Case(TOPIC, THE_TOPIC, (("cleanup.policy", SUBTRACT, "delete,compact"),), 0, None),
    "a policy of none": Case(TOPIC, THE_TOPIC, (("cleanup.policy", SET, ""),), 0, None),
    "a policy twice": Case(TOPIC, THE_TOPIC, (("cleanup.policy", SET, "delete,delete"),), 0, None),
    "an unknown policy": Case(TOPIC, THE_TOPIC, (("cleanup.policy", SET, "shred"),), 40, _CLEANUP),
    "no truth": Case(
        TOPIC,
        THE_TOPIC,
        (("preallocate", SET, "maybe"),),
        40,
        "Invalid value maybe for configuration preallocate: Expected value to be either true or false",
    ),
    "truth in capitals": Case(TOPIC, THE_TOPIC, (("preallocate", SET, "TRUE"),), 0, None),
    "an unknown compression": Case(
        TOPIC,
        THE_TOPIC,
        (("compression.type", SET, "rar"),),
        40,
        "Invalid value rar for configuration compression.type: String must be one of: uncompressed, zstd, lz4, snappy, "
        "gzip, producer",
    ),
    "the case of a name": Case(
        TOPIC,
        THE_TOPIC,
        (("message.timestamp.type", SET, "createtime"),),
        40,
        "Invalid value createtime for configuration message.timestamp.type: String must be one of: CreateTime, "
        "LogAppendTime",
    ),
    "lags that exclude each other": Case(
        TOPIC,
        THE_TOPIC,
        (("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5")),
        40,
        "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
    ),
    "tiered storage": Case(
        TOPIC,
        THE_TOPIC,
        (("remote.storage.enable", SET, "true"),),
        40,
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
    ),
    "a small segment": Case(
        TOPIC,
        THE_TOPIC,
        (("segment.bytes", SET, "100"),),
        40,
        "Invalid value 100 for configuration segment.bytes: Value must be at least 1048576",
    ),
    "throttled replicas": Case(TOPIC, THE_TOPIC, (("leader.replication.throttled.replicas", SET, "0:1,1:1"),), 0, None),
    "all replicas throttled": Case(TOPIC, THE_TOPIC, (("leader.replication.throttled.replicas", SET, "*"),), 0, None),
    "no in-sync replica": Case(
        TOPIC,
        THE_TOPIC,
        (("min.insync.replicas", SET, "0"),),
        40,
        "Invalid value 0 for configuration min.insync.replicas: Value must be at least 1",
    ),
    "more in-sync replicas than copies": Case(TOPIC, THE_TOPIC, (("min.insync.replicas", SET, "5"),), 0, None),
    "an unknown topic": Case(
        TOPIC, "no-such-topic", (("retention.ms", SET, "1"),), 3, "The topic 'no-such-topic' does not exist."
    ),
    "no topic's name": Case(
        TOPIC,
        "not a name",
        (("retention.ms", SET, "1"),),
        17,
        "Topic name is invalid: 'not a name' contains one or more characters other than ASCII alphanumerics, '.', '_' "
        "and '-'",
    ),
    "all topics": Case(TOPIC, "", (("retention.ms", SET, "1"),), 42, "Default topic resources are not allowed."),
    "a broker's value": Case(BROKER, THE_NODE, (("log.retention.ms", SET, "70000000"),), 0, None),
    "all brokers' value": Case(BROKER, "", (("log.retention.ms", SET, "70000000"),), 0, None),
    "a broker's unknown name": Case(BROKER, THE_NODE, (("colour", SET, "1"),), 0, None),
    "all brokers' unknown name": Case(BROKER, "", (("colour", SET, "1"),), 0, None),
    "only when it starts": Case(
        BROKER,
        THE_NODE,
        (("num.partitions", SET, "4"),),
        42,
        "Cannot update these configs dynamically: [num.partitions]",
    ),
    "only when they start": Case(
        BROKER,
        "",
        (("log.retention.hours", SET, "4"),),
        42,
        "Cannot update these configs dynamically: [log.retention.hours]",
    ),
    "a list only when it starts": Case(BROKER, THE_NODE, (("process.roles", APPEND, "x"),), -1, None),
    "deleted, though only when it starts": Case(BROKER, THE_NODE, (("num.partitions", DELETE, None),), 0, None),
    "a broker's wrong value": Case(
        BROKER, THE_NODE, (("log.retention.ms", SET, "x"),), 42, _number("log.retention.ms", "x", "LONG")
    ),
    "all brokers' wrong value": Case(
        BROKER,
        "",
        (("message.max.bytes", SET, "-1"),),
        42,
        "Invalid value -1 for configuration message.max.bytes: Value must be at least 0",
    ),
    "a retention of no time": Case(
        BROKER,
        THE_NODE,
        (("log.retention.ms", SET, "0"),),
        42,
        "requirement failed: log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
    ),
    "append to what is no list of brokers": Case(
        BROKER,
        "",
        (("log.retention.ms", APPEND, "1"),),
        40,
        "Config value append is not allowed for config key: log.retention.ms",
    ),
    "a keystore of all listeners": Case(BROKER, THE_NODE, (("ssl.keystore.location", SET, "/x"),), 42, _PER_LISTENER),
    "a keystore of all listeners of all brokers": Case(
        BROKER, "", (("ssl.keystore.location", SET, "/x"),), 42, _PER_LISTENER
    ),
    "all brokers' listeners": Case(
        BROKER,
        "",
        (("listeners", SET, "PLAINTEXT://:1"),),
        42,
        "Cannot update these configs at default cluster level, broker id must be specified: [listeners]",
    ),
    "a broker's listeners": Case(
        BROKER,
        THE_NODE,
        (("listeners", SET, "PLAINTEXT://:1"),),
        42,
        "requirement failed: controller.listener.names must contain at least one value appearing in the 'listeners' "
        "configuration when running the KRaft controller role",
    ),
    "a listener's limit": Case(BROKER, THE_NODE, (("listener.name.plaintext.max.connections", SET, "100"),), 0, None),
    "another broker": Case(
        BROKER, "7", (("log.retention.ms", SET, "1"),), 42, "Unexpected broker id, expected 1, but received 7"
    ),
    "no broker's id": Case(
        BROKER, "one", (("log.retention.ms", SET, "1"),), 42, "Node id must be an integer, but it is: one"
    ),
    "no connections": Case(
        BROKER,
        THE_NODE,
        (("max.connections", SET, "0"),),
        42,
        "Invalid value org.apache.kafka.common.config.ConfigException: Invalid max.connections 0 for configuration "
        "Invalid dynamic configuration",
    ),
    "no connections of an address": Case(
        BROKER,
        "",
        (("max.connections.per.ip", SET, "0"),),
        42,
        "requirement failed: max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides "
        "property is set.",
    ),
    "many more threads": Case(
        BROKER,
        THE_NODE,
        (("num.io.threads", SET, "100"),),
        42,
        "Invalid value org.apache.kafka.common.config.ConfigException: Dynamic thread count update validation failed "
        "for num.io.threads=100, value should not be greater than double the current value 8 for configuration Invalid "
        "dynamic configuration",
    ),
    "one more thread": Case(BROKER, THE_NODE, (("num.io.threads", SET, "9"),), 0, None),
    "a broker's in-sync replicas": Case(
        BROKER,
        THE_NODE,
        (("min.insync.replicas", SET, "2"),),
        40,
        "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
    ),
    "a throttle": Case(BROKER, THE_NODE, (("leader.replication.throttled.rate", SET, "10"),), 0, None),
    "no throttle": Case(
        BROKER,
        THE_NODE,
        (("leader.replication.throttled.rate", SET, "x"),),
        42,
        _number("leader.replication.throttled.rate", "x", "LONG"),
    ),
    "a level": Case(BROKER_LOGGER, THE_NODE, (("root", SET, "INFO"),), 0, None),
    "an unknown level": Case(
        BROKER_LOGGER, THE_NODE, (("root", SET, "LOUD"),), 40, f"Cannot set the log level of root to LOUD {_LEVELS}"
    ),
    "an unknown logger": Case(
        BROKER_LOGGER, THE_NODE, (("no.such.logger", SET, "INFO"),), 40, "Logger no.such.logger does not exist!"
    ),
    "the root's level deleted": Case(
        BROKER_LOGGER,
        THE_NODE,
        (("root", DELETE, None),),
        42,
        "Removing the log level of the root logger is not allowed",
    ),
    "a level appended": Case(
        BROKER_LOGGER,
        THE_NODE,
        (("root", APPEND, "INFO"),),
        42,
        "APPEND operation is not allowed for the BROKER_LOGGER resource",
    ),
    "another broker's level": Case(
        BROKER_LOGGER, "9", (("root", SET, "INFO"),), 42, "Unexpected node id. Expected 1, but received 9"
    ),
    "nobody's level": Case(BROKER_LOGGER, "", (("root", SET, "INFO"),), 42, "Node id must be an integer, but it is: "),
    "a group's value": Case(GROUP, "g", (("consumer.session.timeout.ms", SET, "50000"),), 0, None),
    "below the brokers' limit": Case(
        GROUP,
        "g",
        (("consumer.session.timeout.ms", SET, "1"),),
        40,
        "consumer.session.timeout.ms must be in the range 45000 to 60000 inclusive.",
    ),
    "above the brokers' limit": Case(
        GROUP,
        "g",
        (("consumer.heartbeat.interval.ms", SET, "50000"),),
        40,
        "consumer.heartbeat.interval.ms must be in the range 5000 to 15000 inclusive.",
    ),
    "a group's wrong value": Case(
        GROUP, "g", (("consumer.session.timeout.ms", SET, "x"),), 40, _number("consumer.session.timeout.ms", "x", "INT")
    ),
    "a group's unknown name": Case(GROUP, "g", (("colour", SET, "x"),), 40, "Unknown group config name: colour"),
    "all groups": Case(
        GROUP, "", (("consumer.session.timeout.ms", SET, "50000"),), 42, "Default group resources are not allowed."
    ),
    "append to a group's": Case(
        GROUP,
        "g",
        (("consumer.session.timeout.ms", APPEND, "1"),),
        40,
        _no_list("consumer.session.timeout.ms", "APPEND"),
    ),
    "an unknown isolation": Case(
        GROUP,
        "g",
        (("share.isolation.level", SET, "x"),),
        40,
        "Invalid value x for configuration share.isolation.level: String must be one of: read_committed, "
        "read_uncommitted",
    ),
    "warm-up replicas": Case(GROUP, "g", (("streams.num.warmup.replicas", SET, "3"),), 0, None),
    "no warm-up replicas": Case(GROUP, "g", (("streams.num.warmup.replicas", SET, "0"),), 0, None),
    "fewer than no warm-up replicas": Case(
        GROUP,
        "g",
        (("streams.num.warmup.replicas", SET, "-1"),),
        40,
        "Invalid value -1 for configuration streams.num.warmup.replicas: Value must be at least 0",
    ),
    "more warm-up replicas than the broker allows": Case(
        GROUP,
        "g",
        (("streams.num.warmup.replicas", SET, "21"),),
        40,
        "streams.num.warmup.replicas must be less than or equal to 20",
    ),
    "an offset by duration": Case(GROUP, "g", (("share.auto.offset.reset", SET, "by_duration:P1D"),), 0, None),
    "too many standbys": Case(
        GROUP,
        "g",
        (("streams.num.standby.replicas", SET, "9"),),
        40,
        "streams.num.standby.replicas must be less than or equal to 2",
    ),
    "a subscription": Case(CLIENT_METRICS, "s", (("interval.ms", SET, "1000"), ("match", SET, "client_id=a")), 0, None),
    "an interval too short": Case(
        CLIENT_METRICS,
        "s",
        (("interval.ms", SET, "1"),),
        42,
        "Invalid value 1 for interval.ms, interval must be between 100 and 3600000 (1 hour)",
    ),
    "a subscription with an interval that is no number": Case(
        CLIENT_METRICS, "s", (("interval.ms", SET, "x"),), 40, _number("interval.ms", "x", "INT")
    ),
    "a subscription with two problems": Case(
        CLIENT_METRICS,
        "s",
        (("interval.ms", SET, "99"), ("colour", SET, "1")),
        42,
        "Unknown client metrics configuration: colour",
    ),
    "no metrics": Case(CLIENT_METRICS, "s", (("metrics", SET, ""),), 0, None),
    "an empty metric": Case(
        CLIENT_METRICS, "s", (("metrics", SET, "a,,b"),), 40, "Configuration 'metrics' values must not be empty."
    ),
    "a pattern with two equals signs": Case(
        CLIENT_METRICS, "s", (("match", SET, "client_id=a=b"),), 40, "Illegal client matching pattern: client_id=a=b"
    ),
    "metrics appended": Case(CLIENT_METRICS, "s", (("metrics", APPEND, "a"),), 40, _no_list("metrics", "APPEND")),
    "a match of nothing known": Case(
        CLIENT_METRICS, "s", (("match", SET, "colour=a"),), 40, "Illegal client matching pattern: colour=a"
    ),
    "a match that is no expression": Case(
        CLIENT_METRICS, "s", (("match", SET, "client_id=["),), 40, "Illegal client matching pattern: client_id=["
    ),
    "a subscription's unknown name": Case(
        CLIENT_METRICS, "s", (("colour", SET, "1"),), 42, "Unknown client metrics configuration: colour"
    ),
    "no subscription": Case(
        CLIENT_METRICS, "", (("interval.ms", SET, "1000"),), 42, "Subscription name can't be empty"
    ),
    "no type": Case(0, "x", (("a", SET, "1"),), 42, "Unknown resource type 0"),
    "an unknown type": Case(77, "x", (("a", SET, "1"),), 42, "Unknown resource type 77"),
    "a topic's only value": Case(TOPIC, THE_TOPIC, (("retention.ms", SET, "5"),), 0, None, False),
    "nothing of a topic is left": Case(TOPIC, THE_TOPIC, (), 0, None, False),
    "a broker's only value": Case(BROKER, THE_NODE, (("log.retention.ms", SET, "70000000"),), 0, None, False),
    "all brokers' only value": Case(BROKER, "", (("log.retention.ms", SET, "70000000"),), 40, _REMOVED, False),
    "nothing of all brokers is left": Case(BROKER, "", (), 40, _REMOVED, False),
    "a logger's only level": Case(BROKER_LOGGER, THE_NODE, (), 42, "Unknown resource type 8", False),
    "a group's only value": Case(GROUP, "g", (("consumer.session.timeout.ms", SET, "50000"),), 0, None, False),
}


class Otherwise(NamedTuple):
    """The emulator's own response, and why."""

    error: int
    message: str | None
    reason: str


_NO_ELIGIBLE_REPLICAS = "the feature eligible.leader.replicas.version is not emulated, without which Kafka allows this"

EMULATED_DIFFERENTLY: Final[Mapping[str, Otherwise]] = {
    "no such operation": Otherwise(
        42, "Unknown operations type 9", "Kafka's controller fails; of a broker it says this, too"
    ),
    "a list only when it starts": Otherwise(
        42, "Cannot update these configs dynamically: [process.roles]", "Kafka fails for a list without a default"
    ),
    "a small segment": Otherwise(0, None, "tests of retention and compaction want small segments, as Kafka 3.9 had"),
    "a broker's listeners": Otherwise(
        42, "The emulator changes these only when it starts: [listeners]", "the emulator's listeners do not change"
    ),
    "no connections": Otherwise(42, "Invalid max.connections 0", "without the names of classes"),
    "many more threads": Otherwise(0, None, "there are no threads whose number could change too fast"),
    "a broker's in-sync replicas": Otherwise(0, None, _NO_ELIGIBLE_REPLICAS),
    "all brokers' only value": Otherwise(0, None, _NO_ELIGIBLE_REPLICAS),
    "nothing of all brokers is left": Otherwise(0, None, _NO_ELIGIBLE_REPLICAS),
}
