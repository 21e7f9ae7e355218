"""TLS between a socket and a connection: a protocol for the socket, and the transport that the connection writes to.

Unlike asyncio's own TLS, it sends a rejected client the alert with the reason, logs the client and its error, and lets
a connection be counted and broken while its handshake is under way.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Any

from dualwrite.broker_emulator.messages.call import CloseConnectionError
from dualwrite.broker_emulator.net.server import Connection
from dualwrite.broker_emulator.security.principal import (
    ANONYMOUS,
    USER,
    NoRuleAppliesError,
    Principal,
    PrincipalMapping,
    subject_of,
)

HANDSHAKE_TIMEOUT_S = 60.0
_CHUNK = 1 << 18


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """One connection with TLS. `mapping` maps a certificate to a principal; None if clients authenticate by SASL."""

    def __init__(self, context: ssl.SSLContext, connection: Connection, mapping: PrincipalMapping | None) -> None:
        super().__init__()
        self._connection = connection
        self._mapping = mapping
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_secure = False
        self._is_ended = False  # by this side
        self._socket: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    # called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = transport  # type: ignore[assignment]  # a stream's transport is a Transport
        self._connection.connection_made(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HANDSHAKE_TIMEOUT_S, self._fail, "TLS handshake took too long")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_secure and not self._is_ended:
            self._fail("the client left before the end of the TLS handshake")
        self._connection.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.is_closing():
            return
        self._incoming.write(data)
        try:
            if not self._is_secure:
                self._tls.do_handshake()
                self._secured()
            self._read()
        except ssl.SSLWantReadError:
            self._flush()
        except (ssl.SSLError, NoRuleAppliesError) as error:
            self._flush()  # the alert
            what = "TLS" if self._is_secure else "TLS handshake"
            self._fail(f"{what} failed: {getattr(error, 'reason', None) or error}")

    def _secured(self) -> None:
        self._is_secure = True
        if self._timer is not None:
            self._timer.cancel()
        if self._mapping is not None:
            self._connection.principal = _principal(self._tls.getpeercert(binary_form=True), self._mapping)
        self._flush()

    def _read(self) -> None:
        while not self.is_closing():
            data = self._tls.read(_CHUNK)
            if not data:  # the client has closed in order
                self.close()
                return
            self._connection.data_received(data)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    # called by the connection

    def write(self, data: Any) -> None:
        left = memoryview(data)
        while left and not self.is_closing():
            left = left[self._tls.write(left) :]
            self._flush()

    def close(self) -> None:
        if self._socket is None or self._socket.is_closing():
            return
        self._is_ended = True
        if self._is_secure:
            with suppress(ssl.SSLError):  # without waiting for the client's close_notify
                self._tls.unwrap()
            self._flush()
        self._socket.close()

    def abort(self) -> None:
        self._is_ended = True
        if self._socket is not None:
            self._socket.abort()

    def is_closing(self) -> bool:
        return self._socket is None or self._socket.is_closing()

    def pause_reading(self) -> None:
        if self._socket is not None:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        if self._socket is not None:
            self._socket.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._socket is None else self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._socket is None else self._socket.get_extra_info(name, default)

    def _flush(self) -> None:
        if self._outgoing.pending and self._socket is not None:
            self._socket.write(self._outgoing.read())

    def _fail(self, reason: str) -> None:
        self._is_ended = True
        self._connection.close_because(CloseConnectionError(reason))


def _principal(certificate: bytes | None, mapping: PrincipalMapping) -> Principal:
    """Return the principal of the client certificate, or ANONYMOUS if none was required or sent."""
    if certificate is None:
        return ANONYMOUS
    return Principal(USER, mapping.name_of(subject_of(certificate)))
