"""Ways to end a statement whose server may not respond for hours, for the connection of any driver.

They do not involve the driver, and send no cancel request: they shut the socket down, so the driver finds the
connection lost.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any, Self


class SocketTimeout:
    """Shuts the socket of `connection` down if the `with` block lasts longer than `after_s`.

    There is no limit if the driver does not expose its socket.
    """

    def __init__(self, connection: Any, after_s: float) -> None:
        # a duplicate: by then, the driver may have closed its socket and another one may have the same number
        fileno = fileno_of(connection)
        # the family does not matter for a shutdown
        self._socket = None if fileno is None else socket.fromfd(fileno, socket.AF_INET, socket.SOCK_STREAM)
        self._timer = threading.Timer(after_s, self._fire)
        self._timer.daemon = True
        self._ending = threading.Lock()
        self.has_fired = False

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *how: object) -> None:
        self._timer.cancel()
        with self._ending:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _fire(self) -> None:
        with self._ending, suppress(OSError):  # the connection was already lost
            if self._socket is not None:
                self.has_fired = True
                self._socket.shutdown(socket.SHUT_RDWR)


def fileno_of(connection: Any) -> int | None:
    """Return the file descriptor of a connection's socket, or None if the driver does not expose it.

    psycopg and psycopg2 have `fileno()`. asyncpg's `_transport` and PyMySQL's `_sock` are private, for lack of a public
    way; tests/unit/test_socket_timeout.py fails if they disappear.
    """
    transport = getattr(connection, "_transport", None)
    if transport is not None:
        connection = transport.get_extra_info("socket")
    found = getattr(connection, "_sock", None) or connection
    fileno = getattr(found, "fileno", None)
    return None if fileno is None else int(fileno())
