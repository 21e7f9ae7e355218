"""The share-partitions and share sessions of one node, as the leader of partitions. A thin shell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from dualwrite.broker_emulator.share.led_partition import LeaderError, LedPartition
from dualwrite.broker_emulator.share.sessions import ShareSession, ShareSessions
from dualwrite.broker_emulator.share.state import StateKey

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.topics import ClusterView, Partition
    from dualwrite.broker_emulator.log.partition_log import PartitionLog


class ShareLeader:
    """Finds the share-partitions that groups have of the partitions that the node leads."""

    def __init__(self, cluster: ClusterView) -> None:
        self.sessions = ShareSessions()
        self._cluster = cluster
        self._led: dict[StateKey, LedPartition] = {}
        self._waiting: list[Callable[[], None]] = []

    def share_partition(self, key: StateKey, partition: Partition) -> LedPartition:
        """Return a share-partition; its state is read at the first use. Raises LeaderError."""
        led = self._led.get(key)
        if led is None:
            led = self._led[key] = LedPartition(self._cluster, key, partition, self._available)
        return led

    def forget(self, key: StateKey) -> None:
        """Forget a share-partition, because its state was changed by others; it is read again at the next use."""
        led = self._led.pop(key, None)
        if led is not None:
            led.close()

    def resign(self, partition: Partition) -> None:
        """Forget the share-partitions of a partition that the node does not lead any more."""
        topic_id = partition.topic.topic_id
        for key in [key for key in self._led if (key.topic_id, key.partition) == (topic_id, partition.index)]:
            self.forget(key)
        self._available()

    def halt(self) -> None:
        """Cancel all timers, as a node that dies."""
        for led in self._led.values():
            led.close()

    async def release(self, session: ShareSession) -> None:
        """Take all records from the member whose session ends."""
        group_id, member_id = session.key
        for name in session.partitions:
            led = self._led.get(StateKey(group_id, *name))
            if led is not None:
                try:
                    await led.release(member_id)
                except LeaderError:
                    self.forget(StateKey(group_id, *name))

    async def disconnected(self, connection: object) -> None:
        """End the session of a connection that has ended, and deliver the records of its member to others at once.

        A group that is left without sessions is forgotten, as in Kafka: where nothing was acknowledged yet,
        share.auto.offset.reset applies again.
        """
        session = self.sessions.forget_connection(connection)
        if session is None:
            return
        group_id = session.key.group_id
        if self.sessions.get(session.key) is session:
            self.sessions.close(session.key)
            await self.release(session)
        if not self.sessions.has_group(group_id):
            for key in [key for key in self._led if key.group_id == group_id]:
                self.forget(key)

    # waiting for records

    def _available(self) -> None:
        for wake in list(self._waiting):
            wake()

    async def wait_for_records(self, logs: list[PartitionLog], deadline_s: float) -> None:
        """Wait until a log advances or records are released, until the event loop's time `deadline_s` at most."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        timer = loop.call_at(deadline_s, wake)
        self._waiting.append(wake)
        for log in logs:
            log.on_advance.append(wake)
        try:
            await woken
        finally:
            timer.cancel()
            self._waiting.remove(wake)
            for log in logs:
                log.on_advance.remove(wake)
