"""Share sessions: the partitions that each member fetches from this broker, and the epoch of its next request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

OPEN_EPOCH: Final = 0
"""The epoch of a ShareFetch that opens a session."""
CLOSE_EPOCH: Final = -1
"""The epoch of a request that closes a session."""
_LAST_EPOCH: Final = 2147483647


class SessionError(Exception):
    """A request does not fit its session."""

    def __init__(self, error: ErrorCode) -> None:
        super().__init__(error.name)
        self.error = error


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
