"""Topics and partitions: their names, the nodes with replicas of a partition, and the node that leads it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dualwrite.broker_emulator.clock import Clock
    from dualwrite.broker_emulator.config import BrokerConfig
    from dualwrite.broker_emulator.configs.alteration import AlteredConfigs
    from dualwrite.broker_emulator.log.partition_log import PartitionLog

TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
OFFSETS_TOPIC: Final = "__consumer_offsets"
SHARE_STATE_TOPIC: Final = "__share_group_state"
METADATA_TOPIC: Final = "__cluster_metadata"
"""The log of Kafka's controllers, not a topic for clients."""

NO_LEADER: Final = -1

_MAX_NAME_LENGTH = 249
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicPartition(NamedTuple):
    """The name of a partition: its topic and its index."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(slots=True, eq=False)
class Partition:
    """One partition, the nodes that have a replica of it, and the node that leads it.

    All replicas share one log. A follower lacks the records above the high watermark.
    """

    topic: Topic
    index: int
    leader_id: int
    """NO_LEADER while no node with a replica is alive."""
    log: PartitionLog
    replicas: Sequence[int]
    """Nodes that have a replica or are about to, the preferred leader first."""
    last_leader_id: int = NO_LEADER
    """The node that has the unreplicated records, while the partition has no leader."""
    adding: Sequence[int] = ()
    """Replicas of a reassignment under way that do not have every record yet."""
    removing: Sequence[int] = ()
    """Replicas that a reassignment under way will remove."""
    name: TopicPartition = field(init=False)

    def __post_init__(self) -> None:
        self.name = TopicPartition(self.topic.name, self.index)

    @property
    def complete_replicas(self) -> list[int]:
        """The replicas that have every record, and so may lead."""
        return [node_id for node_id in self.replicas if node_id not in self.adding]

    def is_led_by(self, node_id: int, leader_epoch: int) -> bool:
        """Return whether `node_id` is still the leader that was elected with `leader_epoch`."""
        return self.leader_id == node_id and self.log.leader_epoch == leader_epoch


@dataclass(slots=True, eq=False)
class Topic:
    """One topic."""

    name: str
    topic_id: uuid.UUID
    partitions: list[Partition] = field(default_factory=list)
    configs: dict[str, str | None] = field(default_factory=dict)
    """The topic's own settings. Those that concern logs (`LogConfig`) are passed on to its logs."""
    is_internal: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_internal = self.name in (TRANSACTION_STATE_TOPIC, OFFSETS_TOPIC, SHARE_STATE_TOPIC)


class InternalTopic(NamedTuple):
    """The number of partitions and the settings with which a topic of the coordinators is created."""

    partitions: int
    configs: Mapping[str, str]


def internal_topics(config: BrokerConfig) -> dict[str, InternalTopic]:
    """Return the topics of the coordinators by name, with the settings that Kafka gives them."""
    return {
        TRANSACTION_STATE_TOPIC: InternalTopic(
            config.transaction_state_log_num_partitions,
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(config.transaction_state_log_min_isr),
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        ),
        OFFSETS_TOPIC: InternalTopic(
            config.offsets_topic_num_partitions,
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        ),
    }


SHARE_STATE_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "min.insync.replicas": "1",
    "retention.ms": "-1",
}
"""The settings of `__share_group_state`, whose coordinators delete obsolete records themselves."""


class ClusterView(Protocol):
    """The part of the cluster (`cluster/cluster.py`) that the group coordinators read."""

    @property
    def clock(self) -> Clock: ...

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def altered_configs(self) -> AlteredConfigs: ...

    @property
    def topics(self) -> Mapping[str, Topic]: ...

    @property
    def topics_version(self) -> int:
        """Grows whenever a topic is created, deleted or extended."""

    def group_config(self, group_id: str) -> Mapping[str, str]:
        """Return all settings of a group by Kafka's names: its own, or else the brokers' defaults."""

    def topic_by_id(self, topic_id: uuid.UUID | None) -> Topic | None:
        """Return the topic with this id, or None."""

    def group_partition(self, group_id: str) -> int:
        """Return the index of the partition of `__consumer_offsets` that a group belongs to."""


# --- topic names ------------------------------------------------------------------------------------------------------


def is_legal_topic_name(name: str) -> bool:
    """Return whether Kafka allows the name: 1 to 249 ASCII letters, digits, '.', '_' and '-', but not "." or ".."."""
    return _LEGAL_NAME.fullmatch(name) is not None and name not in (".", "..")


def why_not_a_topic_name(name: str) -> str | None:
    """Return Kafka's message about an illegal topic name, or None for a legal one."""
    if is_legal_topic_name(name):
        return None
    return f"Topic name is invalid: {_problem_with(name)}"


class NamesAlike:
    """The topics with '.' or '_' in their names. Metrics replace '.' by '_', so Kafka treats such names as equal."""

    def __init__(self, topics: Iterable[str]) -> None:
        self._topics = {_unified(name): name for name in topics if "." in name or "_" in name}

    def topic_like(self, name: str) -> str | None:
        """Return a topic whose name differs from this one in such characters only, or None."""
        alike = self._topics.get(_unified(name))
        return None if alike == name else alike


def _unified(name: str) -> str:
    return name.replace(".", "_")


def _problem_with(name: str) -> str:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > _MAX_NAME_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {_MAX_NAME_LENGTH}"
    return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
