"""Alterations of settings with Apache Kafka 4.4.0's responses, and the emulator's where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
_OPERATIONS: Final = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}

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


def _setting(resource_type: int, name: str) -> Callable[..., Case]:
    """Return a maker of cases that change one setting of a resource, with a message about `key` and `value`."""

    def make(key: str, value: str | None, error: int = 0, message: str | None = None, *, by: int = SET) -> Case:
        said = message and message.format(key=key, value=value, by=_OPERATIONS.get(by))
        return Case(resource_type, name, ((key, by, value),), error, said)

    return make


_topic, _broker, _brokers = _setting(TOPIC, THE_TOPIC), _setting(BROKER, THE_NODE), _setting(BROKER, "")
_logger, _group, _metrics = _setting(BROKER_LOGGER, THE_NODE), _setting(GROUP, "g"), _setting(CLIENT_METRICS, "s")


_INVALID = "Invalid value {value} for configuration {key}: "
_NO_NUMBER = _INVALID + "Not a number of type "
_NO_LIST = "Can't {by} to key {key} because its type is not LIST."
_PER_LISTENER = (
    "These security configs can be dynamically updated only per-listener using the listener prefix: "
    "[ssl.keystore.location]"
)
_CLEANUP = "Invalid value shred for configuration cleanup.policy: String must be one of: compact, delete"
_LEVELS = "as it is not a supported log level. Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN"

_REMOVED = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."

CASES: Final[Mapping[str, Case]] = {
    "a value": _topic("retention.ms", "5"),
    "a value with spaces": _topic("retention.ms", " 77 "),
    "nothing": Case(TOPIC, THE_TOPIC, (), 0, None),
    "an unknown name": _topic("colour", "1", 40, "Unknown topic config name: colour"),
    "an unknown name deleted": _topic("colour", None, by=DELETE),
    "an unknown name appended": _topic("colour", "1", 40, _NO_LIST, by=APPEND),
    "a broker's name": _topic("log.retention.ms", "1", 40, "Unknown topic config name: log.retention.ms"),
    "no number": _topic("retention.ms", "x", 40, _NO_NUMBER + "LONG"),
    "an empty number": _topic("retention.ms", "", 40, _NO_NUMBER + "LONG"),
    "a number too large for its type": _topic("segment.bytes", "99999999999", 40, _NO_NUMBER + "INT"),
    "too small": _topic("retention.ms", "-2", 40, _INVALID + "Value must be at least -1"),
    "too large": _topic(
        "min.cleanable.dirty.ratio",
        "2",
        40,
        "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
    ),
    "no ratio": _topic("min.cleanable.dirty.ratio", "x", 40, _NO_NUMBER + "DOUBLE"),
    "null": _topic("retention.ms", None, 42, "Null value not supported for : retention.ms"),
    "twice": Case(
        TOPIC,
        THE_TOPIC,
        (("retention.ms", SET, "1"), ("retention.ms", SET, "2")),
        42,
        "Error due to duplicate config keys",
    ),
    "no such operation": _topic("retention.ms", "1", -1, None, by=9),
    "append to what is no list": _topic("retention.ms", "1", 40, _NO_LIST, by=APPEND),
    "subtract from what is no list": _topic("retention.ms", "1", 40, _NO_LIST, by=SUBTRACT),
    "append": _topic("cleanup.policy", "compact", by=APPEND),
    "append something unknown": _topic("cleanup.policy", "shred", 40, _CLEANUP, by=APPEND),
    "subtract everything": _topic("cleanup.policy", "delete,compact", by=SUBTRACT),
    "a policy of none": _topic("cleanup.policy", ""),
    "a policy twice": _topic("cleanup.policy", "delete,delete"),
    "an unknown policy": _topic("cleanup.policy", "shred", 40, _CLEANUP),
    "no truth": _topic("preallocate", "maybe", 40, _INVALID + "Expected value to be either true or false"),
    "truth in capitals": _topic("preallocate", "TRUE"),
    "an unknown compression": _topic(
        "compression.type",
        "rar",
        40,
        _INVALID + "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
    ),
    "the case of a name": _topic(
        "message.timestamp.type", "createtime", 40, _INVALID + "String must be one of: CreateTime, LogAppendTime"
    ),
    "lags that exclude each other": Case(
        TOPIC,
        THE_TOPIC,
        (("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5")),
        40,
        "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
    ),
    "tiered storage": _topic(
        "remote.storage.enable",
        "true",
        40,
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
    ),
    "a small segment": _topic("segment.bytes", "100", 40, _INVALID + "Value must be at least 1048576"),
    "throttled replicas": _topic("leader.replication.throttled.replicas", "0:1,1:1"),
    "all replicas throttled": _topic("leader.replication.throttled.replicas", "*"),
    "no in-sync replica": _topic("min.insync.replicas", "0", 40, _INVALID + "Value must be at least 1"),
    "more in-sync replicas than copies": _topic("min.insync.replicas", "5"),
    "an unknown topic": Case(
        TOPIC, "no-such-topic", (("retention.ms", SET, "1"),), 3, "The topic 'no-such-topic' does not exist."
    ),
    "no topic's name": Case(
        TOPIC,
        "not a name",
        (("retention.ms", SET, "1"),),
        17,
        "Topic name is invalid: 'not a name' contains one or more characters other than ASCII alphanumerics, '.', "
        "'_' and '-'",
    ),
    "all topics": Case(TOPIC, "", (("retention.ms", SET, "1"),), 42, "Default topic resources are not allowed."),
    "a broker's value": _broker("log.retention.ms", "70000000"),
    "all brokers' value": _brokers("log.retention.ms", "70000000"),
    "a broker's unknown name": _broker("colour", "1"),
    "all brokers' unknown name": _brokers("colour", "1"),
    "only when it starts": _broker(
        "num.partitions", "4", 42, "Cannot update these configs dynamically: [num.partitions]"
    ),
    "only when they start": _brokers(
        "log.retention.hours", "4", 42, "Cannot update these configs dynamically: [log.retention.hours]"
    ),
    "a list only when it starts": _broker("process.roles", "x", -1, None, by=APPEND),
    "deleted, though only when it starts": _broker("num.partitions", None, by=DELETE),
    "a broker's wrong value": _broker("log.retention.ms", "x", 42, _NO_NUMBER + "LONG"),
    "all brokers' wrong value": _brokers("message.max.bytes", "-1", 42, _INVALID + "Value must be at least 0"),
    "a retention of no time": _broker(
        "log.retention.ms",
        "0",
        42,
        "requirement failed: log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
    ),
    "append to what is no list of brokers": _brokers(
        "log.retention.ms", "1", 40, "Config value append is not allowed for config key: log.retention.ms", by=APPEND
    ),
    "a keystore of all listeners": _broker("ssl.keystore.location", "/x", 42, _PER_LISTENER),
    "a keystore of all listeners of all brokers": _brokers("ssl.keystore.location", "/x", 42, _PER_LISTENER),
    "all brokers' listeners": _brokers(
        "listeners",
        "PLAINTEXT://:1",
        42,
        "Cannot update these configs at default cluster level, broker id must be specified: [listeners]",
    ),
    "a broker's listeners": _broker(
        "listeners",
        "PLAINTEXT://:1",
        42,
        "requirement failed: controller.listener.names must contain at least one value appearing in the "
        "'listeners' configuration when running the KRaft controller role",
    ),
    "a listener's limit": _broker("listener.name.plaintext.max.connections", "100"),
    "another broker": Case(
        BROKER, "7", (("log.retention.ms", SET, "1"),), 42, "Unexpected broker id, expected 1, but received 7"
    ),
    "no broker's id": Case(
        BROKER, "one", (("log.retention.ms", SET, "1"),), 42, "Node id must be an integer, but it is: one"
    ),
    "no connections": _broker(
        "max.connections",
        "0",
        42,
        "Invalid value org.apache.kafka.common.config.ConfigException: Invalid max.connections 0 for configuration"
        " Invalid dynamic configuration",
    ),
    "no connections of an address": _brokers(
        "max.connections.per.ip",
        "0",
        42,
        "requirement failed: max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides "
        "property is set.",
    ),
    "many more threads": _broker(
        "num.io.threads",
        "100",
        42,
        "Invalid value org.apache.kafka.common.config.ConfigException: Dynamic thread count update validation "
        "failed for num.io.threads=100, value should not be greater than double the current value 8 for "
        "configuration Invalid dynamic configuration",
    ),
    "one more thread": _broker("num.io.threads", "9"),
    "a broker's in-sync replicas": _broker(
        "min.insync.replicas", "2", 40, "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
    ),
    "a throttle": _broker("leader.replication.throttled.rate", "10"),
    "no throttle": _broker("leader.replication.throttled.rate", "x", 42, _NO_NUMBER + "LONG"),
    "a level": _logger("root", "INFO"),
    "an unknown level": _logger("root", "LOUD", 40, f"Cannot set the log level of root to LOUD {_LEVELS}"),
    "an unknown logger": _logger("no.such.logger", "INFO", 40, "Logger no.such.logger does not exist!"),
    "the root's level deleted": _logger(
        "root", None, 42, "Removing the log level of the root logger is not allowed", by=DELETE
    ),
    "a level appended": _logger(
        "root", "INFO", 42, "APPEND operation is not allowed for the BROKER_LOGGER resource", by=APPEND
    ),
    "another broker's level": Case(
        BROKER_LOGGER, "9", (("root", SET, "INFO"),), 42, "Unexpected node id. Expected 1, but received 9"
    ),
    "a level without a node id": Case(
        BROKER_LOGGER, "", (("root", SET, "INFO"),), 42, "Node id must be an integer, but it is: "
    ),
    "a group's value": _group("consumer.session.timeout.ms", "50000"),
    "below the brokers' limit": _group(
        "consumer.session.timeout.ms",
        "1",
        40,
        "consumer.session.timeout.ms must be in the range 45000 to 60000 inclusive.",
    ),
    "above the brokers' limit": _group(
        "consumer.heartbeat.interval.ms",
        "50000",
        40,
        "consumer.heartbeat.interval.ms must be in the range 5000 to 15000 inclusive.",
    ),
    "a group's wrong value": _group("consumer.session.timeout.ms", "x", 40, _NO_NUMBER + "INT"),
    "a group's unknown name": _group("colour", "x", 40, "Unknown group config name: colour"),
    "all groups": Case(
        GROUP, "", (("consumer.session.timeout.ms", SET, "50000"),), 42, "Default group resources are not allowed."
    ),
    "append to a group's": _group("consumer.session.timeout.ms", "1", 40, _NO_LIST, by=APPEND),
    "an unknown isolation": _group(
        "share.isolation.level", "x", 40, _INVALID + "String must be one of: read_committed, read_uncommitted"
    ),
    "warm-up replicas": _group("streams.num.warmup.replicas", "3"),
    "no warm-up replicas": _group("streams.num.warmup.replicas", "0"),
    "fewer than no warm-up replicas": _group(
        "streams.num.warmup.replicas", "-1", 40, _INVALID + "Value must be at least 0"
    ),
    "more warm-up replicas than the broker allows": _group(
        "streams.num.warmup.replicas", "21", 40, "streams.num.warmup.replicas must be less than or equal to 20"
    ),
    "an offset by duration": _group("share.auto.offset.reset", "by_duration:P1D"),
    "too many standbys": _group(
        "streams.num.standby.replicas", "9", 40, "streams.num.standby.replicas must be less than or equal to 2"
    ),
    "a subscription": Case(CLIENT_METRICS, "s", (("interval.ms", SET, "1000"), ("match", SET, "client_id=a")), 0, None),
    "an interval too short": _metrics(
        "interval.ms", "1", 42, "Invalid value 1 for interval.ms, interval must be between 100 and 3600000 (1 hour)"
    ),
    "a subscription with an interval that is no number": _metrics("interval.ms", "x", 40, _NO_NUMBER + "INT"),
    "a subscription with two problems": Case(
        CLIENT_METRICS,
        "s",
        (("interval.ms", SET, "99"), ("colour", SET, "1")),
        42,
        "Unknown client metrics configuration: colour",
    ),
    "no metrics": _metrics("metrics", ""),
    "an empty metric": _metrics("metrics", "a,,b", 40, "Configuration 'metrics' values must not be empty."),
    "a pattern with two equals signs": _metrics(
        "match", "client_id=a=b", 40, "Illegal client matching pattern: client_id=a=b"
    ),
    "metrics appended": _metrics("metrics", "a", 40, _NO_LIST, by=APPEND),
    "a match of nothing known": _metrics("match", "colour=a", 40, "Illegal client matching pattern: colour=a"),
    "a match that is no expression": _metrics(
        "match", "client_id=[", 40, "Illegal client matching pattern: client_id=["
    ),
    "a subscription's unknown name": _metrics("colour", "1", 42, "Unknown client metrics configuration: colour"),
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
