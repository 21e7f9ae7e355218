"""The share-partitions of one node as the leader of partitions, and its clients' share sessions. A thin shell."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.share.led_partition import LeaderError, LedPartition
from dualwrite.broker_emulator.share.state import StateKey
from dualwrite.broker_emulator.slices import Pace

if TYPE_CHECKING:
    from dualwrite.broker_emulator.share.state import ShareClusterView
    from dualwrite.broker_emulator.topics.topics import Partition


OPEN_EPOCH: Final = 0
"""The epoch of a ShareFetch that opens a session."""
CLOSE_EPOCH: Final = -1
"""The epoch of a request that closes a session."""
_LAST_EPOCH: Final = 2147483647


class SessionError(RefusedError):
    """A request does not fit its session."""


class SessionKey(NamedTuple):
    """The name of a session."""

    group_id: str
    member_id: str


class SessionPartition(NamedTuple):
    """A partition of a session."""

    topic_id: UUID
    partition: int


@dataclass(slots=True, eq=False)
class ShareSession:
    """One session."""

    key: SessionKey
    epoch: int = 1
    """The epoch of the next request."""
    partitions: dict[SessionPartition, None] = field(default_factory=dict)
    """In the order in which they are read."""

    def in_turn(self) -> Iterator[SessionPartition]:
        """Return the partitions, beginning with another partition at each request so that none of them starves."""
        names = list(self.partitions)
        first = self.epoch % len(names) if names else 0
        return iter(names[first:] + names[:first])


class ShareSessions:
    """All sessions of one broker."""

    def __init__(self) -> None:
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._opened_last: dict[object, ShareSession] = {}
        """By connection: the session that it opened last. As in Kafka, only this session ends with the connection."""

    def get(self, key: SessionKey) -> ShareSession | None:
        """Return a session, or None."""
        return self._sessions.get(key)

    def has_group(self, group_id: str) -> bool:
        """Return whether a member of the group has a session."""
        return any(key.group_id == group_id for key in self._sessions)

    def open(
        self, key: SessionKey, partitions: Iterable[SessionPartition], *, most: int, connection: object = None
    ) -> ShareSession:
        """Open a session, replacing the member's last one. Raises SessionError (133) beyond `most` sessions."""
        self._sessions.pop(key, None)
        if len(self._sessions) >= most:
            raise SessionError(ErrorCode.share_session_limit_reached)
        session = self._sessions[key] = ShareSession(key, partitions=dict.fromkeys(partitions))
        if connection is not None:
            self._opened_last[connection] = session
        return session

    def next(
        self,
        key: SessionKey,
        epoch: int,
        added: Iterable[SessionPartition] = (),
        forgotten: Iterable[SessionPartition] = (),
    ) -> ShareSession:
        """Continue a session. Raises SessionError: 122 for an unknown session, 123 if the epoch is not the next one."""
        session = self._sessions.get(key)
        if session is None:
            raise SessionError(ErrorCode.share_session_not_found)
        if session.epoch != epoch:
            raise SessionError(ErrorCode.invalid_share_session_epoch)
        session.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        session.partitions.update(dict.fromkeys(added))
        for name in forgotten:
            session.partitions.pop(name, None)
        return session

    def close(self, key: SessionKey) -> ShareSession:
        """Close a session. Raises SessionError (122) if it is unknown."""
        session = self._sessions.pop(key, None)
        if session is None:
            raise SessionError(ErrorCode.share_session_not_found)
        return session

    def forget_connection(self, connection: object) -> ShareSession | None:
        """Return the session that a closed connection opened last, whether or not it is still open."""
        return self._opened_last.pop(connection, None)

    def __len__(self) -> int:
        return len(self._sessions)


class ShareLeader:
    """Finds the share-partitions of the partitions that this node leads."""

    def __init__(self, cluster: ShareClusterView) -> None:
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
