"""Replication as far as clients can observe it, and the replica assignments of partitions (KIP-455).

Followers have no logs of their own: a follower has every record below the partition's high watermark, and starts with
exactly these if it becomes leader. A Produce with acks=all waits for the high watermark; an election ends the wait with
an error.

Because all replicas share one log, a new replica has every record at once, and a reassignment completes as soon as it
is requested. New replicas lack records only while a test holds the replication of the partition: the reassignment is
then under way until the test releases the replication or the reassignment is cancelled. A restart releases the
replication, so a reassignment under way completes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from dualwrite.broker_emulator.topics.topics import Partition


REQUEST_TIMEOUT_S = 30.0
"""The time that brokers wait for the replication of their own writes (markers, records of coordinators)."""


async def wait_until_replicated(
    partition: Partition, offset: int, leader_epoch: int, timeout_s: float = REQUEST_TIMEOUT_S
) -> ErrorCode:
    """Wait until everything below `offset`, appended under `leader_epoch`, is replicated.

    Return NONE; 6 if another leader was elected meanwhile, which may or may not have the records; 7 if the event loop's
    clock has passed `timeout_s`.
    """
    log = partition.log
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while log.leader_epoch == leader_epoch:
        if log.high_watermark >= offset:
            return NO_ERROR
        if asyncio.get_running_loop().time() >= deadline_s:
            return ErrorCode.request_timed_out
        await wait_for_advance([log], deadline_s)
    return ErrorCode.not_leader_or_follower


class ReplicaNode(Protocol):
    """A node that can have replicas."""

    @property
    def is_alive(self) -> bool: ...


def lacks_replicas(partition: Partition, nodes: Mapping[int, ReplicaNode]) -> bool:
    """Return whether too few replicas are in sync for acks=all. A topic with fewer replicas needs all of them."""
    least = partition.log.config.min_insync_replicas
    if least <= 1:
        return False
    in_sync = sum(nodes[node_id].is_alive for node_id in partition.complete_replicas)
    return in_sync < min(least, len(partition.replicas))


# --- assignments of replicas to nodes ---------------------------------------------------------------------------------


class Assignment(NamedTuple):
    """The nodes with a replica of one partition, the preferred leader first."""

    replicas: tuple[int, ...]
    """All replicas: those of the target first, then those to be removed."""
    adding: tuple[int, ...] = ()
    """Replicas that do not have every record yet."""
    removing: tuple[int, ...] = ()
    """Replicas to be removed."""

    @property
    def is_changing(self) -> bool:
        """Whether a reassignment is under way."""
        return bool(self.adding or self.removing)


def started(current: Assignment, target: Sequence[int]) -> Assignment:
    """Return `current` on its way to `target`; another reassignment may be under way."""
    complete = [node_id for node_id in current.replicas if node_id not in current.adding]
    removing = tuple(node_id for node_id in complete if node_id not in target)
    adding = tuple(node_id for node_id in target if node_id not in complete)
    return Assignment((*target, *removing), adding, removing)


def finished(current: Assignment) -> Assignment:
    """Return `current` with its reassignment completed: every replica of the target has every record."""
    return Assignment(tuple(node_id for node_id in current.replicas if node_id not in current.removing))


def cancelled(current: Assignment) -> Assignment:
    """Return `current` without the replicas to be added, and without removing any."""
    return Assignment(tuple(node_id for node_id in current.replicas if node_id not in current.adding))


def assignment_of(partition: Partition) -> Assignment:
    """Return the current replica assignment of a partition."""
    return Assignment(tuple(partition.replicas), tuple(partition.adding), tuple(partition.removing))


def assign(partition: Partition, assignment: Assignment) -> None:
    """Give a partition a new replica assignment."""
    partition.replicas, partition.adding, partition.removing = assignment


async def wait_for_advance(logs: Collection[PartitionLog], deadline_s: float) -> None:
    """Wait until the high watermark or last stable offset of one of `logs` moves, or its leader changes.

    Waits until the event loop's time `deadline_s` at most.
    """
    loop = asyncio.get_running_loop()
    advanced: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not advanced.done():
            advanced.set_result(None)

    timer = loop.call_at(deadline_s, wake)
    for log in logs:
        log.on_advance.append(wake)
    try:
        await advanced
    finally:
        timer.cancel()
        for log in logs:
            log.on_advance.remove(wake)
