"""Reassignments: the copies of a partition move to other nodes (KIP-455).

All copies are one log, so a node has everything at once, and a reassignment is over as soon as it is asked for. Only
where a test holds the replication of the partition do the new nodes lack something: then it is under way until the
replication is released, or it is cancelled. A restart holds nothing back, so that it ends with the copies moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.cluster import Cluster, Partition


class Assignment(NamedTuple):
    """Which nodes have a copy, in the order in which they are preferred as leader."""

    replicas: tuple[int, ...]
    """All of them: those of the target first, then those that will be taken away."""
    adding: tuple[int, ...] = ()
    """Those that do not have everything yet."""
    removing: tuple[int, ...] = ()
    """Those that will be taken away."""

    @property
    def is_changing(self) -> bool:
        """Whether a reassignment is under way."""
        return bool(self.adding or self.removing)


def begun(current: Assignment, target: Sequence[int]) -> Assignment:
    """`current` on the way to `target`, whether or not it was on the way to something else."""
    complete = [node_id for node_id in current.replicas if node_id not in current.adding]
    removing = tuple(node_id for node_id in complete if node_id not in target)
    adding = tuple(node_id for node_id in target if node_id not in complete)
    return Assignment((*target, *removing), adding, removing)


def finished(current: Assignment) -> Assignment:
    """`current` when every node has everything."""
    return Assignment(tuple(node_id for node_id in current.replicas if node_id not in current.removing))


def cancelled(current: Assignment) -> Assignment:
    """`current` without the nodes that were to be added, and with those that were to be taken away."""
    return Assignment(tuple(node_id for node_id in current.replicas if node_id not in current.adding))


def assignment_of(partition: Partition) -> Assignment:
    """Where the copies of a partition are now."""
    return Assignment(tuple(partition.replicas), tuple(partition.adding), tuple(partition.removing))


def reassign(cluster: Cluster, partition: Partition, target: Sequence[int]) -> None:
    """Move the copies of a partition to `target`. Raises StorageError when that cannot be kept."""
    cluster.storage.replicas_assigned(*partition.name, target)
    _take(partition, begun(assignment_of(partition), target))
    partition.log.on_release = [lambda: finish_if_possible(cluster, partition)]
    finish_if_possible(cluster, partition)


def cancel(cluster: Cluster, partition: Partition) -> None:
    """Give a reassignment up that is under way. Raises StorageError when that cannot be kept."""
    before = cancelled(assignment_of(partition))
    cluster.storage.replicas_assigned(*partition.name, before.replicas)
    _take(partition, before)
    cluster.make_leader(partition, cluster.electable(partition, partition.leader_id))


def finish_if_possible(cluster: Cluster, partition: Partition) -> None:
    """End a reassignment whose new nodes have everything, and of which one can lead."""
    before, after = assignment_of(partition), finished(assignment_of(partition))
    living = {node.node_id for node in cluster.living_nodes}
    are_behind = partition.log.is_high_watermark_held or not living.issuperset(before.adding)
    if not before.is_changing:
        return
    if (before.adding and are_behind) or living.isdisjoint(after.replicas):
        return
    _take(partition, after)
    if before.removing or partition.leader_id not in after.replicas:
        # also where the leader stays: the copies that are gone are fenced by the new epoch
        cluster.make_leader(partition, cluster.electable(partition, partition.leader_id))


def _take(partition: Partition, assignment: Assignment) -> None:
    partition.replicas, partition.adding, partition.removing = assignment
