"""Turns of threads, or of asyncio tasks, under one transactional id: one use of it at a time.

A use is made before it joins the queue, and leaves it by its identity. So `leave` is right wherever its caller was
interrupted, for example by a signal handler that raises, and may be called again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from dualwrite.recipes.core.bells import Bell, TaskBell, ThreadBell


class IdUse:
    """One use of an id, by one block or call. `user`: the thread or task that uses it; None: this thread."""

    __slots__ = ("bell", "thread", "user")

    def __init__(self, user: object = None) -> None:
        self.thread = threading.get_ident()
        """The thread that made it."""
        self.user = self.thread if user is None else user
        self.bell: Bell | None = None
        """Rings when the id may be free, if the use waits for it."""


class IdUsers:
    """The queue of one id: the first use has the id, the others wait for it. Thread-safe. By default for threads."""

    def __init__(
        self,
        kind: str = "thread",
        new_bell: Callable[[], Bell] = ThreadBell,
        current: Callable[[], object] = threading.get_ident,
    ) -> None:
        """Create an empty queue. `current` returns the user that calls; `kind` describes it."""
        self.kind: Final = kind
        self.current: Final = current
        self._new_bell = new_bell
        self._queue: deque[IdUse] = deque()

    @property
    def is_mine(self) -> bool:
        """Whether the caller itself has the id."""
        try:
            return self._queue[0].user == self.current()
        except IndexError:
            return False

    def join(self, use: IdUse) -> IdUse:
        """Queue a use, which must `leave` in any case. Return the use that has the id."""
        self._queue.append(use)
        return self._queue[0]

    async def join_and_wait(self, use: IdUse, timeout_s: float | None) -> bool:
        """Queue a use, which must `leave`, until it has the id. Return False if the time limit has passed."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        bell = use.bell = self._new_bell()
        self.join(use)
        while self._queue[0] is not use:
            remaining_s = None if deadline_s is None else deadline_s - time.monotonic()
            if remaining_s is not None and remaining_s <= 0:
                return False
            await bell.wait(remaining_s)
        return True

    def leave(self, use: IdUse) -> None:
        """Leave the queue, and let the next use have the id; harmless when repeated, or without having joined."""
        if use in self._queue:
            self._queue.remove(use)
        try:
            first = self._queue[0]
        except IndexError:
            return
        if first.bell is not None:
            first.bell.ring()


def used_by_tasks() -> IdUsers:
    """Return the queue of an id that the tasks of one loop use."""
    return IdUsers("task", TaskBell, asyncio.current_task)
