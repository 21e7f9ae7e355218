"""What a test does to a cluster, from Python (`Emulator`) or over HTTP (`control`); in the emulator's loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dualwrite.broker_emulator.cluster.cluster import OFFSETS_TOPIC, Cluster, Partition, Topic
from dualwrite.broker_emulator.cluster.node import Node
from dualwrite.broker_emulator.cluster.reassignment import assignment_of, cancel, reassign
from dualwrite.broker_emulator.cluster.topic_partition import TopicPartition
from dualwrite.broker_emulator.configs.alteration import AlterationError, Change, Operation, check_topic_configs
from dualwrite.broker_emulator.configs.altered import ALL_BROKERS
from dualwrite.broker_emulator.configs.changes import alter_broker, alter_group, alter_topic
from dualwrite.broker_emulator.configs.effective import topic_settings
from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.quotas.client_quotas import quota_problem
from dualwrite.broker_emulator.quotas.entity import Entity
from dualwrite.broker_emulator.security.acl import Acl, Authorizer
from dualwrite.broker_emulator.security.authorizer import STANDARD_AUTHORIZER
from dualwrite.broker_emulator.suggestions import did_you_mean
from dualwrite.broker_emulator.transactions.inspection import TransactionDescription

if TYPE_CHECKING:
    from dualwrite.broker_emulator.groups.consumer.group import AnyGroup
    from dualwrite.broker_emulator.net.server import Connection


_NAMED = 10
"""So many topics are named where none is like the one that was meant."""


@contextmanager
def _as_value_error() -> Iterator[None]:
    """Say to Python what a request would be answered."""
    try:
        yield
    except AlterationError as refused:
        raise ValueError(refused.message) from refused


class Operations:
    """Takes what its caller names, and raises a sentence about what is not there or cannot be."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    # nodes

    def node(self, node_id: int) -> Node:
        """Raises ValueError where there is no such node."""
        node = self._cluster.nodes.get(node_id)
        if node is None:
            raise ValueError(f"there is no node {node_id}")
        return node

    def living_node(self, node_id: int) -> Node:
        """Raises ValueError where no such node runs."""
        node = self.node(node_id)
        if not node.is_alive:
            raise ValueError(f"node {node_id} does not run")
        return node

    # partitions and who leads them

    def topic(self, name: str) -> Topic:
        """Raises KeyError where there is no such topic."""
        topics = self._cluster.topics
        if name not in topics:
            known = sorted(topic.name for topic in topics.values() if not topic.is_internal)
            hint = did_you_mean(name, known) or f"; there are {', '.join(known[:_NAMED]) or 'none'}"
            raise KeyError(f"there is no topic {name!r}{hint}")
        return topics[name]

    def partition(self, topic: str, index: int) -> Partition:
        """Raises KeyError where there is no such partition."""
        partitions = self.topic(topic).partitions
        if not 0 <= index < len(partitions):
            raise KeyError(f"{topic} has no partition {index}; it has {len(partitions)}, from 0 on")
        return partitions[index]

    def move_leader(self, partition: Partition, node_id: int) -> None:
        """Let another node lead. Raises ValueError where it does not run or has no copy."""
        if node_id not in partition.complete_replicas:
            raise ValueError(f"node {node_id} has no copy of {partition.name}")
        self.living_node(node_id)
        if partition.leader_id != node_id:
            self._cluster.make_leader(partition, node_id)

    def elect_preferred_leaders(self) -> list[TopicPartition]:
        """Let the first replica of every partition lead again, where it lives; gives those that moved."""
        living = {node.node_id for node in self._cluster.living_nodes}
        moved = []
        for partition in self._cluster.partitions():
            preferred = partition.replicas[0]
            if preferred in living and preferred not in (*partition.adding, partition.leader_id):
                self._cluster.make_leader(partition, preferred)
                moved.append(partition.name)
        return moved

    def create_partitions(self, topic: str, count: int) -> None:
        """Let a topic have `count` partitions. Raises KeyError without the topic, ValueError where that is not more."""
        known = self.topic(topic)
        additional = count - len(known.partitions)
        if known.is_internal or additional <= 0:
            raise ValueError(f"{topic} has {len(known.partitions)} partitions and cannot have {count}")
        self._cluster.create_partitions(known, self._cluster.assign_more(known, additional))

    def reassign(self, partition: Partition, replicas: Sequence[int] | None) -> None:
        """Move the copies to `replicas`, or give that up (None). Raises ValueError where it cannot be."""
        if replicas is None:
            if not assignment_of(partition).is_changing:
                raise ValueError(f"no reassignment of {partition.name} is under way")
            cancel(self._cluster, partition)
            return
        if not replicas or len(set(replicas)) < len(replicas):
            raise ValueError(f"the copies of {partition.name} are on nodes, each named once, not on {list(replicas)}")
        for node_id in replicas:
            self.node(node_id)
        reassign(self._cluster, partition, replicas)

    # quotas

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic. Raises ValueError where the name, the number or a setting cannot be."""
        with _as_value_error():
            check_topic_configs(configs, topic_settings(self._cluster.config.profile))
        self._cluster.create_topic(name, partitions, configs=configs)

    def set_config(
        self, changes: Mapping[str, str | None], *, topic: str | None, group: str | None, node_id: int | None
    ) -> None:
        """Alter settings (None: forget one) of a topic, a group, a node, or without any of them of all brokers.

        Raises KeyError without the topic, ValueError without the node and for what cannot be.
        """
        if sum(named is not None for named in (topic, group, node_id)) > 1:
            raise ValueError("name a topic, a group or a node, or none of them for all brokers")
        operations = [
            Change(name, Operation.DELETE if value is None else Operation.SET, value) for name, value in changes.items()
        ]
        with _as_value_error():
            if topic is not None:
                alter_topic(self._cluster, self.topic(topic), operations)
            elif group is not None:
                alter_group(self._cluster, group, operations)
            else:
                name = ALL_BROKERS if node_id is None else str(self.node(node_id).node_id)
                alter_broker(self._cluster, name, operations)

    def set_quota(self, named: Entity, changes: Mapping[str, float | None]) -> None:
        """Set quotas of an entity, or take them away (None). Raises ValueError where it cannot have them."""
        problem = quota_problem(named, changes)
        if problem is not None:
            raise ValueError(problem)
        self._cluster.quotas.alter(named, changes)

    def coordinator_partition(self, transactional_id: str | None, group: str | None) -> Partition:
        """Where a transactional id or a group belongs to. Raises ValueError unless one of them is named."""
        if (transactional_id is None) == (group is None):
            raise ValueError("name a transactional id or a group")
        if transactional_id is not None:
            return self._cluster.transaction_partition(transactional_id)
        assert group is not None
        return self.partition(OFFSETS_TOPIC, self._cluster.group_partition(group))

    def hold_replication(self, topic: str, index: int) -> PartitionLog:
        """Keep followers from fetching. Raises KeyError where there is nothing to hold, ValueError where it is held."""
        log = self.partition(topic, index).log
        if log.is_high_watermark_held:
            raise ValueError(f"the replication of {topic}-{index} is held already")
        log.hold_high_watermark()
        return log

    # access control

    @property
    def authorizer(self) -> Authorizer:
        """Who keeps the rules. Raises RuntimeError where access control is off."""
        authorizer = self._cluster.authorizer
        if authorizer is None:
            raise RuntimeError(
                "access control is off: start with Emulator(acls=[...]), with super_users, or with the setting "
                f"authorizer.class.name={STANDARD_AUTHORIZER}"
            )
        return authorizer

    def add_acls(self, acls: Iterable[Acl]) -> None:
        """Add all of them, in order. Raises what the authorizer raises for the first that it does not take."""
        for acl in acls:
            self.authorizer.add(acl)

    # clients

    def connections(self, client_id: str | None = None) -> list[Connection]:
        """Those of a client, or all."""
        return [
            connection
            for node in self._cluster.nodes.values()
            for connection in node.connections
            if client_id is None or connection.client_id == client_id
        ]

    def disconnect(self, client_id: str | None = None) -> int:
        """Break connections abruptly: those of a client, or all. Gives how many."""
        connections = self.connections(client_id)
        for connection in connections:
            connection.abort()
        return len(connections)

    # what coordinators know

    def transactions(self) -> list[TransactionDescription]:
        """Every transactional id, by id."""
        return sorted(
            (
                node.transactions.describe(listing.transactional_id)
                for node in self._cluster.nodes.values()
                for listing in node.transactions.list().transactions
            ),
            key=lambda description: description.transactional_id,
        )

    def groups(self) -> list[AnyGroup]:
        """Every consumer group, by id."""
        return sorted(self._groups(), key=lambda group: group.group_id)

    def _groups(self) -> Iterator[AnyGroup]:
        for node in self._cluster.living_nodes:
            for shard in node.groups.shards():
                yield from shard.groups.values()
