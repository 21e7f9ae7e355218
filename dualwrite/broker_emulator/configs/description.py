"""The response to DescribeConfigs: each setting with its value, the source of the value, and whether it is hidden.

A value is looked up in layers, and the first layer with a value counts: the resource's own value, the altered one of
the broker, the altered one of all brokers, the one at the broker's start, the default. The layers with a value are the
setting's synonyms (KIP-226).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import dropwhile
from typing import Final, NamedTuple

from dualwrite.broker_emulator.configs.broker_settings import broker_synonyms
from dualwrite.broker_emulator.configs.reading import base_name
from dualwrite.broker_emulator.configs.resource_settings import (
    BROKER_SETTING_OF_GROUP,
    BROKER_SETTING_OF_TOPIC,
    CLIENT_METRICS_SETTINGS,
    GROUP_SETTINGS,
)
from dualwrite.broker_emulator.configs.setting import ConfigType, InvalidValueError, Setting, UpdateMode


class ConfigSource(IntEnum):
    """The sources of a value, with Kafka's numbers."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class Synonym(NamedTuple):
    """The value of a setting in one layer."""

    name: str
    value: str | None
    source: ConfigSource


class Entry(NamedTuple):
    """One setting in the response."""

    name: str
    value: str | None
    """None if it has no value or is sensitive."""
    source: ConfigSource
    type: ConfigType
    is_read_only: bool = False
    is_sensitive: bool = False
    synonyms: Sequence[Synonym] = ()
    documentation: str | None = None


class BrokerLayers(NamedTuple):
    """The settings of one broker, by layer."""

    settings: Mapping[str, Setting]
    own: Mapping[str, str]
    of_all_brokers: Mapping[str, str]
    static: Mapping[str, str]
    effective: Callable[[str], str | None]
    """Returns the effective value of a setting, which any of its synonyms may set."""

    def synonyms(self, name: str) -> list[Synonym]:
        """Return the layers with a value for a setting; synonyms count only after one of its own name."""
        names = broker_synonyms(name)
        base = base_name(name)
        names = names if base == name else (name, base)
        found = [
            Synonym(each, layer[each], source)
            for layer, source in (
                (self.own, ConfigSource.DYNAMIC_BROKER_CONFIG),
                (self.of_all_brokers, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
                (self.static, ConfigSource.STATIC_BROKER_CONFIG),
            )
            for each in names
            if each in layer
        ]
        for each in names:
            setting = self.settings.get(each)
            if setting is not None and setting.default is not None:
                found.append(Synonym(each, setting.default, ConfigSource.DEFAULT_CONFIG))
        return list(dropwhile(lambda synonym: synonym.name != name, found))


def broker_entries(layers: BrokerLayers) -> list[Entry]:
    """Return every setting of one broker."""
    given = [*layers.own, *layers.of_all_brokers, *layers.static]
    names = dict.fromkeys([*_shown(layers.settings), *given])
    return [_broker_entry(name, layers.settings.get(base_name(name)), layers.synonyms(name)) for name in names]


def all_brokers_entries(layers: BrokerLayers) -> list[Entry]:
    """Return the settings altered for all brokers."""
    return [
        _broker_entry(
            name,
            layers.settings.get(base_name(name)),
            [Synonym(name, text, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)],
        )
        for name, text in layers.of_all_brokers.items()
    ]


def _broker_entry(name: str, setting: Setting | None, synonyms: Sequence[Synonym]) -> Entry:
    first = synonyms[0] if synonyms else Synonym(name, None, ConfigSource.DEFAULT_CONFIG)
    is_read_only = setting is None or setting.update is UpdateMode.READ_ONLY
    return _entry(name, setting, first.value, first.source, synonyms, is_read_only=is_read_only)


def topic_entries(settings: Mapping[str, Setting], own: Mapping[str, str | None], layers: BrokerLayers) -> list[Entry]:
    """Return every setting of a topic, as the broker that serves the request sees it."""
    entries = []
    for name in dict.fromkeys([*_shown(settings), *own]):
        setting = settings.get(name)
        of_brokers = BROKER_SETTING_OF_TOPIC.get(name)
        synonyms = [] if of_brokers is None else layers.synonyms(of_brokers)
        value = None if of_brokers is None else layers.effective(of_brokers)
        if value is None and setting is not None:
            value = setting.default
        if name in own:
            value = own[name]
            synonyms = [Synonym(name, value, ConfigSource.TOPIC_CONFIG), *synonyms]
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        entries.append(_entry(name, setting, value, source, synonyms))
    return entries


def group_entries(own: Mapping[str, str], values: Mapping[str, str], layers: BrokerLayers) -> list[Entry]:
    """Return the settings of a group; `values` are the effective ones. Internal settings are shown once altered."""
    entries = []
    for name in dict.fromkeys([*_shown(GROUP_SETTINGS), *own]):
        setting = GROUP_SETTINGS[name]
        of_brokers = BROKER_SETTING_OF_GROUP.get(name)
        if of_brokers is None:
            synonyms = [Synonym(name, setting.default, ConfigSource.DEFAULT_CONFIG)]
        else:
            synonyms = layers.synonyms(of_brokers)
        if name in own:
            synonyms = [Synonym(name, own[name], ConfigSource.GROUP_CONFIG), *synonyms]
        entries.append(_entry(name, setting, values.get(name), synonyms[0].source, synonyms))
    return entries


def client_metrics_entries(own: Mapping[str, str]) -> list[Entry]:
    """Return every setting of a client metrics subscription; a default has no synonyms, not even itself."""
    entries = []
    for name, setting in CLIENT_METRICS_SETTINGS.items():
        value, source = own.get(name, setting.default), ConfigSource.CLIENT_METRICS_CONFIG
        synonyms = [Synonym(name, value, source)] if name in own else []
        entries.append(_entry(name, setting, value, source if name in own else ConfigSource.DEFAULT_CONFIG, synonyms))
    return entries


def logger_entries(levels: Mapping[str, str]) -> list[Entry]:
    """Return the level of every logger (KIP-412)."""
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    return [Entry(name, level, source, ConfigType.UNKNOWN) for name, level in levels.items()]


def only(entries: Iterable[Entry], names: Collection[str] | None) -> list[Entry]:
    """Return the entries with these names, or all entries if no name is given."""
    wanted = frozenset(names or ())
    return [entry for entry in entries if not wanted or entry.name in wanted]


def _shown(settings: Mapping[str, Setting]) -> list[str]:
    return [name for name, setting in settings.items() if not setting.is_internal]


def _entry(
    name: str,
    setting: Setting | None,
    value: str | None,
    source: ConfigSource,
    synonyms: Sequence[Synonym],
    *,
    is_read_only: bool = False,
) -> Entry:
    """Return the entry of a setting. A setting of unknown type is hidden, because it could be secret."""
    is_sensitive = setting is None or setting.is_sensitive
    return Entry(
        name,
        None if is_sensitive else _canonical(setting, value),
        source,
        ConfigType.UNKNOWN if setting is None else setting.type,
        is_read_only,
        is_sensitive,
        [synonym._replace(value=None) for synonym in synonyms] if is_sensitive else synonyms,
        documentation_of(name),
    )


def _canonical(setting: Setting | None, value: str | None) -> str | None:
    if setting is None or value is None:
        return value
    try:
        return setting.canonical(value)
    except InvalidValueError:
        return value  # set in Python, which accepts values of other types


DOCUMENTATION: Final[Mapping[str, str]] = {
    "add.partitions.to.txn.retry.backoff.max.ms": (
        "How long a leader retries requests to the transaction coordinator for one Produce request."
    ),
    "add.partitions.to.txn.retry.backoff.ms": (
        "How long a leader waits before it retries a request to the transaction coordinator."
    ),
    "allow.everyone.if.no.acl.found": "Whether every principal may do everything with resources that no rule covers.",
    "authorizer.class.name": "Turns access control on; only Kafka's StandardAuthorizer is supported.",
    "auto.create.topics.enable": "Whether a topic is created when a client first requests it.",
    "broker.id": "The id of the first node, if node.id is not set.",
    "cleanup.policy": (
        "Treatment of old records: their segments are deleted, or only the newest record of each key is kept, or both."
    ),
    "connection.failed.authentication.delay.ms": "How long the response to a failed login is delayed.",
    "connections.max.idle.ms": "A connection is closed after it has been idle for this long.",
    "consumer.heartbeat.interval.ms": "The heartbeat interval that members of the group receive.",
    "consumer.session.timeout.ms": "A member without a heartbeat for this long is removed from the group.",
    "controller.quota.window.num": "How many samples the rate of created and deleted partitions is measured over.",
    "controller.quota.window.size.seconds": "How long each sample lasts.",
    "default.replication.factor": "The replication factor of topics created without one; 0: a replica on every node.",
    "delete.retention.ms": "How long compaction keeps tombstones, and markers of transactions without records.",
    "delete.topic.enable": "Whether topics can be deleted.",
    "fetch.max.bytes": "The most bytes of records in one Fetch response, unless a single batch is larger.",
    "group.consumer.assignment.interval.ms": "How long a group waits between two assignments.",
    "group.consumer.assignors": "The assignors that members may select; the first one is the default.",
    "group.consumer.heartbeat.interval.ms": "The heartbeat interval that members of KIP-848 groups receive.",
    "group.consumer.max.size": "How many members a KIP-848 group can have.",
    "group.consumer.migration.policy": "Which groups may migrate from the classic protocol to KIP-848, or back.",
    "group.consumer.regex.refresh.interval.ms": (
        "How often subscriptions by regular expression are matched against the topics."
    ),
    "group.consumer.session.timeout.ms": ("A member of a KIP-848 group without a heartbeat for this long is removed."),
    "group.initial.rebalance.delay.ms": (
        "How long the first rebalance of an empty classic group waits for more members."
    ),
    "group.max.session.timeout.ms": "The longest session timeout of a member of a classic group.",
    "group.max.size": "How many members a classic group can have.",
    "group.min.session.timeout.ms": "The shortest session timeout of a member of a classic group.",
    "log.cleaner.backoff.ms": "How often logs are checked for compaction.",
    "log.cleaner.delete.retention.ms": "delete.retention.ms of topics without their own.",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms of topics without their own.",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio of topics without their own.",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms of topics without their own.",
    "log.cleanup.policy": "cleanup.policy of topics without their own.",
    "log.flush.interval.ms": "How often appended records are flushed to disk, with fsync=interval.",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms of topics without their own.",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms of topics without their own.",
    "log.message.timestamp.type": "message.timestamp.type of topics without their own.",
    "log.retention.bytes": "retention.bytes of topics without their own.",
    "log.retention.check.interval.ms": "How often logs are checked for segments to delete.",
    "log.retention.hours": (
        "retention.ms of topics without their own, in hours, if neither minutes nor milliseconds are set."
    ),
    "log.retention.minutes": "retention.ms of topics without their own, in minutes, if no milliseconds are set.",
    "log.retention.ms": "retention.ms of topics without their own.",
    "log.roll.hours": "segment.ms of topics without their own, in hours, if no milliseconds are set.",
    "log.roll.ms": "segment.ms of topics without their own.",
    "log.segment.bytes": "segment.bytes of topics without their own.",
    "max.compaction.lag.ms": "Records older than this are compacted, regardless of the share of the log that is new.",
    "max.connections": "How many connections a broker accepts at a time.",
    "max.connections.per.ip": "How many connections a broker accepts from one address at a time.",
    "max.decompressed.message.bytes": "The largest record of a compressed batch.",
    "max.message.bytes": "The largest record batch.",
    "message.max.bytes": "max.message.bytes of topics without their own.",
    "message.timestamp.after.max.ms": "How far a record's timestamp may be ahead of the broker's clock.",
    "message.timestamp.before.max.ms": "How far a record's timestamp may be behind the broker's clock.",
    "message.timestamp.type": "Whether records keep the producer's timestamps or get the broker's.",
    "min.cleanable.dirty.ratio": "Compaction waits until this share of the log is not compacted yet.",
    "min.compaction.lag.ms": "Segments with a younger record are not compacted.",
    "min.insync.replicas": "How many replicas must be on living nodes for a write with acks=all.",
    "node.id": "The id of the first node; further nodes have the next ids.",
    "num.partitions": "The number of partitions of topics created without one.",
    "offset.metadata.max.bytes": "The longest metadata that can be committed with an offset.",
    "offsets.retention.check.interval.ms": "How often committed offsets are checked for expiry.",
    "offsets.retention.minutes": (
        "How long offsets are kept after a group is empty or no longer subscribed to the topic."
    ),
    "offsets.topic.num.partitions": "How many partitions the topic of committed offsets gets when it is created.",
    "offsets.topic.segment.bytes": "segment.bytes of the topic of committed offsets.",
    "process.roles": "Every node is a broker, and one of them the controller.",
    "producer.id.expiration.check.interval.ms": "How often producers are checked for expiry.",
    "producer.id.expiration.ms": "A partition forgets producers that have not appended for this long.",
    "quota.window.num": "How many samples the rates of clients are measured over.",
    "quota.window.size.seconds": "How long each sample lasts.",
    "retention.bytes": (
        "The oldest segments of a partition are deleted while the rest is at least this large; -1: never."
    ),
    "retention.ms": "Segments whose records are all older are deleted; -1: never.",
    "sasl.server.max.receive.size": "The largest message of a SASL login.",
    "segment.bytes": "A segment of the log is closed before it grows beyond this size.",
    "segment.ms": ("A segment of the log is closed at the next append if its first record is older than this."),
    "socket.request.max.bytes": "The largest request.",
    "super.users": "The principals that may do everything, regardless of the rules.",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": (
        "How often transactions are checked for their timeout."
    ),
    "transaction.max.timeout.ms": "The longest timeout that a transaction can have.",
    "transaction.partition.verification.enable": (
        "Whether partition leaders verify transactional writes of older clients with the coordinator."
    ),
    "transaction.remove.expired.transaction.cleanup.interval.ms": (
        "How often transactional ids are checked for expiry."
    ),
    "transaction.state.log.min.isr": "min.insync.replicas of the topic of transactions, when it is created.",
    "transaction.state.log.num.partitions": "How many partitions the topic of transactions gets when it is created.",
    "transaction.state.log.segment.bytes": "segment.bytes of the topic of transactions.",
    "transaction.two.phase.commit.enable": (
        "Whether clients may take part in two-phase commit, whose transactions have no timeout."
    ),
    "transactional.id.expiration.ms": "A transactional id is forgotten after it has been unused for this long.",
    "unstable.api.versions.enable": "Whether API versions that are unstable in the imitated release are offered.",
}
"""One sentence about each setting that has an effect here (KIP-569). For others, see Kafka's documentation."""


def documentation_of(name: str) -> str | None:
    """Return the description of a setting's effect here, or None if it has none."""
    return DOCUMENTATION.get(name)
