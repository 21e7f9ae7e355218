"""One connection to one broker: frames out, frames in, responses in the order of their requests.

With SASL, the connection logs in before anything else, and again before its session ends (KIP-368). During a login the
broker accepts only the requests of the login, so all others are held back for those milliseconds.

`Connector` opens connections: TCP or TLS, ApiVersions, login. If that fails, it finds out why. A wrong setting is an
`AuthenticationError`, which another attempt does not cure; anything else is an `OSError`, which it may. A listener that
closes the connection does not tell its protocol, so the connector tries the other one before it blames a setting.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple, cast

from dualwrite.client.error_texts import error_name
from dualwrite.client.messages import ApiVersions, BrokerFeatures
from dualwrite.client.wire.codec import decode_api_versions, encode
from dualwrite.client.wire.frames import Framer, Piece, Pieces, correlation_id_of
from dualwrite.client.wire.in_a_thread import in_a_thread
from dualwrite.client.wire.malformed import MalformedResponseError
from dualwrite.client.wire.security import (
    NOT_TLS,
    ONLY_TLS,
    Login,
    TlsFiles,
    refusal_of_handshake,
    refuse_listener_that_requires_sasl,
)
from dualwrite.client.wire.versions import API_VERSIONS_REQUEST_VERSION
from dualwrite.errors import Api, AuthenticationError
from dualwrite.security_config import SecurityConfig

MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
_UNSUPPORTED_VERSION: Final = 35
_MAX_CORRELATION_ID: Final = 2**31 - 1
_LONG_S: Final = 1.0
_TLS_ALERT: Final = b"\x15\x03"
_SESSION_PART_USED: Final = (0.85, 0.95)
"""A new login begins at a random point between these, like in Kafka's client, so that logins do not coincide."""

ResponseCallback = Callable[[memoryview | None], None]
"""Gets the body of the response, or None if the connection was lost: the request may or may not have been applied."""


class _Waiting(NamedTuple):
    correlation_id: int
    api: Api
    version: int
    on_response: ResponseCallback
    deadline_s: float
    owner: object


class _Held(NamedTuple):
    api: Api
    version: int
    body: Piece | Pieces
    on_response: ResponseCallback | None
    owner: object


class Connection(asyncio.Protocol):
    """A connection as asyncio's protocol. Kafka responds to requests in order, so the next response is the oldest's.

    `problem` says why it was lost, `refusal` that a setting or an account is to blame. `unserved`: it was lost before
    the broker responded to any request after the login.
    """

    def __init__(self, *, framer: Framer, request_timeout_ms: float, on_lost: Callable[[Connection], None]) -> None:
        self.features = BrokerFeatures(0, {}, 0)
        self.lost = False
        self.problem = "the connection was lost"
        self.refusal: AuthenticationError | None = None
        self.unserved = False
        self._framer = framer
        self._request_timeout_s = request_timeout_ms / 1000
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Waiting] = deque()
        self._correlation_id = 0
        self._buffer = bytearray()
        self._awaited_bytes = 0
        """Size of the incomplete frame, so that a large one is not copied each time that a part of it comes."""
        self._timer: asyncio.TimerHandle | None = None
        self._first_correlation_id = 0
        self._held: list[_Held] | None = None
        self._login: asyncio.Task[None] | None = None
        self._login_timer: asyncio.TimerHandle | None = None

    # ---- asyncio's callbacks --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the loop's callback: the connection is up."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without inheriting from it

    def data_received(self, data: bytes) -> None:
        """Handle the loop's callback: bytes came, which may be a part of a frame or several frames."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._awaited_bytes:
                return
            consumed = self._take_frames(bytes(self._buffer))
            del self._buffer[:consumed]
            return
        consumed = self._take_frames(data)
        if consumed < len(data):
            self._buffer += data[consumed:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the loop's callback: the connection is closed, by either side."""
        self.lost = True
        if exc is not None:
            self.problem += f" ({exc})"
        if isinstance(exc, ssl.SSLError):
            self._refuse(refusal_of_handshake(exc, ""))
        for timer in (self._timer, self._login_timer, self._login):
            if timer is not None:
                timer.cancel()
        waiting = self._waiting
        self.unserved = bool(waiting) and waiting[0].correlation_id == self._first_correlation_id
        try:
            self._on_lost(self)
        finally:
            while self._waiting:
                self._waiting.popleft().on_response(None)
            for held in self._held or ():
                if held.on_response is not None:
                    held.on_response(None)

    # ---- requests -------------------------------------------------------------------------------------------

    def send(
        self, api: Api, version: int, body: Piece | Pieces, on_response: ResponseCallback, owner: object = None
    ) -> None:
        """Send a request for `owner`; `on_response` is called once, in the loop."""
        if self.lost or self._transport is None:
            self._loop.call_soon(on_response, None)
        elif self._held is not None:
            self._held.append(_Held(api, version, body, on_response, owner))
        else:
            self._send(self._transport, api, version, body, on_response, owner)

    def _send(
        self,
        transport: asyncio.Transport,
        api: Api,
        version: int,
        body: Piece | Pieces,
        on_response: ResponseCallback,
        owner: object,
    ) -> None:
        correlation_id = self._next_correlation_id()
        deadline_s = self._loop.time() + self._request_timeout_s
        self._waiting.append(_Waiting(correlation_id, api, version, on_response, deadline_s, owner))
        if self._timer is None:
            self._timer = self._loop.call_later(self._request_timeout_s, self._on_timer)
        transport.writelines(self._framer.frame(api, version, correlation_id, body))

    def send_without_response(self, api: Api, version: int, body: Piece | Pieces) -> None:
        """Send a Produce with acks=0, to which brokers do not respond."""
        if self._held is not None:
            self._held.append(_Held(api, version, body, None, None))
        elif self._transport is not None and not self.lost:
            self._transport.writelines(self._framer.frame(api, version, self._next_correlation_id(), body))

    @property
    def in_flight(self) -> int:
        """The number of requests without a response yet."""
        return len(self._waiting) + (0 if self._held is None else len(self._held))

    def load(self) -> tuple[bool, int]:
        """Return a key to compare connections by: whether a response is overdue, and how many are outstanding."""
        if not self._waiting:
            return False, self.in_flight
        waited_s = self._loop.time() - (self._waiting[0].deadline_s - self._request_timeout_s)
        return waited_s > _LONG_S, self.in_flight

    def waits_for(self, owner: object) -> str | None:
        """Describe the response for which `owner` has waited longest, and the one before it; from any thread."""
        waiting = tuple(self._waiting)
        own = next((request.api.kafka_name for request in waiting if request.owner is owner), None)
        if own is None or waiting[0].owner is owner:
            return own
        return f"{own}, which is queued behind {waiting[0].api.kafka_name} of another user of the same connection,"

    def close(self) -> None:
        """Drop the connection; the callbacks of outstanding requests get None."""
        if self._transport is not None:
            self._transport.abort()

    def drop(self, problem: MalformedResponseError) -> None:
        """Close the connection, and use it no more from now on: a response on it cannot be read."""
        self.lost = True
        self._give_up(f"{problem}, and the connection to {self.peer} was closed")

    @property
    def peer(self) -> str:
        """The broker's address, as text."""
        address = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{address[0]}:{address[1]}" if address else "the broker"

    def _refuse(self, sentence: str | None) -> None:
        if sentence is not None and self.refusal is None:
            self.refusal = AuthenticationError(sentence)

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        self.close()

    async def negotiate(self) -> None:
        """Read which API versions the broker supports (KIP-35). Raises `ConnectionError` if it does not say."""
        version = API_VERSIONS_REQUEST_VERSION
        self.features = await self._request_api_versions(version)
        if self.features.error_code == _UNSUPPORTED_VERSION:
            self.features = await self._request_api_versions(0)
        if self.features.error_code:
            raise ConnectionError(f"ApiVersions returned {error_name(self.features.error_code)}")
        self._first_correlation_id = self._correlation_id + 1

    async def request(self, api: Api, version: int, body: bytes) -> memoryview:
        """Send a request, even during a login, and return the body of its response.

        Raises `ConnectionError` if no response came, `AuthenticationError` if the broker or this client refused the
        other.
        """
        received: asyncio.Future[memoryview | None] = self._loop.create_future()

        def on_response(body: memoryview | None) -> None:
            if not received.done():
                received.set_result(body)

        if self.lost or self._transport is None:
            on_response(None)
        else:
            self._send(self._transport, api, version, body, on_response, None)
        response = await received
        if response is None:
            hint = "; is this a listener of a Kafka broker?" if api is Api.API_VERSIONS else ""
            raise self.refusal or ConnectionError(f"{self.problem} before {api.kafka_name} got a response{hint}")
        return response

    async def log_in(self, login: Login) -> None:
        """Log in now, and again whenever the session is about to end. Raises `AuthenticationError` if refused."""
        lifetime_ms = await login.log_in(self.request, self.features)
        self._first_correlation_id = self._correlation_id + 1
        if lifetime_ms > 0 and not self.lost:
            delay_s = lifetime_ms / 1000 * random.uniform(*_SESSION_PART_USED)
            self._login_timer = self._loop.call_later(delay_s, self._log_in_again, login)

    def _log_in_again(self, login: Login) -> None:
        self._held = []
        self._login = self._loop.create_task(self._renew_session(login))

    async def _renew_session(self, login: Login) -> None:
        try:
            async with asyncio.timeout(self._request_timeout_s):
                await self.log_in(login)
        except Exception as error:  # callers get the error of the next connection's login
            self._give_up(
                f"the session could not be renewed ({str(error) or login.obstacle}), and the connection was closed"
            )
            return
        held, self._held = self._held or [], None
        for api, version, body, on_response, owner in held:
            if on_response is None:
                self.send_without_response(api, version, body)
            else:
                self.send(api, version, body, on_response, owner)

    async def _request_api_versions(self, version: int) -> BrokerFeatures:
        body = await self.request(Api.API_VERSIONS, version, encode(ApiVersions(), version))
        return decode_api_versions(body, version)

    def _next_correlation_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & _MAX_CORRELATION_ID
        return self._correlation_id

    # ---- responses ------------------------------------------------------------------------------------------

    def _take_frames(self, data: bytes) -> int:
        """Handle the complete frames in `data`; return how many bytes they took."""
        position = 0
        self._awaited_bytes = 0
        while len(data) - position >= 4:
            size = int.from_bytes(data[position : position + 4], "big", signed=True)
            if not 4 <= size <= MAX_FRAME_BYTES:
                if data.startswith(_TLS_ALERT, position):
                    self._refuse(ONLY_TLS)
                self._give_up(f"a response claimed to have {size} bytes, more than Kafka ever sends,")
                return len(data)
            end = position + 4 + size
            if end > len(data):
                self._awaited_bytes = end - position
                break
            self._take_frame(memoryview(data)[position + 4 : end])
            if self.lost:
                return len(data)
            position = end
        return position

    def _take_frame(self, frame: memoryview) -> None:
        if not self._waiting or self._waiting[0].correlation_id != correlation_id_of(frame):
            # The peer does not speak Kafka, or a response is missing: nothing after it can be trusted.
            self._give_up("a response matches no request")
            return
        api, version = self._waiting[0].api, self._waiting[0].version
        try:
            body = self._framer.body(api, version, frame)
        except (IndexError, ValueError) as error:
            self.drop(MalformedResponseError(api, version, len(frame), error))
            return
        self._waiting.popleft().on_response(body)

    def _on_timer(self) -> None:
        """Drop the connection if its oldest request has timed out: brokers respond in order, so it is stuck."""
        self._timer = None
        if not self._waiting:
            return
        left_s = self._waiting[0].deadline_s - self._loop.time()
        if left_s <= 0:
            api = self._waiting[0].api.kafka_name
            self._give_up(f"{api} got no response within request.timeout.ms={self._request_timeout_s * 1000:.0f}")
        else:
            self._timer = self._loop.call_later(left_s, self._on_timer)


# ---- opening connections ----------------------------------------------------------------------------------------

NewConnection = Callable[[], Connection]
Check = Callable[[Connection], Awaitable[None]]


class Connector:
    """Opens the connections of one cluster. Raises `ConfigError` if a file that the settings name cannot be used."""

    def __init__(self, config: SecurityConfig) -> None:
        self._tls = TlsFiles(config)
        self._uses_tls = config.uses_tls
        self._login = Login(config) if config.uses_sasl else None

    async def connect(
        self,
        host: str,
        port: int,
        new_connection: NewConnection,
        *,
        timeout_ms: float,
        unserved_before: bool = False,
        check: Check | None = None,
    ) -> Connection:
        """Open a connection that is ready for requests, also by `check` if it is given.

        `unserved_before`: the last connection to this address was lost before any response; maybe it requires a login.
        Raises `AuthenticationError`, `OSError`, and `ValueError` or `OverflowError` for an invalid host or port.
        """
        progress = _Progress(asyncio.get_running_loop().time() + timeout_ms / 1000)
        try:
            async with asyncio.timeout_at(progress.deadline_s):
                return await self._connect(host, port, new_connection, progress, unserved_before, check)
        except TimeoutError as error:
            if error.errno is not None:  # it comes from the kernel
                raise
            raise ConnectionError(f"{progress.missing} within request.timeout.ms={timeout_ms:.0f}") from None

    async def _connect(
        self,
        host: str,
        port: int,
        new_connection: NewConnection,
        progress: _Progress,
        unserved_before: bool,
        check: Check | None,
    ) -> Connection:
        async with _closed_unless_ready(await self._open(host, port, new_connection, progress)) as connection:
            progress.missing = "no response to ApiVersions"
            await connection.negotiate()
            if self._login is not None:
                try:
                    await connection.log_in(self._login)
                finally:
                    progress.missing = self._login.obstacle
            elif unserved_before:
                progress.missing = "no response to SaslHandshake"
                await refuse_listener_that_requires_sasl(
                    connection.request, connection.features, uses_tls=self._uses_tls
                )
            if check is not None:
                progress.missing = "no response to Metadata"
                await check(connection)
        return connection

    async def _open(self, host: str, port: int, new_connection: NewConnection, progress: _Progress) -> Connection:
        try:
            return await _connected(host, port, new_connection, self._tls.context(), progress.deadline_s)
        except ssl.SSLError as error:
            refusal = refusal_of_handshake(error, host)
            if refusal is not None:
                raise AuthenticationError(refusal) from error
            await self._refuse_plain_listener(host, port, new_connection, progress)
            raise
        except ConnectionError as error:
            if self._uses_tls and not isinstance(error, ConnectionRefusedError):
                await self._refuse_plain_listener(host, port, new_connection, progress)
            raise

    async def _refuse_plain_listener(
        self, host: str, port: int, new_connection: NewConnection, progress: _Progress
    ) -> None:
        """Raise `AuthenticationError` if the listener speaks Kafka without TLS.

        Such a listener closes the connection at a TLS handshake; but so does a broker that is shutting down.
        """
        with contextlib.suppress(OSError):
            connection = await _connected(host, port, new_connection, None, progress.deadline_s)
            try:
                await connection.negotiate()
            finally:
                connection.close()
            raise AuthenticationError(NOT_TLS)


async def _connected(
    host: str, port: int, new_connection: NewConnection, tls: ssl.SSLContext | None, deadline_s: float
) -> Connection:
    """Connect to the first address of a host that accepts; raise the last error if none does.

    Each address but the last gets half of the time that is left: one without any response does not use up all, and a
    slow one has time for TLS.
    """
    loop = asyncio.get_running_loop()
    addresses = await _addresses_of(host, port)
    name = None if tls is None else host
    for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
        now_s = loop.time()
        try:
            async with asyncio.timeout_at(now_s + (deadline_s - now_s) / min(left, 2)):
                _, connection = await loop.create_connection(
                    new_connection, address, port, ssl=tls, server_hostname=name
                )
        except ssl.SSLError:
            raise
        except OSError:
            if address == addresses[-1]:
                raise
        else:
            return connection
    raise AssertionError("getaddrinfo() raises for a host without an address")


async def _addresses_of(host: str, port: int) -> list[Any]:
    """Return the addresses of a host. A name is looked up in a thread of its own: a loop uses its default executor."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # a name
        found = await in_a_thread(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(address[0] for *_, address in found))


class _Progress:
    """The step that is missing until a connection is ready, for the error of a timeout."""

    missing = "no connection"

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s: Final = deadline_s


@contextlib.asynccontextmanager
async def _closed_unless_ready(connection: Connection) -> AsyncIterator[Connection]:
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
