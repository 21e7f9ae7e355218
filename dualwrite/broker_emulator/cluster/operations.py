"""Operations of tests on a cluster, from Python (`Emulator`) or over HTTP (`control`). Run in the emulator's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from dualwrite.broker_emulator.cluster.cluster import Cluster, ClusterNode
from dualwrite.broker_emulator.cluster.config_changes import alter_broker, alter_stored, alter_topic
from dualwrite.broker_emulator.configs.alteration import (
    ALL_BROKERS,
    AlterationError,
    Change,
    ConfigResource,
    Operation,
    check_topic_configs,
)
from dualwrite.broker_emulator.configs.effective import topic_settings
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.log.partition_log import HIGH_WATERMARK, PartitionLog
from dualwrite.broker_emulator.quotas.client_quotas import Entity, quota_problem
from dualwrite.broker_emulator.security.acl import Acl, Authorizer
from dualwrite.broker_emulator.security.authorizer import STANDARD_AUTHORIZER
from dualwrite.broker_emulator.slices import Steps, in_slices
from dualwrite.broker_emulator.text import did_you_mean
from dualwrite.broker_emulator.topics.replication import assignment_of
from dualwrite.broker_emulator.topics.topics import OFFSETS_TOPIC, Partition, Topic, TopicPartition
from dualwrite.broker_emulator.transactions.inspection import TransactionDescription
from dualwrite.broker_emulator.transactions.metadata import LAST_USABLE_EPOCH
from dualwrite.broker_emulator.transactions.states import PREPARE_STATES, TransactionState

if TYPE_CHECKING:
    from dualwrite.broker_emulator.groups.consumer.group import AnyGroup
    from dualwrite.broker_emulator.messages.call import ClientConnection


_MAX_LISTED_TOPICS = 10
"""The number of topics that an error message lists if no name resembles the unknown one."""


@contextmanager
def _as_value_error() -> Iterator[None]:
    """Turn the error that a request would get into a ValueError."""
    try:
        yield
    except AlterationError as refused:
        raise ValueError(refused.message) from refused


class Operations:
    """Operations on nodes, topics, groups and settings by name or id; the errors are sentences for the caller."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # nodes

    def node(self, node_id: int) -> ClusterNode:
        """Return the node. Raises ValueError for an unknown id."""
        node = self._cluster.nodes.get(node_id)
        if node is None:
            raise ValueError(f"there is no node {node_id}")
        return node

    def living_node(self, node_id: int) -> ClusterNode:
        """Return the node if it runs. Raises ValueError otherwise."""
        node = self.node(node_id)
        if not node.is_alive:
            raise ValueError(f"node {node_id} is not running")
        return node

    # topics, partitions and their leaders

    def topic(self, name: str) -> Topic:
        """Return the topic. Raises KeyError if it is unknown."""
        topics = self._cluster.topics
        if name not in topics:
            known = sorted(topic.name for topic in topics.values() if not topic.is_internal)
            hint = did_you_mean(name, known) or f"; there are {', '.join(known[:_MAX_LISTED_TOPICS]) or 'none'}"
            raise KeyError(f"there is no topic {name!r}{hint}")
        return topics[name]

    def partition(self, topic: str, index: int) -> Partition:
        """Return the partition. Raises KeyError if it is unknown."""
        partitions = self.topic(topic).partitions
        if not 0 <= index < len(partitions):
            raise KeyError(f"{topic} has no partition {index}; it has {len(partitions)}, numbered from 0")
        return partitions[index]

    def move_leader(self, partition: Partition, node_id: int) -> None:
        """Make another node the leader. Raises ValueError if it does not run or has no complete replica."""
        if node_id not in partition.complete_replicas:
            raise ValueError(f"node {node_id} has no complete replica of {partition.name}")
        self.living_node(node_id)
        if partition.leader_id != node_id:
            self._cluster.elections.make_leader(partition, node_id)

    def elect_preferred_leaders(self) -> list[TopicPartition]:
        """Make the first replica of every partition its leader again, if alive; return the partitions that moved."""
        living = {node.node_id for node in self._cluster.living_nodes}
        moved = []
        for partition in self._cluster.partitions():
            preferred = partition.replicas[0]
            if preferred in living and preferred not in (*partition.adding, partition.leader_id):
                self._cluster.elections.make_leader(partition, preferred)
                moved.append(partition.name)
        return moved

    def partition_creation(self, topic: str, count: int) -> Steps[None]:
        """Extend a topic to `count` partitions.

        Raises KeyError for an unknown topic, ValueError for an internal one or one that has as many.
        """
        known = self.topic(topic)
        additional = count - len(known.partitions)
        if known.is_internal or additional <= 0:
            raise ValueError(f"{topic} has {len(known.partitions)} partitions and cannot have {count}")
        yield from self._cluster.partition_creation(known, self._cluster.assign_more(known, additional))

    def reassign(self, partition: Partition, replicas: Sequence[int] | None) -> None:
        """Move the replicas to these nodes, or (None) cancel the running reassignment. Raises ValueError."""
        if replicas is None:
            if not assignment_of(partition).is_changing:
                raise ValueError(f"no reassignment of {partition.name} is under way")
            self._cluster.elections.cancel_reassignment(partition)
            return
        if not replicas or len(set(replicas)) < len(replicas):
            raise ValueError(f"the replicas of {partition.name} need distinct nodes, at least one: {list(replicas)}")
        for node_id in replicas:
            self.node(node_id)
        self._cluster.elections.reassign(partition, replicas)

    # settings

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic. Raises ValueError for an invalid name, number of partitions or setting."""
        with _as_value_error():
            check_topic_configs(configs, topic_settings(self._cluster.config.behaviours.settings))
        self._cluster.create_topic(name, partitions, configs=configs)

    def set_config(
        self, changes: Mapping[str, str | None], *, topic: str | None, group: str | None, node_id: int | None
    ) -> None:
        """Alter settings (None: reset) of a topic, a group, a node or, if none is given, all brokers.

        Raises KeyError for an unknown topic, ValueError for an unknown node and for an invalid setting.
        """
        if sum(named is not None for named in (topic, group, node_id)) > 1:
            raise ValueError("name a topic, a group or a node, or none of them for all brokers")
        operations = [
            Change(name, Operation.DELETE if value is None else Operation.SET, value) for name, value in changes.items()
        ]
        with _as_value_error():
            if topic is not None:
                steps = alter_topic(self._cluster, self.topic(topic), operations)
            elif group is not None:
                steps = alter_stored(self._cluster, ConfigResource.GROUP, group, operations)
            else:
                name = ALL_BROKERS if node_id is None else str(self.node(node_id).node_id)
                steps = alter_broker(self._cluster, name, operations)
            self._cluster.changes.make_at_once(steps)

    def set_quota(self, named: Entity, changes: Mapping[str, float | None]) -> None:
        """Set quotas of an entity, or remove them (None). Raises ValueError for invalid entities or quotas."""
        problem = quota_problem(named, changes)
        if problem is not None:
            raise ValueError(problem)
        self._cluster.quotas.alter(named, changes)

    def coordinator_partition(self, transactional_id: str | None, group: str | None) -> Partition:
        """Return the internal partition of a transactional id or a group. Raises ValueError unless one is given."""
        if (transactional_id is None) == (group is None):
            raise ValueError("name a transactional id or a group")
        if transactional_id is not None:
            return self._cluster.transaction_partition(transactional_id)
        assert group is not None
        return self.partition(OFFSETS_TOPIC, self._cluster.group_partition(group))

    async def set_next_epoch(self, producer_epoch: int, transactional_id: str | None) -> None:
        """Make the next InitProducerId return this epoch.

        Raises ValueError for an epoch at which no producer can start, or while the id is in use by a transaction.
        """
        first = 0 if transactional_id is None else 1
        if not first <= producer_epoch <= LAST_USABLE_EPOCH:
            raise ValueError(f"a producer can start at the epochs {first} to {LAST_USABLE_EPOCH}, not {producer_epoch}")
        if transactional_id is None:
            self._cluster.producer_id_blocks.first_epoch = producer_epoch
            return
        leader_id = self.coordinator_partition(transactional_id, None).leader_id
        error = await self.living_node(leader_id).transactions.set_next_epoch(transactional_id, producer_epoch)
        if error is not NO_ERROR:
            raise ValueError(f"the epoch of {transactional_id!r} cannot be set now: {error.name}")

    def hold_replication(self, topic: str, index: int) -> PartitionLog:
        """Keep followers from fetching. Raises KeyError for an unknown partition, ValueError if it is already held."""
        log = self.partition(topic, index).log
        if log.is_high_watermark_held:
            raise ValueError(f"the replication of {topic}-{index} is already held")
        log.hold_high_watermark()
        return log

    # access control

    @property
    def authorizer(self) -> Authorizer:
        """The authorizer. Raises RuntimeError while access control is off."""
        authorizer = self._cluster.authorizer
        if authorizer is None:
            raise RuntimeError(
                "access control is off: start with Emulator(acls=[...]), with super_users, or with the setting "
                f"authorizer.class.name={STANDARD_AUTHORIZER}"
            )
        return authorizer

    def add_acls(self, acls: Iterable[Acl]) -> None:
        """Add ACLs in order. Raises the authorizer's error for the first ACL that it rejects."""
        for acl in acls:
            self.authorizer.add(acl)

    # clients

    def connections(self, client_id: str | None = None) -> list[ClientConnection]:
        """Return the connections of a client, or all of them."""
        return [
            connection
            for node in self._cluster.nodes.values()
            for connection in node.connections
            if client_id is None or connection.client_id == client_id
        ]

    def disconnect(self, client_id: str | None = None) -> int:
        """Break the connections of a client, or all of them, abruptly; return their number."""
        connections = self.connections(client_id)
        for connection in connections:
            connection.abort()
        return len(connections)

    # transactions and groups

    def transactions(self) -> list[TransactionDescription]:
        """Describe every transactional id, ordered by id."""
        return sorted(
            (
                node.transactions.describe(listing.transactional_id)
                for node in self._cluster.nodes.values()
                for listing in node.transactions.list().transactions
            ),
            key=lambda description: description.transactional_id,
        )

    def groups(self) -> list[AnyGroup]:
        """Return every group, ordered by id."""
        return sorted(self._groups(), key=lambda group: group.group_id)

    def _groups(self) -> Iterator[AnyGroup]:
        for node in self._cluster.living_nodes:
            for shard in node.groups.shards():
                yield from shard.groups.values()


_OPEN: Final = PREPARE_STATES | {TransactionState.ONGOING}
_STEP_S: Final = 0.001
_END_TIMEOUT_S: Final = 20.0


async def clear(cluster: Cluster, start_node: Callable[[int], Awaitable[None]]) -> None:
    """Release all holds, start every node, abort open transactions, delete records and idle groups.

    Faults must have been removed. Raises TimeoutError if a transaction does not end.
    """
    for hold in cluster.pause_points.holds:
        hold.release()
    for node in [node for node in cluster.nodes.values() if not node.is_alive]:
        await start_node(node.node_id)
    for partition in cluster.partitions():
        if partition.log.is_high_watermark_held:
            partition.log.release_high_watermark()
    await _end_transactions(cluster)
    for topic in cluster.topics.values():
        if not topic.is_internal:
            for partition in topic.partitions:
                await in_slices(partition.log.delete_records(HIGH_WATERMARK))
    await _delete_idle_groups(cluster)


async def _end_transactions(cluster: Cluster) -> None:
    """Abort open transactions by InitProducerId, which fences their producers, and wait until all have ended."""
    aborted: set[str] = set()
    try:
        async with asyncio.timeout(_END_TIMEOUT_S):
            while unfinished := _open_ids(cluster):
                for node, transactional_id in unfinished:
                    if transactional_id not in aborted:
                        aborted.add(transactional_id)
                        timeout_ms = cluster.config.transaction_max_timeout_ms
                        await node.transactions.init_producer_id(transactional_id, timeout_ms)
                await asyncio.sleep(_STEP_S)
    except TimeoutError:
        listed = ", ".join(repr(transactional_id) for _, transactional_id in _open_ids(cluster))
        raise TimeoutError(
            f"transactions did not end within {_END_TIMEOUT_S:g} s, so nothing was deleted: {listed}; markers cannot "
            "be written to a partition without a leader"
        ) from None


def _open_ids(cluster: Cluster) -> list[tuple[ClusterNode, str]]:
    return [
        (node, metadata.transactional_id)
        for node in cluster.living_nodes
        for metadata in node.transactions.known_ids()
        if metadata.state in _OPEN or metadata.pending_state in _OPEN
    ]


async def _delete_idle_groups(cluster: Cluster) -> None:
    """Delete groups without members. Groups that a client has just joined, or never left, stay."""
    for node in cluster.living_nodes:
        for shard in node.groups.shards():
            for group_id in list(shard.groups):
                shard.offsets.delete_group(group_id)
            for group_id in list(shard.share.groups):
                await shard.share.delete_group(group_id)
