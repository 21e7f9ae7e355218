"""The cluster of one emulator: nodes, topics, partitions and who leads them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING

from dualwrite.broker_emulator.clock import Clock
from dualwrite.broker_emulator.cluster.features import GROUP_VERSION, TRANSACTION_VERSION, supported_levels
from dualwrite.broker_emulator.cluster.reassignment import finish_if_possible
from dualwrite.broker_emulator.cluster.topic_names import is_legal_topic_name
from dualwrite.broker_emulator.cluster.topic_partition import TopicPartition
from dualwrite.broker_emulator.config import BrokerConfig, Profile
from dualwrite.broker_emulator.configs.altered import ALL_BROKERS, AlteredConfigs, ConfigResource
from dualwrite.broker_emulator.configs.effective import broker_log_config, group_values
from dualwrite.broker_emulator.faults import Faults
from dualwrite.broker_emulator.log.log_config import CleanupPolicy, LogConfig
from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.log.segment import StorageError
from dualwrite.broker_emulator.net.closing_log import ClosingLog
from dualwrite.broker_emulator.pause_points import PausePoints
from dualwrite.broker_emulator.quotas.client_quotas import ClientQuotas
from dualwrite.broker_emulator.quotas.enforcement import ControllerQuotas
from dualwrite.broker_emulator.security.acl import Authorizer
from dualwrite.broker_emulator.security.authorizer import authorizer_for
from dualwrite.broker_emulator.security.scram_users import ScramUsers
from dualwrite.broker_emulator.storage.storage import FinalizedFeatures, MemoryOnly, Storage, StoredTopic
from dualwrite.broker_emulator.transactions.producer_ids import ProducerIdBlocks
from dualwrite.broker_emulator.transactions.transaction_log import partition_for

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.node import Node

TRANSACTION_STATE_TOPIC = "__transaction_state"
OFFSETS_TOPIC = "__consumer_offsets"

NO_LEADER = -1


@dataclass(slots=True, eq=False)
class Partition:
    """One partition, the nodes that have a copy of it, and the one that leads it.

    All copies are one log. What a follower lacks of it is what the high watermark has not passed.
    """

    topic: Topic
    index: int
    leader_id: int
    """NO_LEADER while no node with a copy is alive."""
    log: PartitionLog
    replicas: Sequence[int]
    """Nodes with a copy or about to have one, in the order in which they are preferred as leader."""
    last_leader_id: int = NO_LEADER
    """The node that has what was not replicated when nobody leads."""
    adding: Sequence[int] = ()
    """Replicas of a reassignment under way that do not have everything yet."""
    removing: Sequence[int] = ()
    """Replicas that a reassignment under way will take away."""
    name: TopicPartition = field(init=False)

    def __post_init__(self) -> None:
        self.name = TopicPartition(self.topic.name, self.index)

    @property
    def complete_replicas(self) -> list[int]:
        """Those that have everything, and so may lead."""
        return [node_id for node_id in self.replicas if node_id not in self.adding]

    def is_led_by(self, node_id: int, leader_epoch: int) -> bool:
        """Whether `node_id` still leads as it did when the epoch was `leader_epoch`."""
        return self.leader_id == node_id and self.log.leader_epoch == leader_epoch


@dataclass(slots=True, eq=False)
class Topic:
    """One topic."""

    name: str
    topic_id: uuid.UUID
    partitions: list[Partition] = field(default_factory=list)
    configs: dict[str, str | None] = field(default_factory=dict)
    """What is set of the topic itself. Of those that say how logs are kept (`LogConfig`), the logs take notice."""
    is_internal: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_internal = self.name in (TRANSACTION_STATE_TOPIC, OFFSETS_TOPIC)


class NodeGoneError(Exception):
    """A node died while another one waited for its answer."""


PRODUCER_IDS_PER_MS = 1000
"""More than any emulator hands out, so that no two that share a clock hand out the same."""


class Cluster:
    """What all nodes of one emulator share. Everything here runs in the emulator's loop."""

    def __init__(self, config: BrokerConfig, clock: Clock, faults: Faults, storage: Storage | None = None) -> None:
        self.storage: Storage = storage or MemoryOnly(config.memory_limit_bytes)
        self._features = self.storage.finalized_features
        self.altered_configs = AlteredConfigs(self.storage)
        self.on_config_change: list[Callable[[], None]] = []
        """Called when brokers have other settings; must not raise."""
        self.given_config = config
        self.config = config
        """What every node goes by that has no settings of its own (`config_of`)."""
        self._node_configs: dict[int, BrokerConfig] = {}
        self._read_configs()
        self.clock = clock
        self.faults = faults
        self.pause_points = PausePoints(faults)
        self.quotas = ClientQuotas(self.storage)
        self.controller_quotas = ControllerQuotas(self.quotas, clock, self.config)
        self.authorizer: Authorizer | None = authorizer_for(self.config, self.storage)
        """None: everybody may do everything."""
        self.scram_users = ScramUsers(self.storage)
        self.closings = ClosingLog(logging.getLogger(__name__))
        self.cluster_id = self.storage.cluster_id
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, Topic] = {}
        # A database outlives this memory and may hold the prepared state of an earlier emulator. Were ids handed out
        # from 0 again, a new transaction could be taken for that one and be committed by mistake.
        first_producer_id = self.storage.next_producer_id or clock.now_ms() * PRODUCER_IDS_PER_MS
        self.producer_id_blocks = ProducerIdBlocks(first_producer_id, self.storage.producer_ids_allocated)
        self.topics_version = 0
        """Grows whenever a topic comes, goes or gets more partitions: consumer groups look at their topics then."""
        self._topics_by_id: dict[uuid.UUID, Topic] = {}
        self._first_leader = 0
        faults.crash_node = lambda node_id: self.nodes[node_id].crash()

    @property
    def finalized_features_epoch(self) -> int:
        """Grows with every update of the features."""
        return self._features.epoch

    @property
    def living_nodes(self) -> list[Node]:
        """The nodes that can be asked, by id."""
        return [node for _, node in sorted(self.nodes.items()) if node.is_alive]

    @property
    def controller_id(self) -> int:
        """The living node with the lowest id; -1 when none lives."""
        return min((node.node_id for node in self.living_nodes), default=-1)

    @property
    def default_replication_factor(self) -> int:
        """How many copies a topic has that is created without a number; there may be fewer nodes."""
        return self.config.default_replication_factor or len(self.nodes)

    def create_internal_topics(self) -> None:
        """Create what Kafka creates when it is first needed; here at start, so that nobody has to be told to wait.

        Raises StorageError when the storage has them with another number of partitions.
        """
        config = self.config
        for name, partitions, segment_bytes in (
            (
                TRANSACTION_STATE_TOPIC,
                config.transaction_state_log_num_partitions,
                config.transaction_state_log_segment_bytes,
            ),
            (OFFSETS_TOPIC, config.offsets_topic_num_partitions, config.offsets_topic_segment_bytes),
        ):
            known = self.topics.get(name)
            if known is not None and len(known.partitions) != partitions:
                raise StorageError(
                    f"{name} was created with {len(known.partitions)} partitions, not {partitions}: what belongs to "
                    "which of them cannot change, so start with the number that it has"
                )
            if known is None:
                configs = {"cleanup.policy": str(CleanupPolicy.COMPACT), "segment.bytes": str(segment_bytes)}
                self.create_topic(name, partitions, configs=configs, replication_factor=len(self.nodes))

    def restore_topics(self) -> None:
        """Create what the storage has kept, each partition under a new leader epoch. Raises StorageError."""
        kept_levels = (
            (TRANSACTION_VERSION, self._features.transaction_version),
            (
                GROUP_VERSION,
                self._features.group_version,
            ),
        )
        for feature, level in kept_levels:
            if level is not None and not _is_supported(feature, level, self.config):
                raise StorageError(
                    f"the data directory was last used with {feature} {level}, which {self.config.profile} "
                    "does not support: start it with the profile that it was used with"
                )
        for kept in self.storage.topics():
            configs: Mapping[str, str | None] = kept.configs
            if self.altered_configs.was_altered(ConfigResource.TOPIC, kept.name):
                configs = self.altered_configs.of(ConfigResource.TOPIC, kept.name)
            self._add_topic(
                Topic(kept.name, kept.topic_id, configs=dict(configs)),
                self._kept_assignments(kept),
                kept.leader_epochs,
            )

    def _kept_assignments(self, kept: StoredTopic) -> list[Sequence[int]]:
        """Where the copies were, as far as there are those nodes; anew for a partition of which none is left."""
        fresh = self._assign(len(kept.leader_epochs), len(self.nodes))
        known = [[node_id for node_id in replicas if node_id in self.nodes] for replicas in kept.replicas]
        return [replicas or anew for replicas, anew in zip_longest(known, fresh)]

    def create_topic(
        self,
        name: str,
        partitions: int,
        *,
        configs: Mapping[str, str | None] | None = None,
        replication_factor: int | None = None,
        assignments: Sequence[Sequence[int]] | None = None,
    ) -> Topic:
        """Create a topic; leaders go round the living nodes, copies are as many as usual unless a number is given.

        `assignments` names the nodes of each partition instead, the preferred leader first. Raises ValueError when
        the name is taken or not legal, a config has a value it does not take, or there are not that many nodes;
        StorageError when it cannot be kept.
        """
        if name in self.topics or not is_legal_topic_name(name) or partitions < 1:
            raise ValueError(f"cannot create topic {name!r} with {partitions} partitions")
        if assignments is None:
            assignments = self._assign(partitions, replication_factor or self.default_replication_factor)
        topic = Topic(name, uuid.uuid4(), configs=dict(configs or {}))
        self._log_config(topic)  # before anything is kept: it raises where a config is wrong
        leader_epochs = [0] * len(assignments)
        self.storage.topic_created(StoredTopic(name, topic.topic_id, topic.configs, leader_epochs, assignments))
        self._add_topic(topic, assignments, leader_epochs)
        return topic

    def create_partitions(self, topic: Topic, assignments: Sequence[Sequence[int]]) -> None:
        """Add partitions to a topic, one for each assignment. Raises StorageError when that cannot be kept."""
        self.storage.partitions_created(topic.name, assignments)
        self._add_partitions(topic, assignments, [0] * len(assignments))

    def assign_more(self, topic: Topic, partitions: int) -> list[list[int]]:
        """Where the copies of new partitions of a topic would go: leaders go on round the living nodes.

        Raises ValueError where there are fewer nodes than the topic has copies.
        """
        last = topic.partitions[-1].replicas[0]
        living = [node.node_id for node in self.living_nodes]
        first = living.index(last) + 1 if last in living else 0
        return self._assign(partitions, len(topic.partitions[0].replicas), first)

    def _add_topic(self, topic: Topic, assignments: Sequence[Sequence[int]], leader_epochs: Sequence[int]) -> None:
        self._add_partitions(topic, assignments, leader_epochs)
        self._first_leader += 0 if topic.is_internal else 1
        self.topics[topic.name] = topic
        self._topics_by_id[topic.topic_id] = topic

    def _add_partitions(self, topic: Topic, assignments: Sequence[Sequence[int]], leader_epochs: Sequence[int]) -> None:
        living = [node.node_id for node in self.living_nodes]
        log_configs = cache(self._log_config)  # the same for many partitions, and long to make
        for replicas, leader_epoch in zip(assignments, leader_epochs, strict=True):
            index = len(topic.partitions)
            leader_id = elect(replicas, living)
            log = self._new_log(topic, index, leader_epoch, leader_id, log_configs(topic, leader_id))
            topic.partitions.append(Partition(topic, index, leader_id, log, replicas, leader_id))
        self.topics_version += 1

    def _assign(self, partitions: int, replication_factor: int, first_leader: int | None = None) -> list[list[int]]:
        """Leaders go round the living nodes, each partition's copies round all of them."""
        begin = self._first_leader if first_leader is None else first_leader
        if not 1 <= replication_factor <= len(self.nodes):
            raise ValueError(f"{replication_factor} replicas on {len(self.nodes)} nodes")
        every = sorted(self.nodes)
        leaders = [node.node_id for node in self.living_nodes] or every
        assigned = []
        for index in range(partitions):
            first = every.index(leaders[(begin + index) % len(leaders)])
            assigned.append([*every[first:], *every[:first]][:replication_factor])
        return assigned

    def _new_log(
        self, topic: Topic, partition: int, leader_epoch: int, leader_id: int, config: LogConfig
    ) -> PartitionLog:
        return PartitionLog(
            topic.name,
            partition,
            leader_epoch=leader_epoch,
            producer_id_expiration_ms=self.config_of(leader_id).producer_id_expiration_ms,
            config=config,
            storage=self.storage.log(topic.name, partition),
            now_ms=self.clock.now_ms(),
            tells_epochs_apart=self.config.profile is not Profile.KAFKA_3_9,
        )

    def _log_config(self, topic: Topic, leader_id: int = NO_LEADER) -> LogConfig:
        """Settings of a topic's logs: those of the broker that leads, and the topic's own on top. Raises ValueError."""
        return broker_log_config(self.config_of(leader_id)).with_overrides(topic.configs)

    # settings

    def config_of(self, node_id: int) -> BrokerConfig:
        """What a node goes by: what was given, what was altered for all brokers, and what for this one alone."""
        return self._node_configs.get(node_id, self.config)

    def group_config(self, group_id: str) -> Mapping[str, str]:
        """Every setting of a group by Kafka's name: the group's own, else the brokers' of that kind (KIP-848)."""
        return group_values(self.config, self.altered_configs.of(ConfigResource.GROUP, group_id))

    def alter_topic(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Set these settings of a topic and no others; its logs follow at once.

        Raises ValueError for a value that a setting does not take, StorageError when it cannot be kept.
        """
        self._log_config(Topic(topic.name, topic.topic_id, configs=dict(configs)))
        self.altered_configs.replace(ConfigResource.TOPIC, topic.name, configs)
        topic.configs = dict(configs)
        self._configure_logs(topic.partitions)

    def alter_brokers(self, name: str, configs: Mapping[str, str]) -> None:
        """Set these settings of one broker, or of all (ALL_BROKERS), and no others; they take effect at once.

        Raises ValueError for a value that a setting does not take, StorageError when it cannot be kept.
        """
        broker_log_config(self.given_config.altered(configs))
        self.altered_configs.replace(ConfigResource.BROKER, name, configs)
        self._follow_configs()

    def _as_altered(self, config: BrokerConfig, name: str) -> BrokerConfig:
        altered = config.altered(self.altered_configs.of(ConfigResource.BROKER, name))
        return _as_finalized(altered, self._features)

    def _read_configs(self) -> None:
        self.config = self._as_altered(self.given_config, ALL_BROKERS)
        self._node_configs = {
            int(name): self._as_altered(self.config, name)
            for name in self.altered_configs.names(ConfigResource.BROKER)
            if name != ALL_BROKERS
        }

    def _follow_configs(self) -> None:
        self._read_configs()
        for node in self.nodes.values():
            node.transactions.configure(self.config_of(node.node_id))
        self._configure_logs(self.partitions())
        for follow in list(self.on_config_change):
            follow()

    def _configure_logs(self, partitions: Iterable[Partition]) -> None:
        log_configs = cache(self._log_config)  # the same for many partitions, and long to make
        for partition in partitions:
            partition.log.configure(
                log_configs(partition.topic, partition.leader_id),
                producer_id_expiration_ms=self.config_of(partition.leader_id).producer_id_expiration_ms,
            )

    def delete_topic(self, name: str) -> None:
        """Forget a topic and its data. Raises KeyError when there is none, StorageError when it cannot be forgotten."""
        topic = self.topics[name]
        self.altered_configs.forget(ConfigResource.TOPIC, name)
        self.storage.topic_deleted(name)
        del self.topics[name]
        del self._topics_by_id[topic.topic_id]
        self.topics_version += 1
        for partition in topic.partitions:
            partition.leader_id = NO_LEADER
            partition.log.begin_leader_epoch(partition.log.leader_epoch + 1)  # whoever waits for replication gives up
            _wake(partition.log.on_advance)
            partition.log.destroy()
        for node in self.living_nodes:
            node.groups.forget_topic(name)

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
        """The node that leads a partition; None where there is no such partition, or nobody alive to lead it."""
        partition = self.partition(topic, index)
        return None if partition is None else self.nodes.get(partition.leader_id)

    def partitions(self) -> Iterator[Partition]:
        """Every partition of every topic."""
        for topic in self.topics.values():
            yield from topic.partitions

    # elections

    def make_leader(self, partition: Partition, leader_id: int) -> None:
        """Let a node lead a partition from now on (NO_LEADER: nobody), under a new leader epoch.

        A node that did not lead before has only what was replicated: the rest is lost. Whoever waits for the
        partition wakes up and finds that it has another leader.
        """
        before = self.nodes.get(partition.leader_id)
        if before is not None:
            before.resign(partition)
        log = partition.log
        if leader_id not in (NO_LEADER, partition.last_leader_id):
            log.truncate_to_high_watermark(self.clock.now_ms())
        partition.leader_id = leader_id
        if leader_id != NO_LEADER:
            partition.last_leader_id = leader_id
        self.storage.leader_elected(*partition.name, log.leader_epoch + 1)
        log.begin_leader_epoch(log.leader_epoch + 1)
        _wake(log.on_advance)
        if self._node_configs:
            self._configure_logs((partition,))
        if leader_id != NO_LEADER:
            self.nodes[leader_id].lead(partition)

    def replace_leader(self, leaving: Node) -> None:
        """Elect another leader for everything that `leaving` leads."""
        candidates = [node.node_id for node in self.living_nodes if node is not leaving]
        for partition in self.partitions():
            if partition.leader_id == leaving.node_id:
                self.make_leader(partition, elect(partition.complete_replicas, candidates))

    def lead_orphans(self, arrived: Node) -> None:
        """Let a node that has just started lead what nobody else can."""
        for partition in self.partitions():
            if partition.leader_id == NO_LEADER and arrived.node_id in partition.complete_replicas:
                self.make_leader(partition, arrived.node_id)
            finish_if_possible(self, partition)

    def electable(self, partition: Partition, preferred: int) -> int:
        """`preferred` where it may lead; otherwise the first replica that lives, NO_LEADER when none does."""
        living = [node.node_id for node in self.living_nodes]
        return elect([preferred] * (preferred in partition.complete_replicas) + partition.complete_replicas, living)

    def finalize_features(self, transaction_version: int | None = None, group_version: int | None = None) -> None:
        """Set the finalized levels of features (None: leave them); every update moves the features' epoch.

        Raises ValueError for a level that the profile does not support, StorageError when it cannot be kept.
        """
        features = self._features._replace(epoch=self._features.epoch + 1)
        if transaction_version is not None:
            features = features._replace(transaction_version=transaction_version)
        if group_version is not None:
            features = features._replace(group_version=group_version)
        for feature, level in ((TRANSACTION_VERSION, transaction_version), (GROUP_VERSION, group_version)):
            if level is not None and not _is_supported(feature, level, self.config):
                raise ValueError(f"{self.config.profile} does not support {feature} {level}")
        self.storage.features_finalized(features)
        self._features = features
        self._follow_configs()

    def expire_producers(self) -> None:
        """Let every partition forget the producers that have been idle for too long."""
        now_ms = self.clock.now_ms()
        for partition in self.partitions():
            partition.log.expire_producers(now_ms)

    # coordinators

    def transaction_partition(self, transactional_id: str) -> Partition:
        """The partition of `__transaction_state` that an id belongs to."""
        partitions = self.topics[TRANSACTION_STATE_TOPIC].partitions
        return partitions[partition_for(transactional_id, len(partitions))]

    def transaction_coordinator(self, transactional_id: str) -> Node | None:
        """The node that leads the id's partition of `__transaction_state`, if one does."""
        return self.nodes.get(self.transaction_partition(transactional_id).leader_id)

    def group_partition(self, group_id: str) -> int:
        """Which partition of `__consumer_offsets` a group belongs to."""
        return partition_for(group_id, len(self.topics[OFFSETS_TOPIC].partitions))

    def group_coordinator(self, group_id: str) -> Node | None:
        """The node that leads the group's partition of `__consumer_offsets`, if one does."""
        return self.nodes.get(self.topics[OFFSETS_TOPIC].partitions[self.group_partition(group_id)].leader_id)


def _as_finalized(config: BrokerConfig, features: FinalizedFeatures) -> BrokerConfig:
    """The settings with the levels that the features were updated to."""
    if features.transaction_version is not None:
        config = replace(config, transaction_version=features.transaction_version)
    return config if features.group_version is None else replace(config, group_version=features.group_version)


def _is_supported(feature: str, level: int, config: BrokerConfig) -> bool:
    return level in (supported_levels(feature, config) or range(1))


def elect(replicas: Sequence[int], living: Sequence[int]) -> int:
    """The first replica that lives, NO_LEADER when none does. All replicas are in sync here."""
    return next((node_id for node_id in replicas if node_id in living), NO_LEADER)


def _wake(callbacks: list[Callable[[], None]]) -> None:
    for callback in list(callbacks):
        callback()
