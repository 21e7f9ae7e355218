"""A time limit for a statement whose server may not answer for hours, on whatever driver's connection.

No driver is asked to stop waiting, and no server to cancel: the socket is shut down, and whoever waits finds the
connection lost.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Self


class LineCut:
    """Shuts the socket of `connection` down if a `with` lasts longer than `after_s`.

    Where the driver does not show its socket, there is no limit.
    """

    def __init__(self, connection: Any, after_s: float) -> None:
        # a duplicate: the driver's number may be that of somebody else's socket by then
        self._socket = _duplicate(_fileno(connection))
        self._timer = threading.Timer(after_s, self._cut)
        self._timer.daemon = True
        self._ending = threading.Lock()
        self.was_cut = False

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._ending:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _cut(self) -> None:
        with self._ending, suppress(OSError):  # it was lost before
            if self._socket is not None:
                self.was_cut = True
                self._socket.shutdown(socket.SHUT_RDWR)


def _fileno(connection: Any) -> int | None:
    """Of the socket of a driver's connection: psycopg's and psycopg2's own, asyncpg's transport, PyMySQL's socket."""
    transport = getattr(connection, "_transport", None)
    if transport is not None:
        connection = transport.get_extra_info("socket")
    found = getattr(connection, "_sock", None) or connection
    ask = getattr(found, "fileno", None)
    return None if ask is None else int(ask())


def _duplicate(fileno: int | None) -> socket.socket | None:
    if fileno is None:
        return None
    return socket.fromfd(fileno, socket.AF_INET, socket.SOCK_STREAM)  # whichever family: it is only shut down
