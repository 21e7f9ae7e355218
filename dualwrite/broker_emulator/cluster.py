"""The cluster of one emulator: nodes, topics, partitions and who leads them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dualwrite.broker_emulator.clock import Clock
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.faults import Faults
from dualwrite.broker_emulator.features import TRANSACTION_VERSION, supported_levels
from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.pause_points import PausePoints
from dualwrite.broker_emulator.topic_partition import TopicPartition
from dualwrite.broker_emulator.transactions.producer_ids import ProducerIdBlocks
from dualwrite.broker_emulator.transactions.transaction_log import partition_for

if TYPE_CHECKING:
    from dualwrite.broker_emulator.node import Node

TRANSACTION_STATE_TOPIC = "__transaction_state"
OFFSETS_TOPIC = "__consumer_offsets"

_LEGAL_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_legal_topic_name(name: str) -> bool:
    """Kafka's rule: at most 249 of ASCII letters, digits, dot, underscore and minus, and neither "." nor ".."."""
    return _LEGAL_TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


@dataclass(slots=True, eq=False)
class Partition:
    """One partition and the node that leads it. There is one replica of everything."""

    topic: Topic
    index: int
    leader_id: int
    log: PartitionLog

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic.name, self.index)


@dataclass(slots=True, eq=False)
class Topic:
    """One topic."""

    name: str
    topic_id: uuid.UUID
    partitions: list[Partition] = field(default_factory=list)
    configs: dict[str, str | None] = field(default_factory=dict)
    """As given at creation. Kept to be shown, not obeyed."""

    @property
    def is_internal(self) -> bool:
        return self.name in (TRANSACTION_STATE_TOPIC, OFFSETS_TOPIC)


PRODUCER_IDS_PER_MS = 1000
"""More than any emulator hands out, so that no two that share a clock hand out the same."""


class Cluster:
    """What all nodes of one emulator share. Everything here runs in the emulator's loop."""

    def __init__(self, config: BrokerConfig, clock: Clock, faults: Faults) -> None:
        self.config = config
        self.clock = clock
        self.faults = faults
        self.pause_points = PausePoints(faults)
        self.finalized_features_epoch = 0
        self.cluster_id = uuid.uuid4().hex[:22]
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, Topic] = {}
        # A database outlives this memory and may hold the prepared state of an earlier emulator. Were ids handed out
        # from 0 again, a new transaction could be taken for that one and be committed by mistake.
        self.producer_id_blocks = ProducerIdBlocks(first_producer_id=clock.now_ms() * PRODUCER_IDS_PER_MS)
        self._topics_by_id: dict[uuid.UUID, Topic] = {}
        self._first_leader = 0

    @property
    def controller_id(self) -> int:
        return min(self.nodes)

    def create_internal_topics(self) -> None:
        """Create what Kafka creates when it is first needed; here at start, so that nobody has to be told to wait."""
        config = self.config
        self.create_topic(TRANSACTION_STATE_TOPIC, config.transaction_state_log_num_partitions)
        self.create_topic(OFFSETS_TOPIC, config.offsets_topic_num_partitions)

    def create_topic(self, name: str, partitions: int, *, configs: Mapping[str, str | None] | None = None) -> Topic:
        """Create a topic; leaders go round the nodes. Raises ValueError when the name is taken or not legal."""
        if name in self.topics or not is_legal_topic_name(name) or partitions < 1:
            raise ValueError(f"cannot create topic {name!r} with {partitions} partitions")
        topic = Topic(name, uuid.uuid4(), configs=dict(configs or {}))
        node_ids = sorted(self.nodes)
        for index in range(partitions):
            leader_id = node_ids[(self._first_leader + index) % len(node_ids)]
            topic.partitions.append(Partition(topic, index, leader_id, self._new_log(name, index)))
        self._first_leader += 0 if topic.is_internal else 1
        self.topics[name] = topic
        self._topics_by_id[topic.topic_id] = topic
        return topic

    def _new_log(self, topic: str, partition: int) -> PartitionLog:
        config = self.config
        return PartitionLog(
            topic,
            partition,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            message_max_bytes=config.message_max_bytes,
        )

    def delete_topic(self, name: str) -> None:
        """Forget a topic and its data. Raises KeyError when there is none."""
        topic = self.topics.pop(name)
        del self._topics_by_id[topic.topic_id]
        for partition in topic.partitions:
            _wake(partition.log.on_advance)

    def topic_by_id(self, topic_id: uuid.UUID | None) -> Topic | None:
        """The topic with this id, if there is one."""
        return None if topic_id is None else self._topics_by_id.get(topic_id)

    def partition(self, topic: str, index: int) -> Partition | None:
        """The partition of this name, if there is one."""
        known = self.topics.get(topic)
        if known is None or not 0 <= index < len(known.partitions):
            return None
        return known.partitions[index]

    def leader(self, topic: str, index: int) -> Node | None:
        """The node that leads a partition; None where there is no such partition."""
        partition = self.partition(topic, index)
        return None if partition is None else self.nodes.get(partition.leader_id)

    def finalize_features(self, transaction_version: int | None) -> None:
        """Set the finalized level of `transaction.version` (None: leave it); every update moves the features' epoch.

        Raises ValueError for a level that the profile does not support.
        """
        self.finalized_features_epoch += 1
        if transaction_version is None:
            return
        if transaction_version not in (supported_levels(TRANSACTION_VERSION, self.config) or range(1)):
            raise ValueError(f"{self.config.profile} does not support {TRANSACTION_VERSION} {transaction_version}")
        self.config = replace(self.config, transaction_version=transaction_version)
        for node in self.nodes.values():
            node.transactions.follow(self.config)

    def expire_producers(self) -> None:
        """Let every partition forget the producers that have been idle for too long."""
        now_ms = self.clock.now_ms()
        for topic in self.topics.values():
            for partition in topic.partitions:
                partition.log.expire_producers(now_ms)

    # coordinators

    def transaction_coordinator(self, transactional_id: str) -> Node:
        """The node that leads the id's partition of `__transaction_state`."""
        partitions = self.topics[TRANSACTION_STATE_TOPIC].partitions
        return self.nodes[partitions[partition_for(transactional_id, len(partitions))].leader_id]

    def group_partition(self, group_id: str) -> int:
        """Which partition of `__consumer_offsets` a group belongs to."""
        return partition_for(group_id, len(self.topics[OFFSETS_TOPIC].partitions))

    def group_coordinator(self, group_id: str) -> Node:
        """The node that leads the group's partition of `__consumer_offsets`."""
        return self.nodes[self.topics[OFFSETS_TOPIC].partitions[self.group_partition(group_id)].leader_id]


def _wake(callbacks: list[Callable[[], None]]) -> None:
    for callback in list(callbacks):
        callback()
