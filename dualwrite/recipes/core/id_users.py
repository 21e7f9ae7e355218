"""The uses of one transactional id in this process: the first in the queue has the id, the others wait for it.

A use is made before it joins the queue, and leaves it by its identity. So `leave` is right wherever its caller was
interrupted, for example by a signal handler that raises, and may be called again.
"""

from __future__ import annotations

import threading
import time
from collections import deque


class IdUse:
    """One use of an id, by one block or call."""

    __slots__ = ("_bell", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        """The thread that made it."""
        self._bell: threading.Lock | None = None

    def expect(self) -> None:
        """Get ready to wait."""
        bell = threading.Lock()
        bell.acquire()
        self._bell = bell

    def ring(self) -> None:
        """End the wait, now or when it begins."""
        if self._bell is not None:
            try:
                self._bell.release()
            except RuntimeError:
                return  # it has rung before

    def wait(self, timeout_s: float) -> bool:
        """Wait until it rings. Return False if the time is over."""
        assert self._bell is not None, "`expect` comes first"
        return self._bell.acquire(timeout=timeout_s)


class IdUsers:
    """The queue of one id. Thread-safe."""

    def __init__(self) -> None:
        self._queue: deque[IdUse] = deque()

    @property
    def first(self) -> IdUse | None:
        """The use that has the id."""
        try:
            return self._queue[0]
        except IndexError:
            return None

    def join(self, use: IdUse) -> IdUse:
        """Queue a use, which must `leave` in any case. Return the use that has the id."""
        self._queue.append(use)
        return self._queue[0]

    def wait(self, use: IdUse, timeout_s: float | None) -> bool:
        """Wait until a use that has joined has the id. Return False if the time is over."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self.first is not use:
            if deadline_s is None:
                use.wait(-1)
            elif not use.wait(max(0.0, deadline_s - time.monotonic())) and self.first is not use:
                return False
        return True

    def leave(self, use: IdUse) -> None:
        """Leave the queue, and let the next use have the id; harmless when repeated, or without having joined."""
        if use in self._queue:
            self._queue.remove(use)
        first = self.first
        if first is not None:
            first.ring()
