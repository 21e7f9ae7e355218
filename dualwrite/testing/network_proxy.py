"""A relay between a client and a server on this machine that can cut, refuse, or swallow answers on command."""

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


class _Verdict(Enum):
    DELIVER = auto()
    SWALLOW_ANSWER = auto()
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
                verdict = self._proxy._judge(data)
                if verdict is _Verdict.CUT:
                    break
                if verdict is _Verdict.SWALLOW_ANSWER:
                    self._swallowing.set()
                self._server.sendall(data)
        self.cut()

    def _pump_down(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(_CHUNK_BYTES):
                if self._swallowing.is_set():
                    break
                self._client.sendall(data)
        self.cut()

    def cut(self) -> None:
        """Close both ends; whatever was under way stays unanswered."""
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._proxy._links.discard(self)


class NetworkProxy:
    """Listens on a free port of 127.0.0.1 and relays to `target`, a (host, port) or the path of a Unix socket."""

    def __init__(self, target: tuple[str, int] | Path) -> None:
        self._target = target
        self._links: set[_Link] = set()
        self._refusing = False
        self._trap: tuple[Callable[[bytes], bool], _Verdict] | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="proxy-accept", daemon=True).start()

    @classmethod
    def for_database(cls, url: sa.URL) -> Self:
        """A relay to the Postgres or MySQL server that `url` names, which may be behind a Unix socket."""
        if socket_path := url.query.get("unix_socket"):
            return cls(Path(str(socket_path)))
        host = str(url.query.get("host") or url.host or "127.0.0.1")
        is_postgres = url.get_backend_name() == "postgresql"
        port = url.port or (5432 if is_postgres else 3306)
        return cls(Path(host) / f".s.PGSQL.{port}" if host.startswith("/") else (host, port))

    def through(self, url: sa.URL) -> sa.URL:
        """`url` with this proxy in front of its server."""
        return url.difference_update_query(["host", "unix_socket"]).set(host="127.0.0.1", port=self.port)

    def cut(self) -> int:
        """Close every connection now; returns how many there were."""
        links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    def refuse(self) -> None:
        """Close new connections at once, until `accept_again`; those that stand go on."""
        self._refusing = True

    def accept_again(self) -> None:
        self._refusing = False

    def swallow_answer_to(self, matcher: Callable[[bytes], bool]) -> None:
        """Deliver the next bytes from a client that `matcher` accepts, swallow the answer, and cut that connection."""
        self._trap = (matcher, _Verdict.SWALLOW_ANSWER)

    def cut_at(self, matcher: Callable[[bytes], bool]) -> None:
        """Cut the connection on which a client next sends bytes that `matcher` accepts, without delivering them."""
        self._trap = (matcher, _Verdict.CUT)

    def disarm(self) -> None:
        """Forget a `swallow_answer_to` or `cut_at` that has not struck."""
        self._trap = None

    def close(self) -> None:
        self._refusing = True
        with suppress(OSError):  # a thread that waits in accept() is not woken by close() alone
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _judge(self, data: bytes) -> _Verdict:
        if self._trap is None or not self._trap[0](data):
            return _Verdict.DELIVER
        verdict = self._trap[1]
        self._trap = None
        return verdict

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
