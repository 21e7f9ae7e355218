"""The cluster of one emulator: the state that its nodes share, and its topics. `elections.py` has their leaders.

Changes of all partitions of a topic, or of the cluster, are sequences of steps (`changes.py`): a topic of ten thousand
partitions must not hold up the clients of other topics.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, MutableSet, Sequence
from functools import cache, cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from dualwrite.broker_emulator.clock import Clock, Timer
from dualwrite.broker_emulator.cluster.changes import Changes
from dualwrite.broker_emulator.cluster.elections import Elections, elect, wake
from dualwrite.broker_emulator.cluster.features import as_finalized, unsupported, updated
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.configs.alteration import ALL_BROKERS, AlteredConfigs, ConfigResource
from dualwrite.broker_emulator.configs.effective import broker_log_config, group_values, with_topic_configs
from dualwrite.broker_emulator.faults.registry import Faults
from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.pause_points import PausePoints
from dualwrite.broker_emulator.quotas.client_quotas import ClientQuotas
from dualwrite.broker_emulator.quotas.enforcement import ControllerQuotas
from dualwrite.broker_emulator.security.acl import Authorizer
from dualwrite.broker_emulator.security.authorizer import authorizer_for
from dualwrite.broker_emulator.security.scram_users import ScramUsers
from dualwrite.broker_emulator.slices import Steps, at_once
from dualwrite.broker_emulator.storage.storage import MemoryOnly, Storage, StoredTopic
from dualwrite.broker_emulator.suspended_coroutine import Soon
from dualwrite.broker_emulator.topics.topics import (
    NO_LEADER,
    OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    Partition,
    Topic,
    TopicPartition,
    internal_topics,
    is_legal_topic_name,
)
from dualwrite.broker_emulator.transactions.producer_ids import ProducerIdBlocks
from dualwrite.broker_emulator.transactions.transaction_log import partition_for

if TYPE_CHECKING:
    import asyncio

    from kio.schema.errors import ErrorCode

    from dualwrite.broker_emulator.cluster.counters import NodeCounters
    from dualwrite.broker_emulator.groups.coordinator import GroupCoordinator
    from dualwrite.broker_emulator.messages.call import ClientConnection
    from dualwrite.broker_emulator.security.listener import Endpoint
    from dualwrite.broker_emulator.share.leader import ShareLeader
    from dualwrite.broker_emulator.share.state_coordinator import ShareCoordinator
    from dualwrite.broker_emulator.share.states_of_cluster import ShareStates
    from dualwrite.broker_emulator.transactions.ports import Marker
    from dualwrite.broker_emulator.transactions.service import TransactionCoordinator

logger = logging.getLogger(__name__)

T = TypeVar("T")

PRODUCER_IDS_PER_MS: Final = 1000
"""More than any emulator allocates, so that two emulators on the same clock never allocate the same id."""


class NodeGoneError(Exception):
    """A node died while another node waited for its response."""


class ClusterNode(Protocol):
    """A node (`node.py`), as seen by the cluster and its users."""

    @property
    def node_id(self) -> int: ...

    @property
    def is_alive(self) -> bool: ...

    @property
    def cluster(self) -> Cluster: ...

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def endpoints(self) -> Mapping[str, Endpoint]: ...

    @property
    def transactions(self) -> TransactionCoordinator: ...

    @property
    def groups(self) -> GroupCoordinator: ...

    @property
    def share_coordinator(self) -> ShareCoordinator: ...

    @property
    def share_leader(self) -> ShareLeader: ...

    @property
    def connections(self) -> MutableSet[ClientConnection]: ...

    @property
    def counters(self) -> NodeCounters: ...

    servers: list[asyncio.AbstractServer]
    timers: list[Timer]

    def crash(self) -> None: ...

    async def stop(self) -> None: ...

    def end(self) -> None: ...

    def lead(self, partition: Partition) -> None: ...

    def take_over(self, partition: Partition) -> None: ...

    def resign(self, partition: Partition) -> None: ...

    async def run_for_peer(self, work: Coroutine[Any, Any, T]) -> T: ...

    def write_marker(self, topic_partition: TopicPartition, marker: Marker) -> Soon[ErrorCode]: ...


class Cluster:
    """The state that all nodes of one emulator share. Everything here runs in the emulator's loop."""

    def __init__(self, config: BrokerConfig, clock: Clock, faults: Faults, storage: Storage | None = None) -> None:
        self.storage: Storage = storage or MemoryOnly(config.memory_limit_bytes)
        self._features = self.storage.finalized_features
        self.altered_configs = AlteredConfigs(self.storage)
        self.on_config_change: list[Callable[[], None]] = []
        """Called after the settings of brokers have changed; must not raise."""
        self.given_config = config
        self.config = config
        """The settings of every node without settings of its own (`config_of`)."""
        self._node_configs: dict[int, BrokerConfig] = {}
        self._read_configs()
        self.clock = clock
        self.faults = faults
        self.pause_points = PausePoints(faults)
        self.quotas = ClientQuotas(self.storage)
        self.controller_quotas = ControllerQuotas(self.quotas, clock, self.config)
        self.authorizer: Authorizer | None = authorizer_for(self.config, self.storage)
        """None while access control is off: every client may do everything."""
        self.scram_users = ScramUsers(self.storage)
        self.cluster_id = self.storage.cluster_id
        self.nodes: dict[int, ClusterNode] = {}
        self.topics: dict[str, Topic] = {}
        # A database outlives this memory and may hold the prepared state of an earlier emulator. If producer ids
        # started from 0 again, a new transaction could be mistaken for the prepared one and be committed.
        first_producer_id = self.storage.next_producer_id or clock.now_ms() * PRODUCER_IDS_PER_MS
        self.producer_id_blocks = ProducerIdBlocks(first_producer_id, self.storage.producer_ids_allocated)
        self.topics_version = 0
        """Grows whenever a topic is created, deleted or extended; consumer groups then reread their topics."""
        self.changes = Changes()
        """Orders changes of topics and settings, except at the start."""
        self.elections = Elections(self)
        self._topics_by_id: dict[uuid.UUID, Topic] = {}
        self._first_leader = 0
        faults.crash_node = lambda node_id: self.nodes[node_id].crash()

    @property
    def finalized_features_epoch(self) -> int:
        """Grows with every update of the features."""
        return self._features.epoch

    @property
    def living_nodes(self) -> list[ClusterNode]:
        """The nodes that are alive, ordered by id."""
        return [node for _, node in sorted(self.nodes.items()) if node.is_alive]

    @property
    def controller_id(self) -> int:
        """The living node with the lowest id; -1 if no node is alive."""
        return min((node.node_id for node in self.living_nodes), default=-1)

    @property
    def default_replication_factor(self) -> int:
        """The replication factor of topics created without one; it may exceed the number of nodes."""
        return self.config.default_replication_factor or len(self.nodes)

    def create_internal_topics(self) -> None:
        """Create the topics that Kafka creates on first use; here at start, so that no client has to retry.

        Raises StorageError if the storage has them with another number of partitions.
        """
        for name, (partitions, configs) in internal_topics(self.config).items():
            known = self.topics.get(name)
            if known is not None and len(known.partitions) != partitions:
                raise StorageError(
                    f"{name} was created with {len(known.partitions)} partitions, not {partitions}, and the partition "
                    "of an id cannot change: start with the number that it has"
                )
            if known is None:
                self.create_topic(name, partitions, configs=configs, replication_factor=len(self.nodes))

    def restore_topics(self) -> None:
        """Create the stored topics, each partition with a new leader epoch. Raises StorageError."""
        problem = unsupported(self._features, self.config)
        if problem is not None:
            raise StorageError(
                f"the data directory was last used with {problem}, which {self.config.profile} "
                "does not support: start it with the profile that it was used with"
            )
        for stored in self.storage.topics():
            configs: Mapping[str, str | None] = stored.configs
            if self.altered_configs.was_altered(ConfigResource.TOPIC, stored.name):
                configs = self.altered_configs.of(ConfigResource.TOPIC, stored.name)
            topic = Topic(stored.name, stored.topic_id, configs=dict(configs))
            at_once(self._addition(topic, self._stored_assignments(stored), stored.leader_epochs))
        self.storage.recovered()

    def _stored_assignments(self, stored: StoredTopic) -> list[Sequence[int]]:
        """Return the stored replicas on nodes that still exist, or new replicas for partitions without any."""
        fresh = self._place_replicas(len(stored.leader_epochs), len(self.nodes))
        known = [[node_id for node_id in replicas if node_id in self.nodes] for replicas in stored.replicas]
        return [replicas or new for replicas, new in zip_longest(known, fresh)]

    def create_topic(
        self,
        name: str,
        partitions: int,
        *,
        configs: Mapping[str, str | None] | None = None,
        replication_factor: int | None = None,
    ) -> Topic:
        """Create a topic in one piece; see `topic_creation`."""
        return self.changes.make_at_once(
            self.topic_creation(name, partitions, configs=configs, replication_factor=replication_factor)
        )

    def topic_creation(
        self,
        name: str,
        partitions: int,
        *,
        configs: Mapping[str, str | None] | None = None,
        replication_factor: int | None = None,
        assignments: Sequence[Sequence[int]] | None = None,
    ) -> Steps[Topic]:
        """Create a topic, with leaders round-robin over the living nodes and the default replication factor.

        `assignments` lists the nodes of each partition instead, the preferred leader first. The topic becomes visible
        once it is complete. Raises ValueError if the name is taken or illegal, the value of a setting is invalid, or
        the cluster has too few nodes; StorageError if the topic cannot be stored.
        """
        if name in self.topics or not is_legal_topic_name(name) or partitions < 1:
            raise ValueError(f"cannot create topic {name!r} with {partitions} partitions")
        if assignments is None:
            assignments = self._place_replicas(partitions, replication_factor or self.default_replication_factor)
        topic = Topic(name, uuid.uuid4(), configs=dict(configs or {}))
        self._log_config(topic)  # before the topic is stored: it raises if a setting is invalid
        leader_epochs = [0] * len(assignments)
        yield from self.storage.topic_created(
            StoredTopic(name, topic.topic_id, topic.configs, leader_epochs, list(assignments))
        )
        yield from self._addition(topic, assignments, leader_epochs)
        return topic

    def partition_creation(self, topic: Topic, assignments: Sequence[Sequence[int]]) -> Steps[None]:
        """Add partitions to a topic, one for each assignment. They become visible together.

        Raises StorageError if they cannot be stored.
        """
        yield from self.storage.partitions_created(topic.name, assignments)
        yield from self._extension(topic, assignments, [0] * len(assignments))

    def assign_more(self, topic: Topic, partitions: int) -> list[list[int]]:
        """Return nodes for new partitions of a topic: leaders continue round-robin over the living nodes.

        Raises ValueError if the cluster has fewer nodes than the replication factor of the topic.
        """
        last = topic.partitions[-1].replicas[0]
        living = [node.node_id for node in self.living_nodes]
        first = living.index(last) + 1 if last in living else 0
        return self._place_replicas(partitions, len(topic.partitions[0].replicas), first)

    def _addition(
        self, topic: Topic, assignments: Sequence[Sequence[int]], leader_epochs: Sequence[int]
    ) -> Steps[None]:
        yield from self._extension(topic, assignments, leader_epochs)
        self._first_leader += 0 if topic.is_internal else 1
        self.topics[topic.name] = topic
        self._topics_by_id[topic.topic_id] = topic

    def _extension(
        self, topic: Topic, assignments: Sequence[Sequence[int]], leader_epochs: Sequence[int]
    ) -> Steps[None]:
        log_configs = cache(self._log_config)  # the same for many partitions, and slow to build
        added: list[Partition] = []
        for index, (replicas, leader_epoch) in enumerate(
            zip(assignments, leader_epochs, strict=True), len(topic.partitions)
        ):
            leader_id = elect(replicas, [node.node_id for node in self.living_nodes])
            log = self._new_log(topic, index, leader_epoch, leader_id, log_configs(topic, leader_id))
            added.append(Partition(topic, index, leader_id, log, replicas, leader_id))
            yield
        topic.partitions += added
        self.topics_version += 1

    def _place_replicas(
        self, partitions: int, replication_factor: int, first_leader: int | None = None
    ) -> list[list[int]]:
        """Return nodes for each partition: leaders round-robin over the living nodes, followers over all nodes."""
        begin = self._first_leader if first_leader is None else first_leader
        if not 1 <= replication_factor <= len(self.nodes):
            raise ValueError(f"cannot place {replication_factor} replicas on {len(self.nodes)} nodes")
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
            open_for_one_epoch=self.config.behaviours.transaction_open_for_one_epoch,
        )

    def _log_config(self, topic: Topic, leader_id: int = NO_LEADER) -> LogConfig:
        """Return the settings of a topic's logs: the topic's own, or else the leader's defaults. Raises ValueError."""
        return with_topic_configs(broker_log_config(self.config_of(leader_id)), topic.configs)

    # settings

    def config_of(self, node_id: int) -> BrokerConfig:
        """Return the settings of a node: those given at start, overridden by those for all brokers, then by its own."""
        return self._node_configs.get(node_id, self.config)

    def group_config(self, group_id: str) -> Mapping[str, str]:
        """Return all settings of a group by Kafka's names: its own, or else the brokers' defaults (KIP-848)."""
        return group_values(self.config, self.altered_configs.of(ConfigResource.GROUP, group_id))

    def alter_topic(self, topic: Topic, configs: Mapping[str, str]) -> Steps[None]:
        """Replace the settings of a topic; they are in effect on its logs after the last step.

        Raises ValueError for an invalid value, StorageError if the settings cannot be stored.
        """
        self._log_config(Topic(topic.name, topic.topic_id, configs=dict(configs)))
        self.altered_configs.replace(ConfigResource.TOPIC, topic.name, configs)
        topic.configs = dict(configs)
        yield from self.configuration(topic.partitions)

    def alter_brokers(self, name: str, configs: Mapping[str, str]) -> Steps[None]:
        """Replace the settings of one broker, or of all (ALL_BROKERS); they are in effect after the last step.

        Raises ValueError for an invalid value, StorageError if the settings cannot be stored.
        """
        broker_log_config(self.given_config.altered(configs))
        yield
        self.altered_configs.replace(ConfigResource.BROKER, name, configs)
        yield from self._application_of_configs()

    def _as_altered(self, config: BrokerConfig, name: str) -> BrokerConfig:
        altered = config.altered(self.altered_configs.of(ConfigResource.BROKER, name))
        return as_finalized(altered, self._features)

    def _read_configs(self) -> None:
        self.config = self._as_altered(self.given_config, ALL_BROKERS)
        self._node_configs = {
            int(name): self._as_altered(self.config, name)
            for name in self.altered_configs.names(ConfigResource.BROKER)
            if name != ALL_BROKERS
        }

    def _application_of_configs(self) -> Steps[None]:
        self._read_configs()
        for node in self.nodes.values():
            node.transactions.configure(self.config_of(node.node_id))
        yield from self.configuration(list(self.partitions()))
        for notify in list(self.on_config_change):
            notify()

    @property
    def has_configs_of_nodes(self) -> bool:
        """Whether some nodes have settings of their own: then those of a log depend on its leader."""
        return bool(self._node_configs)

    def configuration(self, partitions: Iterable[Partition]) -> Steps[None]:
        """Put the settings of logs into effect."""
        log_configs = cache(self._log_config)  # the same for many partitions, and slow to build
        for partition in partitions:
            partition.log.configure(
                log_configs(partition.topic, partition.leader_id),
                producer_id_expiration_ms=self.config_of(partition.leader_id).producer_id_expiration_ms,
            )
            yield

    def topic_deletion(self, name: str) -> Steps[None]:
        """Delete a topic, its data, and the offsets that groups have committed for it.

        Raises KeyError for an unknown topic, StorageError if storage fails.
        """
        yield from self.removal(name)
        yield from self.offset_removal({name})

    def offset_removal(self, topics: Collection[str]) -> Steps[None]:
        """Remove the offsets that groups have committed for deleted topics."""
        for node in self.living_nodes:
            yield from node.groups.forget_topics(topics)

    def removal(self, name: str) -> Steps[None]:
        """Remove a topic and its data, but not the offsets that groups have committed for it (`offset_removal`).

        The offsets of many topics are cheaper to remove together. The topic cannot be found after the first step; the
        following steps end the requests that wait for it, and remove its data. Raises as `topic_deletion` does.
        """
        topic = self.topics[name]
        self.altered_configs.forget(ConfigResource.TOPIC, name)
        self.storage.topic_deleted(name)
        del self.topics[name]
        del self._topics_by_id[topic.topic_id]
        self.topics_version += 1
        for partition in topic.partitions:
            partition.leader_id = NO_LEADER
        for partition in topic.partitions:
            partition.log.begin_leader_epoch(partition.log.leader_epoch + 1)  # ends waits for replication
            wake(partition.log.on_advance)
            yield from partition.log.destroy()
            yield
        yield from self.storage.topic_destroyed(name)
        topic.partitions = []  # they refer to the topic: without the cycle, all of it is freed now

    def topic_by_id(self, topic_id: uuid.UUID | None) -> Topic | None:
        """Return the topic with this id, or None."""
        return None if topic_id is None else self._topics_by_id.get(topic_id)

    def partition(self, topic: str, index: int) -> Partition | None:
        """Return a partition by topic and index, or None."""
        known = self.topics.get(topic)
        if known is None or not 0 <= index < len(known.partitions):
            return None
        return known.partitions[index]

    def leader(self, topic: str, index: int) -> ClusterNode | None:
        """Return the leader of a partition; None for an unknown partition, or one without a living replica."""
        partition = self.partition(topic, index)
        return None if partition is None else self.nodes.get(partition.leader_id)

    def partitions(self) -> Iterator[Partition]:
        """Iterate over every partition of every topic."""
        for topic in self.topics.values():
            yield from topic.partitions

    # features

    def finalize_features(self, levels: Mapping[str, int]) -> Steps[None]:
        """Set the finalized levels of features; every update increments the features' epoch.

        Raises ValueError for a level that the profile does not support, StorageError if it cannot be stored.
        """
        features = updated(self._features, levels)
        problem = unsupported(features, self.config)
        if problem is not None:
            raise ValueError(f"{self.config.profile} does not support {problem}")
        self.storage.features_finalized(features)
        self._features = features
        yield from self._application_of_configs()

    # coordinators

    def transaction_partition(self, transactional_id: str) -> Partition:
        """Return the partition of `__transaction_state` that a transactional id belongs to."""
        partitions = self.topics[TRANSACTION_STATE_TOPIC].partitions
        return partitions[partition_for(transactional_id, len(partitions))]

    def transaction_coordinator(self, transactional_id: str) -> ClusterNode | None:
        """Return the leader of the id's partition of `__transaction_state`, or None."""
        return self.nodes.get(self.transaction_partition(transactional_id).leader_id)

    def group_partition(self, group_id: str) -> int:
        """Return the index of the partition of `__consumer_offsets` that a group belongs to."""
        return partition_for(group_id, len(self.topics[OFFSETS_TOPIC].partitions))

    @cached_property
    def share_states(self) -> ShareStates:
        """The persisted state of share groups."""
        # imported on first use: many clusters have no share groups, and start faster without them
        from dualwrite.broker_emulator.share.states_of_cluster import ShareStates

        return ShareStates(self)

    def group_coordinator(self, group_id: str) -> ClusterNode | None:
        """Return the leader of the group's partition of `__consumer_offsets`, or None."""
        return self.nodes.get(self.topics[OFFSETS_TOPIC].partitions[self.group_partition(group_id)].leader_id)
