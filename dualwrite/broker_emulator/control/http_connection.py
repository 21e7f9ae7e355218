"""One client's HTTP connection, on h11. Whatever it sends or leaves undone ends nothing but itself.

One request at a time, with limits on how much and how slowly a client may send and read. A connection costs the broker
nothing while it is idle.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import h11

from dualwrite.broker_emulator.control.errors import ControlError

logger = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 1 << 20
MAX_HEAD_BYTES: Final = 16 << 10
MAX_BUFFERED_WHILE_BUSY: Final = 64 << 10
REQUEST_TIMEOUT_S: Final = 10.0
"""How long a client may take to send a request, or to read an answer."""
IDLE_TIMEOUT_S: Final = 75.0
"""How long a connection may stay without a request."""

JSON = "application/json"

_SECURITY_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A whole request. Of a header that is given twice, nothing is kept but that there are two."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


Answer = Callable[[HttpRequest], Awaitable[HttpAnswer]]


def error_answer(error: ControlError, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    """An error as JSON."""
    described = {"code": error.code, "message": error.message, **({"known": error.known} if error.known else {})}
    body = json.dumps({"error": described}, ensure_ascii=False).encode() + b"\n"
    return HttpAnswer(error.status, JSON, body, headers or {})


class HttpConnection(asyncio.Protocol):
    """Feeds h11 with what arrives, and has each whole request answered by `answer`."""

    def __init__(self, answer: Answer, connections: set[HttpConnection], max_connections: int) -> None:
        self._answer = answer
        self._connections = connections
        self._max_connections = max_connections
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.work: asyncio.Task[None] | None = None
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._buffered = 0
        """Bytes that came while a request was in work."""

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's transport is a Transport
        if len(self._connections) >= self._max_connections:
            self._fail(ControlError(HTTPStatus.SERVICE_UNAVAILABLE, "busy", "too many connections"))
            return
        self._connections.add(self)
        self._close_after(REQUEST_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        self._stop_timer()
        if self.work is not None and self._request is not None and self._request.method in (b"GET", b"HEAD"):
            self.work.cancel()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self.work is not None:
            self._buffered += len(data)
            if self._buffered > MAX_BUFFERED_WHILE_BUSY:
                self._transport.pause_reading()
        elif self._is_idle:
            self._close_after(REQUEST_TIMEOUT_S)  # from the first byte of a request on
        self._guarded(lambda: self._http.receive_data(data))
        if self.work is None:
            self._guarded(self._read)

    def eof_received(self) -> None:
        return None  # who closes one direction is gone

    def pause_writing(self) -> None:
        self._close_after(REQUEST_TIMEOUT_S)

    def resume_writing(self) -> None:
        self._stop_timer()
        if self.work is None:
            self._close_after(IDLE_TIMEOUT_S)

    # requests in

    @property
    def _is_idle(self) -> bool:
        return self._request is None and not self._http.trailing_data[0]

    def _guarded(self, step: Callable[[], None]) -> None:
        """Do `step`; what the client did wrong is answered, and ends the connection."""
        try:
            step()
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            self._fail(ControlError(status, "malformed-request", f"this is not HTTP as it is spoken here: {error}"))
        except ControlError as error:
            self._fail(error)

    def _read(self) -> None:
        while self._transport is not None and not self._transport.is_closing():
            event = self._http.next_event()
            match event:
                case h11.Request():
                    self._begin(event)
                case h11.Data():
                    self._body += event.data
                    self._check_size(len(self._body))
                case h11.EndOfMessage():
                    self._serve()
                    return
                case _:  # NEED_DATA, PAUSED, ConnectionClosed
                    return

    def _begin(self, request: h11.Request) -> None:
        self._request = request
        self._body.clear()
        headers = dict(request.headers)
        self._check_size(int(headers.get(b"content-length", b"0")))
        if headers.get(b"expect", b"").lower() == b"100-continue":
            self._send(h11.InformationalResponse(status_code=100, headers=[]))

    @staticmethod
    def _check_size(size: int) -> None:
        if size > MAX_BODY_BYTES:
            message = f"a body has at most {MAX_BODY_BYTES} bytes"
            raise ControlError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", message)

    def _serve(self) -> None:
        assert self._request is not None
        self._stop_timer()
        self._buffered = 0
        request = HttpRequest(
            self._request.method.decode("ascii"),
            self._request.target.decode("ascii"),
            _headers(self._request),
            bytes(self._body),
        )
        self.work = self._loop.create_task(self._work_on(request))

    # answers out

    async def _work_on(self, request: HttpRequest) -> None:
        try:
            answer = await self._answer(request)
        except ControlError as error:
            answer = error_answer(error)
        except Exception:
            logger.exception("control over HTTP failed at %s %s", request.method, request.target)
            failure = "the emulator failed at this request; its log says how"
            answer = error_answer(ControlError(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", failure))
        self.work = None
        self._write(answer, with_body=request.method != "HEAD")
        self._go_on()

    def _go_on(self) -> None:
        """Wait for the next request, or serve the one that came meanwhile."""
        self._request = None
        if self._transport is None or self._transport.is_closing():
            return
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            self._transport.close()
            return
        self._http.start_next_cycle()
        self._transport.resume_reading()
        if self._timer is None:
            self._close_after(IDLE_TIMEOUT_S)
        self._guarded(self._read)

    def _write(self, answer: HttpAnswer, *, with_body: bool) -> None:
        headers = {
            "Content-Type": answer.content_type,
            "Content-Length": str(len(answer.body)),
            **_SECURITY_HEADERS,
            **answer.headers,
        }
        self._send(h11.Response(status_code=answer.status, headers=list(headers.items()), reason=answer.status.phrase))
        if with_body:
            self._send(h11.Data(data=answer.body))
        self._send(h11.EndOfMessage())

    def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data and self._transport is not None:
            self._transport.write(data)

    def _fail(self, error: ControlError) -> None:
        """Say what was wrong, if the client can still be told, and close."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._write(error_answer(error, {"Connection": "close"}), with_body=True)
        if self._transport is not None:
            self._close_after(REQUEST_TIMEOUT_S)  # who does not read would keep it open
            self._transport.close()

    def abort(self) -> None:
        """Break the connection."""
        self._stop_timer()
        if self.work is not None:
            self.work.cancel()
        if self._transport is not None:
            self._transport.abort()

    # time

    def _close_after(self, timeout_s: float) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(timeout_s, self.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _headers(request: h11.Request) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in request.headers:
        text = name.decode("ascii")
        headers[text] = f"{headers[text]}, {value.decode('latin-1')}" if text in headers else value.decode("latin-1")
    return headers
