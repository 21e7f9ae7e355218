"""Settings that differ here from Apache Kafka's, each with the reason, and settings of the emulator's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from dualwrite.broker_emulator.configs.broker_settings import BROKER_SETTINGS
from dualwrite.broker_emulator.configs.resource_settings import TOPIC_SETTINGS
from dualwrite.broker_emulator.configs.setting import Between, ConfigType, OneOf, Rule, Setting, by_name
from dualwrite.broker_emulator.profiles import NAMES

_MAX_LONG = "9223372036854775807"


class Difference(NamedTuple):
    """The difference of one setting. None means Kafka's value."""

    reason: str
    default: str | None = None
    rule: Rule | None = None

    def applied_to(self, setting: Setting) -> Setting:
        return setting._replace(
            default=setting.default if self.default is None else self.default, rule=self.rule or setting.rule
        )


DIFFERENCES: Final[Mapping[str, Difference]] = {
    "transaction.two.phase.commit.enable": Difference("this broker is made for two-phase commit", "true"),
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
    "transaction.state.log.min.isr": Difference("two nodes are enough for transactions, and one may then crash", "1"),
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
        Setting("profile", ConfigType.STRING, "kip-939", OneOf(NAMES)),
        Setting("transaction.version", ConfigType.INT, "2", Between(0, 2)),
        Setting("group.version", ConfigType.INT, "1", Between(0, 1)),
        Setting("share.version", ConfigType.INT, "1", Between(0, 1)),
        Setting("max.request.elements", ConfigType.INT, "100000", Between(0)),
        Setting("memory.limit.bytes", ConfigType.LONG, "1073741824", Between(0)),
        Setting("fsync", ConfigType.STRING, "interval", OneOf(("always", "interval", "never"))),
    )
)
"""Settings that Kafka does not have: DescribeConfigs does not show them, and requests cannot alter them."""
