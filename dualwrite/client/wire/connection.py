"""One connection to one broker: frames out, frames in, answers in the order of their requests.

With SASL it logs in before anything else, and again before its session ends (KIP-368). A broker takes nothing but the
login's own requests while it lasts, so others are held back for those milliseconds.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from dualwrite.client.error_texts import error_name
from dualwrite.client.messages import BrokerFeatures
from dualwrite.client.wire.codec import (
    API_VERSIONS_REQUEST_VERSION,
    Framer,
    correlation_id_of,
    decode_api_versions,
    encode_api_versions,
)
from dualwrite.client.wire.sasl import Login
from dualwrite.client.wire.tls import ONLY_TLS, refusal_of_handshake
from dualwrite.errors import Api, AuthenticationError

MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
_UNSUPPORTED_VERSION: Final = 35
_MAX_CORRELATION_ID: Final = 2**31 - 1
_LONG_S: Final = 1.0
_TLS_ALERT: Final = b"\x15\x03"
_SESSION_PART_USED: Final = (0.85, 0.95)
"""A new login begins somewhere between, so that those of many connections do not coincide; as Kafka's client does."""

AnswerCallback = Callable[[memoryview | None], None]
"""Takes the answer's body, or None when the connection was lost: the request may or may not have been carried out."""


class _Waiting(NamedTuple):
    correlation_id: int
    api: Api
    version: int
    on_answer: AnswerCallback
    deadline_s: float
    owner: object


class _Held(NamedTuple):
    api: Api
    version: int
    body: bytes | bytearray
    on_answer: AnswerCallback | None
    owner: object


class Connection(asyncio.Protocol):
    """Kafka answers the requests of a connection in their order, so the first answer is the first request's."""

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
        self._timer: asyncio.TimerHandle | None = None
        self._first_correlation_id = 0
        self._held: list[_Held] | None = None
        self._login: asyncio.Task[None] | None = None
        self._login_timer: asyncio.TimerHandle | None = None

    # ---- asyncio's callbacks --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without inheriting from it

    def data_received(self, data: bytes) -> None:
        """Called by the loop with whatever bytes came: a part of a frame, or several."""
        if self._buffer:
            self._buffer += data
            consumed = self._take_frames(bytes(self._buffer))
            del self._buffer[:consumed]
            return
        consumed = self._take_frames(data)
        if consumed < len(data):
            self._buffer += data[consumed:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop when the connection is gone, whoever closed it."""
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
        self._on_lost(self)
        while self._waiting:
            self._waiting.popleft().on_answer(None)
        for held in self._held or ():
            if held.on_answer is not None:
                held.on_answer(None)

    # ---- requests -------------------------------------------------------------------------------------------

    def send(
        self, api: Api, version: int, body: bytes | bytearray, on_answer: AnswerCallback, owner: object = None
    ) -> None:
        """Send a request in the name of `owner`; `on_answer` is called once, from the loop."""
        if self.lost or self._transport is None:
            self._loop.call_soon(on_answer, None)
        elif self._held is not None:
            self._held.append(_Held(api, version, body, on_answer, owner))
        else:
            self._send(self._transport, api, version, body, on_answer, owner)

    def _send(
        self,
        transport: asyncio.Transport,
        api: Api,
        version: int,
        body: bytes | bytearray,
        on_answer: AnswerCallback,
        owner: object,
    ) -> None:
        correlation_id = self._next_correlation_id()
        deadline_s = self._loop.time() + self._request_timeout_s
        self._waiting.append(_Waiting(correlation_id, api, version, on_answer, deadline_s, owner))
        if self._timer is None:
            self._timer = self._loop.call_later(self._request_timeout_s, self._on_timer)
        transport.write(self._framer.frame(api, version, correlation_id, body))

    def send_without_answer(self, api: Api, version: int, body: bytes | bytearray) -> None:
        """A Produce with acks=0, which no broker answers."""
        if self._held is not None:
            self._held.append(_Held(api, version, body, None, None))
        elif self._transport is not None and not self.lost:
            self._transport.write(self._framer.frame(api, version, self._next_correlation_id(), body))

    @property
    def in_flight(self) -> int:
        """How many requests have no answer yet."""
        return len(self._waiting) + (0 if self._held is None else len(self._held))

    def load(self) -> tuple[bool, int]:
        """To compare connections by: whether an answer is long in coming, and how many requests have none yet."""
        if not self._waiting:
            return False, self.in_flight
        waited_s = self._loop.time() - (self._waiting[0].deadline_s - self._request_timeout_s)
        return waited_s > _LONG_S, self.in_flight

    def waits_for(self, owner: object) -> str | None:
        """Which answer `owner` has waited longest for, and behind what of others; from any thread."""
        waiting = tuple(self._waiting)
        own = next((request.api.kafka_name for request in waiting if request.owner is owner), None)
        if own is None or waiting[0].owner is owner:
            return own
        return f"{own}, which waits behind {waiting[0].api.kafka_name} of another user of the same connection,"

    def close(self) -> None:
        """Drop the connection; requests that wait hear that no answer comes."""
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, sentence: str | None) -> None:
        if sentence is not None and self.refusal is None:
            self.refusal = AuthenticationError(sentence)

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        self.close()

    async def negotiate(self) -> None:
        """Learn what the broker offers (KIP-35). `ConnectionError` when it does not say."""
        version = API_VERSIONS_REQUEST_VERSION
        self.features = await self._ask_api_versions(version)
        if self.features.error_code == _UNSUPPORTED_VERSION:
            self.features = await self._ask_api_versions(0)
        if self.features.error_code:
            raise ConnectionError(f"ApiVersions was answered with {error_name(self.features.error_code)}")
        self._first_correlation_id = self._correlation_id + 1

    async def ask(self, api: Api, version: int, body: bytes) -> memoryview:
        """Send a request and wait for its answer's body, whether others are held back or not.

        `ConnectionError` when none came, `AuthenticationError` when the broker refused this client or is refused.
        """
        answered: asyncio.Future[memoryview | None] = self._loop.create_future()

        def on_answer(body: memoryview | None) -> None:
            if not answered.done():
                answered.set_result(body)

        if self.lost or self._transport is None:
            on_answer(None)
        else:
            self._send(self._transport, api, version, body, on_answer, None)
        answer = await answered
        if answer is None:
            hint = "; is this a listener of a Kafka broker?" if api is Api.API_VERSIONS else ""
            raise self.refusal or ConnectionError(f"{self.problem} before {api.kafka_name} was answered{hint}")
        return answer

    async def log_in(self, login: Login) -> None:
        """Say who this client is, now and whenever the session is about to end. `AuthenticationError` when refused."""
        lifetime_ms = await login.log_in(self.ask, self.features)
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
        except (AuthenticationError, OSError) as error:  # the next connection's login tells whoever waits
            self._give_up(f"the session could not be renewed ({error}), and the connection was closed")
            return
        held, self._held = self._held or [], None
        for api, version, body, on_answer, owner in held:
            if on_answer is None:
                self.send_without_answer(api, version, body)
            else:
                self.send(api, version, body, on_answer, owner)

    async def _ask_api_versions(self, version: int) -> BrokerFeatures:
        body = await self.ask(Api.API_VERSIONS, version, encode_api_versions(version))
        try:
            return decode_api_versions(body, version)
        except Exception as error:  # whatever a codec may say to foreign bytes
            raise ConnectionError(f"the answer to ApiVersions is not Kafka's ({error!r})") from error

    def _next_correlation_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & _MAX_CORRELATION_ID
        return self._correlation_id

    # ---- answers --------------------------------------------------------------------------------------------

    def _take_frames(self, data: bytes) -> int:
        """Handle the whole frames in `data`; how many bytes they took."""
        position = 0
        while len(data) - position >= 4:
            size = int.from_bytes(data[position : position + 4], "big", signed=True)
            if not 4 <= size <= MAX_FRAME_BYTES:
                if data.startswith(_TLS_ALERT, position):
                    self._refuse(ONLY_TLS)
                self._give_up(f"an answer claimed to have {size} bytes, which Kafka's do not,")
                return len(data)
            end = position + 4 + size
            if end > len(data):
                break
            self._take_frame(memoryview(data)[position + 4 : end])
            position = end
        return position

    def _take_frame(self, frame: memoryview) -> None:
        if not self._waiting or self._waiting[0].correlation_id != correlation_id_of(frame):
            # The peer does not speak Kafka, or an answer is missing: nothing after it can be trusted.
            self._give_up("an answer came that belongs to no request")
            return
        waiting = self._waiting.popleft()
        waiting.on_answer(self._framer.body(waiting.api, waiting.version, frame))

    def _on_timer(self) -> None:
        """Brokers answer in order, so the oldest request says whether the connection is stuck."""
        self._timer = None
        if not self._waiting:
            return
        left_s = self._waiting[0].deadline_s - self._loop.time()
        if left_s <= 0:
            api = self._waiting[0].api.kafka_name
            self._give_up(f"{api} was not answered within request.timeout.ms={self._request_timeout_s * 1000:.0f}")
        else:
            self._timer = self._loop.call_later(left_s, self._on_timer)
