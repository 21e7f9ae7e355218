"""A relay in front of one Kafka broker that understands frames: it catches one request and has it lost or late.

The relay replaces the addresses of coordinators and leaders by its own, so that every request passes it.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Final, Self

WAIT_S: Final = 60.0
_LENGTH: Final = struct.Struct(">i")


class Fate(Enum):
    """The fate of a caught request. Its client's connection is cut before a response comes."""

    LOST = "the broker never sees it"
    UNHEARD = "the broker carries it out, and then the connection is cut"
    HELD = "the broker gets it, on the connection that it was sent on, when `deliver` is called"


class Caught:
    """One request to be caught: the first that `accepts`."""

    def __init__(self, accepts: Callable[[bytes], bool], fate: Fate) -> None:
        self.accepts = accepts
        self.fate = fate
        self._seen = threading.Event()
        self._answered = threading.Event()
        self._link: _Link | None = None
        self._frame = b""

    @property
    def is_caught(self) -> bool:
        return self._seen.is_set()

    def wait(self) -> None:
        """Block until it is caught."""
        assert self._seen.wait(WAIT_S), "no such request came"

    def deliver(self) -> None:
        """Let the broker have a held request, and wait for its response, which the client never gets."""
        self.wait()
        assert self.fate is Fate.HELD
        assert self._link is not None
        self._link.to_broker(self._frame)
        assert self._answered.wait(WAIT_S), "the late request was not answered"

    def catch(self, link: _Link, frame: bytes) -> None:
        """Called by the relay."""
        self._link, self._frame = link, frame
        self._seen.set()

    def is_answered_by(self, frame: bytes) -> bool:
        """Called by the relay, with each response on the connection of the caught request."""
        if frame[:4] != self._frame[4:8]:  # the correlation id
            return False
        self._answered.set()
        return True


class KafkaProxy:
    """Listens on a free port of 127.0.0.1 in front of the broker at `address` ("127.0.0.1:port")."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self.target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        encoded = host.encode()
        self.broker_address = encoded + _LENGTH.pack(self.target[1])  # as Metadata and FindCoordinator have it
        self.own_address = encoded + _LENGTH.pack(self.port)
        self._trap: Caught | None = None
        self._lock = threading.Lock()
        self.links: set[_Link] = set()
        self._closed = False
        threading.Thread(target=self._accept, name="kafka-proxy", daemon=True).start()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def catch(self, api_key: int, transactional_id: str, fate: Fate) -> Caught:
        """Catch the next request of this kind that is about this transactional id."""
        name = transactional_id.encode()

        def accepts(frame: bytes) -> bool:
            return frame[:2] == struct.pack(">h", api_key) and name in frame

        self._trap = Caught(accepts, fate)
        return self._trap

    def take(self, frame: bytes) -> Caught | None:
        """Called by links: return the trap, if it waits for this frame."""
        with self._lock:
            trap = self._trap
            if trap is None or not trap.accepts(frame):
                return None
            self._trap = None
            return trap

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):  # a thread that waits in accept() is not woken by close() alone
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in tuple(self.links):
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._closed:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection(self.target)
                except OSError:
                    client.close()
                    continue
                self.links.add(_Link(self, client, broker))


class _Link:
    """One relayed connection: a thread for each direction."""

    def __init__(self, proxy: KafkaProxy, client: socket.socket, broker: socket.socket) -> None:
        for end in (client, broker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._proxy = proxy
        self._client = client
        self._broker = broker
        self._caught: Caught | None = None
        for run in (self._relay_requests, self._relay_answers):
            threading.Thread(target=run, name="kafka-proxy-link", daemon=True).start()

    def to_broker(self, frame: bytes) -> None:
        self._broker.sendall(_LENGTH.pack(len(frame)) + frame)

    def _relay_requests(self) -> None:
        with suppress(OSError):
            while (frame := _frame_from(self._client)) is not None:
                caught = self._proxy.take(frame)
                if caught is None:
                    self.to_broker(frame)
                    continue
                self._catch(caught, frame)
                return
        if self._caught is None:
            self.close()

    def _catch(self, caught: Caught, frame: bytes) -> None:
        caught.catch(self, frame)
        self._caught = caught
        match caught.fate:
            case Fate.LOST:
                self.close()
            case Fate.UNHEARD:
                self.to_broker(frame)
            case Fate.HELD:
                _close(self._client)

    def _relay_answers(self) -> None:
        with suppress(OSError):
            while (frame := _frame_from(self._broker)) is not None:
                caught = self._caught
                if caught is not None and caught.is_answered_by(frame):
                    break
                if caught is not None and caught.fate is Fate.HELD:
                    continue
                frame = frame.replace(self._proxy.broker_address, self._proxy.own_address)
                self._client.sendall(_LENGTH.pack(len(frame)) + frame)
        self.close()

    def close(self) -> None:
        _close(self._client)
        _close(self._broker)
        self._proxy.links.discard(self)


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _frame_from(end: socket.socket) -> bytes | None:
    """The next frame without its length; None at the end of the stream."""
    head = _read(end, _LENGTH.size)
    return None if head is None else _read(end, _LENGTH.unpack(head)[0])


def _read(end: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        chunk = end.recv(count - len(data))
        if not chunk:
            return None
        data += chunk
    return bytes(data)
