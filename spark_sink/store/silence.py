"""Limit the silence of a database that does not respond: log it after seconds, and in the end drop the connection.

A frozen server, or a network that swallows packets, ends no connection: its kernel, or a proxy, still acknowledges sent
data, so no keep-alive helps. One thread of the process looks after all waits. It sends no cancel request, which could
end the wait of a COMMIT for a standby: it shuts the socket down, and the driver finds the connection lost.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_log = logging.getLogger("spark_sink")

FIRST_LINE_S: Final = 5.0
_NEXT_LINE_S: Final = 30.0
_TICK_S: Final = 0.25


class Wait:
    """One wait for a response, on the socket with the number `fileno`."""

    def __init__(self, what: str, fileno: int, limit_s: float, now_s: float) -> None:
        self.what = what
        self.limit_s = limit_s
        self.was_ended = False
        self._fileno = fileno
        self._began_s = now_s
        self._next_line_s = FIRST_LINE_S

    def look(self, now_s: float, shut_down: Callable[[int], None]) -> None:
        """Log the wait if that is due, and end it after its time limit."""
        waited_s = now_s - self._began_s
        if waited_s >= self.limit_s:
            is_first, self.was_ended = not self.was_ended, True
            shut_down(self._fileno)  # again, should the driver have begun another wait on it
            if is_first:
                _log.error("%s after %.0f s: the connection is given up", self._silent, waited_s)
        elif waited_s >= self._next_line_s:
            self._next_line_s = waited_s + _NEXT_LINE_S
            _log.warning("%s for %.0f s; it is given up after %.0f s", self._silent, waited_s, self.limit_s)

    @property
    def _silent(self) -> str:
        return f"the commit store's database has not responded to {self.what}"


class Watch:
    """The waits of one process, and the thread that looks after them while there are any."""

    def __init__(self) -> None:
        self._waits: set[Wait] = set()
        self._lock = threading.Lock()
        self._some = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, wait: Wait) -> None:
        """Look after a wait until `end`; call `end` also if this raises."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="dualwrite-silence", daemon=True)
                thread.start()
                self._thread = thread
            self._waits.add(wait)
        self._some.set()

    def end(self, wait: Wait) -> None:
        """Stop looking after `wait`, if it began; afterwards its socket is not touched."""
        with self._lock:
            self._waits.discard(wait)

    def _run(self) -> None:
        while True:
            self._some.wait()
            time.sleep(_TICK_S)
            with self._lock:
                if not self._waits:
                    self._some.clear()
                for wait in self._waits:
                    with suppress(Exception):  # of a log handler: other waits, and later ones, are looked after
                        wait.look(time.monotonic(), _shut_down)


_watches: Final[dict[int, Watch]] = {}


def watch() -> Watch:
    """Return the watch of this process: a forked child has neither the thread nor the waits of its parent."""
    return _watches.get(os.getpid()) or _watches.setdefault(os.getpid(), Watch())


def _shut_down(fileno: int) -> None:
    # The family does not matter for a shutdown; the connection may have been lost by itself.
    with suppress(OSError), socket.fromfd(fileno, socket.AF_INET, socket.SOCK_STREAM) as copy:
        copy.shutdown(socket.SHUT_RDWR)
