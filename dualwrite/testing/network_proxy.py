"""A relay between a client and a server that can cut connections, refuse them, or swallow responses on command."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import Self

import sqlalchemy as sa

_CHUNK_BYTES = 65536

_FAREWELLS = (b"X\x00\x00\x00\x04", b"\x01\x00\x00\x00\x01")
"""PostgreSQL's Terminate and MySQL's COM_QUIT: they are not answered, so a client does not wait until they arrive."""


class _Action(Enum):
    DELIVER = auto()
    SWALLOW_RESPONSE = auto()
    CUT = auto()


class _Link:
    """One relayed connection: two threads, one per direction."""

    def __init__(self, proxy: NetworkProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._swallowing = threading.Event()
        for name, run in (("up", self._pump_up), ("down", self._pump_down)):
            threading.Thread(target=run, name=f"proxy-{name}", daemon=True).start()

    def _pump_up(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(_CHUNK_BYTES):
                action = self._proxy.action_for(data)
                if action is _Action.CUT:
                    break
                if action is _Action.SWALLOW_RESPONSE:
                    self._swallowing.set()
                self._server.sendall(data)
        self.cut()

    def _pump_down(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(_CHUNK_BYTES):
                if self._swallowing.is_set():
                    self._client.sendall(self._proxy.instead)
                    break
                self._client.sendall(data)
        self.cut()

    def cut(self) -> None:
        """Close both ends; requests in flight get no response."""
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._proxy.forget(self)


class NetworkProxy:
    """A relay that listens on a free port of 127.0.0.1; `target` is a (host, port) or the path of a Unix socket.

    `swallow_answer_to` and `cut_at` ignore the message with which a client leaves a database. It gets no response that
    could be lost, and one that was sent before either call may be received after it.
    """

    def __init__(self, target: tuple[str, int] | Path) -> None:
        self._target = target
        self.instead = b""
        self._links: set[_Link] = set()
        self._refusing = False
        self._trap: tuple[Callable[[bytes], bool], _Action] | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="proxy-accept", daemon=True).start()

    @classmethod
    def for_database(cls, url: sa.URL) -> Self:
        """Create a relay to the Postgres or MySQL server that `url` names, which may listen on a Unix socket."""
        if socket_path := url.query.get("unix_socket"):
            return cls(Path(str(socket_path)))
        host = str(url.query.get("host") or url.host or "127.0.0.1")
        is_postgres = url.get_backend_name() == "postgresql"
        port = url.port or (5432 if is_postgres else 3306)
        return cls(Path(host) / f".s.PGSQL.{port}" if host.startswith("/") else (host, port))

    def through(self, url: sa.URL) -> sa.URL:
        """Return `url` changed to connect through this proxy."""
        return url.difference_update_query(["host", "unix_socket"]).set(host="127.0.0.1", port=self.port)

    def cut(self) -> int:
        """Close every connection now; return their number."""
        links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    def refuse(self) -> None:
        """Close each new connection at once, until `accept_again`; existing connections stay open."""
        self._refusing = True

    def accept_again(self) -> None:
        """Relay new connections again, after `refuse`."""
        self._refusing = False

    def swallow_answer_to(self, matcher: Callable[[bytes], bool], *, instead: bytes = b"") -> None:
        """Deliver the next bytes from a client that `matcher` accepts, but cut the connection before the response.

        The client gets the bytes `instead` of it, such as the last words of a pooler.
        """
        self.instead = instead
        self._trap = (matcher, _Action.SWALLOW_RESPONSE)

    def cut_at(self, matcher: Callable[[bytes], bool]) -> None:
        """Cut the connection on which a client next sends bytes that `matcher` accepts, without delivering them."""
        self._trap = (matcher, _Action.CUT)

    def disarm(self) -> None:
        """Cancel a `swallow_answer_to` or `cut_at` whose matcher has not accepted anything yet."""
        self._trap = None

    def close(self) -> None:
        """Stop listening and cut all connections."""
        self._refusing = True
        with suppress(OSError):  # close() alone does not wake a thread blocked in accept()
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def action_for(self, data: bytes) -> _Action:
        """Return a link's action for bytes from its client; a trap acts once."""
        if self._trap is None or data in _FAREWELLS or not self._trap[0](data):
            return _Action.DELIVER
        action = self._trap[1]
        self._trap = None
        return action

    def forget(self, link: _Link) -> None:
        """Drop a link that has closed."""
        self._links.discard(link)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refusing:
                    client.close()
                    continue
                try:
                    server = self._connect()
                except OSError:
                    client.close()
                    continue
                self._links.add(_Link(self, client, server))

    def _connect(self) -> socket.socket:
        if isinstance(self._target, Path):
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self._target))
            return server
        return socket.create_connection(self._target)
