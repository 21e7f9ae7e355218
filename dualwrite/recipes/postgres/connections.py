"""The sources of a writer's connections to PostgreSQL, for any driver; blocking or asynchronous."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from dualwrite.recipes.core.waiting import settled

# Connections of the parent process, kept alive so that the child's garbage collector does not close them.
_abandoned: list[Any] = []


def abandon(connection: Any) -> None:
    """Keep a connection of the parent process alive in a forked child, and never use it."""
    _abandoned.append(connection)


class Connections(ABC):
    """A source of connections."""

    are_limited = False
    """Whether `acquire` may have to wait for a released connection."""
    are_ours = False
    """Whether nothing but writers uses the connections."""

    @property
    @abstractmethod
    def attempts(self) -> int:
        """The number of connections to acquire until one is certainly newer than the database's last restart."""

    @abstractmethod
    async def acquire(self) -> Any: ...

    @abstractmethod
    async def release(self, connection: Any) -> None:
        """Take back a connection that is idle or closed."""

    def keep(self, connection: Any) -> bool:
        """Release an idle connection. Return False, and do nothing, if that would have to wait."""
        return False

    async def close(self) -> None:  # noqa: B027 - most keep none
        """Close the kept connections; those of a caller's pool belong to the caller."""


class KeptConnections(Connections):
    """Connections that are opened when needed; at most `most` are kept for later. Thread-safe.

    `is_idle` tests whether a connection is open and in no transaction, and `close` closes one.
    """

    are_ours = True

    def __init__(
        self,
        connect: Callable[[], Any],
        *,
        is_idle: Callable[[Any], bool],
        close: Callable[[Any], Awaitable[None]],
        most: int = 1,
    ) -> None:
        self._connect = connect
        self._is_idle = is_idle
        self._close = close
        self._most = most
        self._kept: list[Any] = []
        self._process_id = os.getpid()

    @property
    def attempts(self) -> int:
        return self._most + 1

    async def acquire(self) -> Any:
        kept = self._take()
        if kept is not None and self._is_idle(kept):
            return kept
        return await settled(self._connect())

    async def release(self, connection: Any) -> None:
        if not self._is_idle(connection) or not self.keep(connection):
            await self._close(connection)

    def keep(self, connection: Any) -> bool:
        is_wanted = len(self._kept) < self._most
        if is_wanted:
            self._kept.append(connection)
        return is_wanted

    async def close(self) -> None:
        while (kept := self._take()) is not None:
            await self._close(kept)

    def _take(self) -> Any:
        if os.getpid() != self._process_id:  # forked: the sockets are the parent's
            self._process_id = os.getpid()
            for kept in self._kept:
                abandon(kept)
            self._kept.clear()
        try:
            return self._kept.pop()
        except IndexError:
            return None
