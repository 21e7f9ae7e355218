"""One client's HTTP connection, on h11. A misbehaving client can end only its own connection.

One request at a time, with limits on the amount and the time of a client's sending and reading. An idle connection
costs the broker nothing.

Only programs, and pages served by this port, may use it (`refusal_reason`). Any page open in a browser on this machine
can send requests here and, with a host name that it points here (DNS rebinding), even read the responses. Browsers
state the origin of a request in the headers Origin and Host.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import h11

from dualwrite.broker_emulator.control.errors import ControlError
from dualwrite.broker_emulator.slices import Pace, Turn, later

logger = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 1 << 20
MAX_HEAD_BYTES: Final = 16 << 10
MAX_BUFFERED_WHILE_BUSY: Final = 64 << 10
REQUEST_TIMEOUT_S: Final = 10.0
"""The time that a client may take to send a request, or to read a response."""
MAX_DISCARDED_BYTES: Final = 8 << 20
"""How much of a refused request is read, so that a client that sends all of it before reading gets the response."""
IDLE_TIMEOUT_S: Final = 75.0
"""The time that a connection may stay open without a request."""

JSON = "application/json"

_SECURITY_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_NEVER_PUBLIC = ("localhost", "local", "internal", "test")
"""Top-level names that cannot be registered publicly."""
_OWN_SITE = ("same-origin", "none")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A complete request. The values of a repeated header are joined by a comma."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    peer_host: str = ""
    """The address of the client."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete response."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]
ErrorForm = Callable[[ControlError, Mapping[str, str]], HttpResponse]
"""Makes a response of an error, with additional headers."""


def error_response(error: ControlError, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """Return an error as a JSON response."""
    described = {"code": error.code, "message": error.message, **({"known": error.known} if error.known else {})}
    body = json.dumps({"error": described}, ensure_ascii=False).encode() + b"\n"
    return HttpResponse(error.status, JSON, body, headers or {})


class HttpConnection(asyncio.Protocol):
    """Feeds h11 with received bytes, and calls `handler` for each complete request."""

    def __init__(
        self,
        handler: Handler,
        connections: set[HttpConnection],
        max_connections: int,
        error_form: ErrorForm = error_response,
    ) -> None:
        self._handler = handler
        self._error_form = error_form
        self._connections = connections
        self._max_connections = max_connections
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._transport: asyncio.Transport | None = None
        self._peer_host = ""
        self._timer: asyncio.TimerHandle | None = None
        self.work: asyncio.Task[None] | None = None
        """Serves the current request."""
        self._rest: Turn | None = None
        """Reads on in a later turn of the loop; in each turn, all connections together have one slice."""
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._buffered = 0
        """Bytes received while a request was being served."""
        self._discarded: int | None = None
        """Bytes of a refused request that arrived after the response; None if it was not refused."""

    # called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's transport is a Transport
        self._peer_host = (transport.get_extra_info("peername") or ("",))[0]
        if len(self._connections) >= self._max_connections and not self._take_place_of_idle():
            self._fail(ControlError(HTTPStatus.SERVICE_UNAVAILABLE, "busy", "too many connections"))
            return
        self._connections.add(self)
        self._close_after(REQUEST_TIMEOUT_S)

    def _take_place_of_idle(self) -> bool:
        """Evict an idle connection to admit a new one."""
        idle = next((each for each in self._connections if each.is_idle), None)
        if idle is not None:
            self._connections.discard(idle)
            idle.abort()
        return idle is not None

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        self._stop_timer()
        if self._rest is not None:
            self._rest.cancel()
        if self.work is not None and self._request is not None and self._request.method in (b"GET", b"HEAD"):
            self.work.cancel()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._discarded is not None:
            self._discarded += len(data)
            if self._discarded > MAX_DISCARDED_BYTES:
                self.abort()
            return
        if self.work is not None:
            self._buffered += len(data)
            if self._buffered > MAX_BUFFERED_WHILE_BUSY:
                self._transport.pause_reading()
        elif self._is_between_requests:
            self._close_after(REQUEST_TIMEOUT_S)  # from the first byte of a request
        self._guarded(lambda: self._http.receive_data(data))
        if self._rest is not None:
            self._transport.pause_reading()
        elif self.work is None:
            self._rest = later(self._read_on)

    def eof_received(self) -> None:
        return None  # a client that closes one direction is treated as gone

    def pause_writing(self) -> None:
        self._close_after(REQUEST_TIMEOUT_S)

    def resume_writing(self) -> None:
        self._stop_timer()
        if self.work is None:
            self._close_after(IDLE_TIMEOUT_S)

    # requests

    @property
    def is_idle(self) -> bool:
        """Whether no request is being served or about to be read."""
        return self.work is None and self._rest is None

    @property
    def _is_between_requests(self) -> bool:
        return self._request is None and not self._http.trailing_data[0]

    def _guarded(self, step: Callable[[], None]) -> None:
        """Call `step`. After a client's error, respond with it and close the connection."""
        try:
            step()
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            self._fail(ControlError(status, "malformed-request", f"malformed HTTP request: {error}"))
        except ControlError as error:
            self._fail(error)

    def _read(self) -> None:
        """Read the received bytes slice by slice: a request may come in very many chunks."""
        pace = Pace()
        while self._transport is not None and not self._transport.is_closing():
            if pace.is_over:
                self._transport.pause_reading()
                self._rest = later(self._read_on)
                return
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

    def _read_on(self) -> None:
        self._rest = None
        if self._transport is not None:
            self._transport.resume_reading()
        self._guarded(self._read)

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
            message = f"the body must have at most {MAX_BODY_BYTES} bytes"
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
            self._peer_host,
        )
        self.work = self._loop.create_task(self._work_on(request))

    # responses out

    async def _work_on(self, request: HttpRequest) -> None:
        try:
            response = await self._handler(request)
        except ControlError as error:
            response = self._error_form(error, {})
        except Exception:
            logger.exception("failed to serve %s %s", request.method, request.target)
            failure = "the emulator failed to serve this request; see its log"
            response = self._error_form(ControlError(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", failure), {})
        self.work = None
        self._write(response, with_body=request.method != "HEAD")
        self._next_request()

    def _next_request(self) -> None:
        """Wait for the next request, or serve one that is already buffered."""
        self._request = None
        if self._transport is None or self._transport.is_closing():
            return
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            self._transport.close()
            return
        self._http.start_next_cycle()
        if self._timer is None:
            self._close_after(IDLE_TIMEOUT_S)
        self._rest = later(self._read_on)

    def _write(self, response: HttpResponse, *, with_body: bool) -> None:
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            **_SECURITY_HEADERS,
            **response.headers,
        }
        self._send(
            h11.Response(status_code=response.status, headers=list(headers.items()), reason=response.status.phrase)
        )
        if with_body:
            self._send(h11.Data(data=response.body))
        self._send(h11.EndOfMessage())

    def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data and self._transport is not None:
            self._transport.write(data)

    def _fail(self, error: ControlError) -> None:
        """Send the error, if a response can still be sent, and close the connection."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._write(self._error_form(error, {"Connection": "close"}), with_body=True)
        if self._transport is None:
            return
        self._close_after(REQUEST_TIMEOUT_S)  # a client that does not read would keep the connection open
        if self._http.their_state is h11.SEND_BODY:
            # Closing with unread data would reset the connection, and the client might not get the response.
            self._discarded = 0
            self._transport.write_eof()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, and cancel the request that it serves."""
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


def refusal_reason(method: str, headers: Mapping[str, str], own_names: Collection[str]) -> str | None:
    """Return the reason to refuse a request, or None. `own_names`, in lower case, are known to lead here."""
    host = headers.get("host")
    if host is None:
        return "a request needs exactly one Host header"
    name = _name_of(host)
    if name is None or not _is_private(name, own_names):
        return (
            f"the Host {host!r} is a name that any site could make point here: use an address, localhost, or the name "
            "in --control, --schema-registry or advertised.listeners"
        )
    origin = headers.get("origin")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):  # https: behind a proxy
        return f"pages from {origin} may not use this port"
    site = headers.get("sec-fetch-site")
    is_link = method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
    if site is not None and site not in _OWN_SITE and not (is_link and headers.get("sec-fetch-dest") == "document"):
        return f"pages from another site may only link to this one (Sec-Fetch-Site: {site})"
    return None


def _name_of(host: str) -> str | None:
    """Return the name or address without the port, or None if the header is malformed."""
    if host.startswith("["):
        address, bracket, port = host[1:].partition("]")
        return address if bracket and (not port or port[0] == ":") else None
    name, _, port = host.partition(":")
    return name.lower().removesuffix(".") if name and (not port or port.isdecimal()) else None


def _is_private(name: str, own_names: Collection[str]) -> bool:
    """Return whether the name is only this port's. A name without a dot can be a top-level domain or another host."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in own_names or name.rpartition(".")[2] in _NEVER_PUBLIC
    return True
