"""The share-partitions and share sessions of one node, as the leader of partitions. A thin shell."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dualwrite.broker_emulator.share.led_partition import LeaderError, LedPartition
from dualwrite.broker_emulator.share.sessions import SessionPartition, ShareSession, ShareSessions
from dualwrite.broker_emulator.share.state import StateKey
from dualwrite.broker_emulator.slices import Pace

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.topics import ClusterView, Partition


class ShareLeader:
    """Finds the share-partitions of the partitions that this node leads."""

    def __init__(self, cluster: ClusterView) -> None:
        self.sessions = ShareSessions()
        self._cluster = cluster
        self._led: dict[StateKey, LedPartition] = {}
        self._groups_of: dict[SessionPartition, set[str]] = {}
        """The groups with a share-partition of a partition."""
        self._waiting: list[_Waiting] = []

    def share_partition(self, key: StateKey, partition: Partition) -> LedPartition:
        """Return a share-partition; its state is read at first use. Raises LeaderError."""
        led = self._led.get(key)
        if led is None:
            led = self._led[key] = LedPartition(self._cluster, key, partition, partial(self._available, key))
            self._groups_of.setdefault(_name(key), set()).add(key.group_id)
        return led

    def forget(self, key: StateKey) -> None:
        """Forget a share-partition whose state another node changed; it is read again at the next use."""
        led = self._led.pop(key, None)
        if led is not None:
            led.close()
            groups = self._groups_of[_name(key)]
            groups.discard(key.group_id)
            if not groups:
                del self._groups_of[_name(key)]

    def resign(self, partition: Partition) -> None:
        """Forget the share-partitions of a partition that the node no longer leads."""
        name = SessionPartition(partition.topic.topic_id, partition.index)
        for group_id in list(self._groups_of.get(name, ())):
            key = StateKey(group_id, *name)
            self.forget(key)
            self._available(key)

    def halt(self) -> None:
        """Cancel all timers, as a node that dies."""
        for led in self._led.values():
            led.close()

    async def release(self, session: ShareSession) -> None:
        """Take all records from a member whose session ends."""
        group_id, member_id = session.key
        pace = Pace()
        for name in list(session.partitions):
            await pace.keep()
            led = self._led.get(StateKey(group_id, *name))
            if led is not None:
                try:
                    await led.release(member_id)
                except LeaderError:
                    self.forget(StateKey(group_id, *name))

    async def disconnected(self, connection: object) -> None:
        """End the session of a closed connection, and deliver its member's records to others at once.

        A group without sessions is forgotten, as in Kafka: share.auto.offset.reset applies again to share-partitions
        without acknowledgements.
        """
        session = self.sessions.forget_connection(connection)
        if session is None:
            return
        group_id = session.key.group_id
        if self.sessions.get(session.key) is session:
            self.sessions.close(session.key)
            await self.release(session)
        if not self.sessions.has_group(group_id):
            pace = Pace()
            for key in [key for key in self._led if key.group_id == group_id]:
                await pace.keep()
                if self.sessions.has_group(group_id):
                    break
                self.forget(key)

    # waiting for records

    def _available(self, key: StateKey) -> None:
        name = _name(key)
        for waiting in self._waiting:
            if waiting.group_id == key.group_id and name in waiting.names:
                waiting.woken.set()

    @contextmanager
    def waiting(self, session: ShareSession) -> Iterator[asyncio.Event]:
        """Return an event that is set when a log of the session advances, or records of the session are released."""
        waiting = _Waiting(session.key.group_id, session.partitions, asyncio.Event())
        self._waiting.append(waiting)
        try:
            yield waiting.woken
        finally:
            self._waiting.remove(waiting)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request that waits for records of a group."""

    group_id: str
    names: Container[SessionPartition]
    woken: asyncio.Event


def _name(key: StateKey) -> SessionPartition:
    return SessionPartition(key.topic_id, key.partition)
