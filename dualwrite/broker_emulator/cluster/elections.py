"""The leaders of partitions: elections when nodes come and go, and reassignments, which can end with an election.

Work on all partitions of a node is a sequence of steps (`changes.py`), so that it does not hold up the clients of other
nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from dualwrite.broker_emulator.clock import Clock
from dualwrite.broker_emulator.slices import Steps, at_once
from dualwrite.broker_emulator.storage.storage import Storage
from dualwrite.broker_emulator.topics.replication import assign, assignment_of, cancelled, finished, started
from dualwrite.broker_emulator.topics.topics import NO_LEADER, Partition

_STORED_TOGETHER: Final = 100
"""The number of elections that are stored with one write."""


class LeaderNode(Protocol):
    """A node (`node.py`) that can lead partitions."""

    @property
    def node_id(self) -> int: ...

    @property
    def is_alive(self) -> bool: ...

    def take_over(self, partition: Partition) -> None: ...

    def resign(self, partition: Partition) -> None: ...


class ElectingCluster(Protocol):
    """The part of the cluster (`cluster.py`) that elections need."""

    @property
    def storage(self) -> Storage: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def nodes(self) -> Mapping[int, LeaderNode]: ...

    @property
    def living_nodes(self) -> Sequence[LeaderNode]: ...

    @property
    def has_configs_of_nodes(self) -> bool: ...

    def partitions(self) -> Iterator[Partition]: ...

    def configuration(self, partitions: Iterable[Partition]) -> Steps[None]: ...


class Elections:
    """Elects the leaders of a cluster's partitions."""

    def __init__(self, cluster: ElectingCluster) -> None:
        self._cluster = cluster

    def make_leader(self, partition: Partition, leader_id: int) -> None:
        """Make a node the leader of a partition (NO_LEADER: leave it without one), with a new leader epoch.

        A node that was not the leader before has only the replicated records; the others are lost. Requests that wait
        for the partition wake up and find another leader. Raises StorageError if storage fails, without any change.
        """
        self._make_leaders([(partition, leader_id)])

    def _make_leaders(self, elected: Sequence[tuple[Partition, int]]) -> None:
        self._cluster.storage.leaders_elected(
            [(*partition.name, partition.log.leader_epoch + 1) for partition, _ in elected]
        )
        for partition, leader_id in elected:
            self._begin_leadership(partition, leader_id)

    def _begin_leadership(self, partition: Partition, leader_id: int) -> None:
        cluster, log = self._cluster, partition.log
        before = cluster.nodes.get(partition.leader_id)
        if before is not None:
            before.resign(partition)
        if leader_id not in (NO_LEADER, partition.last_leader_id):
            log.truncate_to_high_watermark(cluster.clock.now_ms())
        partition.leader_id = leader_id
        if leader_id != NO_LEADER:
            partition.last_leader_id = leader_id
        log.begin_leader_epoch(log.leader_epoch + 1)
        wake(log.on_advance)
        if cluster.has_configs_of_nodes:
            at_once(cluster.configuration((partition,)))
        if leader_id != NO_LEADER:
            cluster.nodes[leader_id].take_over(partition)

    def replacement(self, leaving: LeaderNode) -> Steps[None]:
        """Elect another leader for every partition that `leaving` leads. Raises StorageError if storage fails."""
        for some in _batches(self._cluster.partitions()):
            candidates = [node.node_id for node in self._cluster.living_nodes if node is not leaving]
            led = [partition for partition in some if partition.leader_id == leaving.node_id]
            self._make_leaders([(partition, elect(partition.complete_replicas, candidates)) for partition in led])
            yield

    def adoption(self, begun: LeaderNode) -> Steps[None]:
        """Make a node that has just started the leader of the partitions without one, while it is alive.

        Raises StorageError if storage fails.
        """
        for some in _batches(self._cluster.partitions()):
            if not begun.is_alive:
                return
            orphans = [
                partition
                for partition in some
                if partition.leader_id == NO_LEADER and begun.node_id in partition.complete_replicas
            ]
            for partition in orphans:
                partition.log.restarted()
            self._make_leaders([(partition, begun.node_id) for partition in orphans])
            for partition in some:
                self._finish_reassignment_if_possible(partition)
            yield

    def electable(self, partition: Partition, preferred: int) -> int:
        """Return `preferred` if it may lead, or else the first living replica; NO_LEADER if no replica is alive."""
        living = [node.node_id for node in self._cluster.living_nodes]
        return elect([preferred] * (preferred in partition.complete_replicas) + partition.complete_replicas, living)

    # reassignments

    def reassign(self, partition: Partition, target: Sequence[int]) -> None:
        """Move a partition's replicas to `target` (`topics/replication.py`). Raises StorageError if storage fails."""
        self._cluster.storage.replicas_assigned(*partition.name, target)
        assign(partition, started(assignment_of(partition), target))
        partition.log.on_release = [lambda: self._finish_reassignment_if_possible(partition)]
        self._finish_reassignment_if_possible(partition)

    def cancel_reassignment(self, partition: Partition) -> None:
        """Cancel the running reassignment. Raises StorageError if storage fails."""
        before = cancelled(assignment_of(partition))
        self._cluster.storage.replicas_assigned(*partition.name, before.replicas)
        assign(partition, before)
        self.make_leader(partition, self.electable(partition, partition.leader_id))

    def _finish_reassignment_if_possible(self, partition: Partition) -> None:
        """Complete a reassignment if all new replicas have every record and one of them can lead."""
        if not partition.adding and not partition.removing:
            return
        before, after = assignment_of(partition), finished(assignment_of(partition))
        living = {node.node_id for node in self._cluster.living_nodes}
        are_behind = partition.log.is_high_watermark_held or not living.issuperset(before.adding)
        if (before.adding and are_behind) or living.isdisjoint(after.replicas):
            return
        assign(partition, after)
        if before.removing or partition.leader_id not in after.replicas:
            # even if the leader stays: the new epoch fences the removed replicas
            self.make_leader(partition, self.electable(partition, partition.leader_id))


def _batches(partitions: Iterable[Partition]) -> Iterator[list[Partition]]:
    every = list(partitions)
    for begin in range(0, len(every), _STORED_TOGETHER):
        yield every[begin : begin + _STORED_TOGETHER]


def elect(replicas: Sequence[int], living: Sequence[int]) -> int:
    """Return the first living replica, or NO_LEADER. All replicas are in sync here."""
    return next((node_id for node_id in replicas if node_id in living), NO_LEADER)


def wake(callbacks: list[Callable[[], None]]) -> None:
    """Call all callbacks that wait for a change of a log."""
    for callback in list(callbacks):
        callback()
