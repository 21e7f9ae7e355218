"""The control port with clients that are careless, hostile, or gone."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator.control import http_connection, http_server, server
from dualwrite.broker_emulator.control.http_connection import MAX_BODY_BYTES, HttpConnection, refusal_reason
from dualwrite.broker_emulator.emulator import Emulator
from tests.emulator.control.client import Client
from tests.emulator.inside import control_server_of
from tests.support.conditions import until

HOST = "Host: 127.0.0.1\r\n"


class Raw:
    """A connection on which any bytes can be sent."""

    def __init__(self, client: Client) -> None:
        self.socket = socket.create_connection((client.host, client.port), timeout=20)
        self._reader = self.socket.makefile("rb")

    def close(self) -> None:
        self._reader.close()
        self.socket.close()

    def send(self, data: str | bytes) -> None:
        self.socket.sendall(data.encode() if isinstance(data, str) else data)

    def status(self) -> int:
        """Read the next response, and return its status."""
        status = int(self._reader.readline().split()[1])
        length = 0
        while (line := self._reader.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        self._reader.read(length)
        return status

    def rest(self) -> bytes:
        """Read until the other side closes, and return all bytes."""
        data = b""
        try:
            while chunk := self._reader.read1(65536):
                data += chunk
        except ConnectionResetError:
            pass
        return data


@pytest.fixture
def raw(client: Client) -> Iterator[Raw]:
    connection = Raw(client)
    yield connection
    connection.close()


def open_connections(emulator: Emulator) -> int:
    return len(control_server_of(emulator).connections)


def work_of(emulator: Emulator, raw: Raw) -> asyncio.Task[None] | None:
    """Return the work on the request of one connection: others may be at work still."""
    address = raw.socket.getsockname()
    for each in list(control_server_of(emulator).connections):
        if each._transport is not None and each._transport.get_extra_info("peername") == address:
            return each.work
    return None


# paths, methods, bodies


def test_an_unknown_path_is_refused_with_the_known_ones(client: Client) -> None:
    error = client.refused(404, "GET", "/v1/fault")
    assert error["code"] == "unknown-path"
    assert "did you mean '/v1/faults'?" in error["message"]
    assert "/v1/nodes/{node}/crash" in error["known"]
    client.refused(404, "GET", "/v1/faults/")
    client.refused(404, "GET", "/v2/faults")
    client.refused(404, "GET", "//etc/passwd")


def test_a_wrong_method_is_answered_with_the_allowed_ones(client: Client) -> None:
    answer = client.ask("PATCH", "/v1/faults")
    assert (answer.status, answer.error["code"]) == (405, "wrong-method")
    assert answer.headers["Allow"] == "GET, POST, DELETE, HEAD"
    assert client.refused(405, "GET", "/v1/nodes/0/crash")["known"] == ["POST"]


def test_head_is_a_get_without_the_body(client: Client) -> None:
    answer = client.ask("HEAD", "/v1/health")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 10


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/faults?x=1", "has no query parameters: 'x' is not known"),
        ("/v1/state?limt=1", "'query.limt' is not known; did you mean 'limit'?"),
        ("/v1/state?limit=0", "'query.limit' must be at least 1, not 0"),
        ("/v1/state?limit=many", "'query.limit' must be of type integer, not \"many\""),
        ("/v1/state?limit=1&limit=2", "names 'limit' twice"),
        ("/v1/state?internal=yes", "'query.internal' must be of type boolean"),
        ("/v1/state?limit", "the query must be name=value"),
        ("/v1/state?limit=%ff", "the query must be name=value"),
        ("/v1/topics/%ff", "is not UTF-8"),
        ("/v1/nodes/one", "'path.node' must be of type integer, not \"one\""),
    ],
)
def test_invalid_paths_and_queries_are_refused(client: Client, path: str, said: str) -> None:
    assert said in client.refused(400, "GET", path)["message"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b'{"point": "before-load", "point": "before-marker"}', "'point' occurs twice"),
        (b'{"producer_id": NaN, "point": "before-load"}', "NaN is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b'{"producer_id": ' + b"9" * 5000 + b"}", "the body is not JSON"),
        (b"null", "the body must be an object"),
    ],
)
def test_invalid_json_is_refused(client: Client, body: bytes, said: str) -> None:
    answer = client.ask("POST", "/v1/holds", raw=body, headers={"Content-Type": "application/json"})
    assert answer.status == 400
    assert said in answer.error["message"]


def test_a_body_must_be_declared_as_json(client: Client) -> None:
    """Without a preflight request, a page can send forms and text anywhere, but not JSON."""
    answer = client.ask("POST", "/v1/holds", raw=b'{"point": "before-load"}', headers={"Content-Type": "text/plain"})
    assert answer.status == 415
    assert "curl --json" in answer.error["message"]
    assert client.ask("POST", "/v1/nodes/0/crash", {}).error["message"].endswith("has no body")


# permitted hosts


def test_other_origins_may_not_send_requests(client: Client) -> None:
    own = f"http://127.0.0.1:{client.port}"
    for origin, status in ((own, 200), ("http://evil.example", 403), ("null", 403), ("http://127.0.0.1:1", 403)):
        answer = client.ask("POST", "/v1/clock/advance", {"duration_ms": 0}, headers={"Origin": origin})
        assert answer.status == status
        assert not any(name.startswith("Access-Control-") for name in answer.headers)


@pytest.mark.parametrize(
    ("host", "is_answered"),
    [
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("192.168.1.5", True),
        ("localhost:8080", True),
        ("broker:8080", True),  # the advertised listener
        ("neighbour:8080", False),
        ("ai", False),  # a top-level domain with an address
        ("broker.svc.cluster.local", True),
        ("kafka.example.com", True),  # the configured listener
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:8080", False),
        ("", False),
        ("[::1", False),
        ("a:b:c", False),
    ],
)
def test_names_that_anybody_could_let_point_here_are_refused(host: str, is_answered: bool) -> None:
    assert (refusal_reason("GET", {"host": host}, {"kafka.example.com", "broker"}) is None) == is_answered


def test_browsers_say_where_a_request_is_from() -> None:
    headers = {"host": "localhost", "sec-fetch-site": "cross-site"}
    link = {**headers, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert refusal_reason("GET", link, ()) is None
    for method, kind in (("POST", headers), ("POST", link), ("GET", headers), ("HEAD", headers)):
        assert "cross-site" in (refusal_reason(method, kind, ()) or "")
    assert "cross-site" in (refusal_reason("GET", {**link, "sec-fetch-dest": "iframe"}, ()) or "")
    assert "same-site" in (refusal_reason("GET", {**headers, "sec-fetch-site": "same-site"}, ()) or "")
    assert refusal_reason("POST", {**headers, "sec-fetch-site": "same-origin"}, ()) is None
    assert refusal_reason("GET", {}, ()) == "a request needs exactly one Host header"


def test_responses_are_kept_from_other_origins_and_caches(client: Client) -> None:
    headers = client.ask("GET", "/").headers
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"


# HTTP


@pytest.mark.parametrize(
    ("garbage", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50, b"400"),  # TLS
        (b"\x00\x00\x00\x10\x00\x12\x00\x03\x00\x00\x00\x01\x00\x01c\x00\r\n\r\n", b"400"),  # Kafka
        (b"GET\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),  # no Host
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nx: " + b"a" * 20_000, b"431"),
    ],
    ids=["tls", "kafka", "no-path", "no-host", "two-hosts", "negative", "two-lengths", "long-path", "long-header"],
)
def test_garbage_is_refused_and_ends_its_connection(client: Client, raw: Raw, garbage: bytes, status: bytes) -> None:
    raw.send(garbage)
    answered = raw.rest()
    assert answered.split()[1] == status
    assert client.get("/v1/health")


def test_a_body_that_is_too_large_is_not_read(raw: Raw) -> None:
    raw.send(f"POST /v1/holds HTTP/1.1\r\n{HOST}Content-Length: {MAX_BODY_BYTES + 1}\r\n\r\n")
    assert raw.rest().startswith(b"HTTP/1.1 413")


def test_a_body_without_an_end_is_not_read_to_the_end(raw: Raw) -> None:
    raw.send(f"POST /v1/holds HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n")
    with pytest.raises(ConnectionError):
        for _ in range(1 << 10):
            raw.send(b"100000\r\n" + bytes(1 << 20) + b"\r\n")


def test_connections_are_kept_and_requests_may_come_in_pieces_or_together(raw: Raw) -> None:
    request = f"GET /v1/clock HTTP/1.1\r\n{HOST}\r\n"
    for character in request:
        raw.send(character)
    assert raw.status() == 200
    raw.send(request * 3)
    for _ in range(3):
        assert raw.status() == 200
    body = '{"duration_ms": 0}'
    expects = f"Expect: 100-continue\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    raw.send(f"POST /v1/clock/advance HTTP/1.1\r\n{HOST}{expects}\r\n")
    assert raw.status() == 100
    raw.send(body)
    assert raw.status() == 200
    raw.send(f"GET /v1/clock HTTP/1.0\r\n{HOST}\r\n")
    assert raw.rest().endswith(b"}\n")


def test_a_request_of_a_disconnected_client_stops_waiting(client: Client, controlled: Emulator, raw: Raw) -> None:
    added = client.post("/v1/faults", {"api": "EndTxn"}, 201)
    raw.send(f"GET /v1/faults/{added['fault_id']}/wait?hits=1&timeout_ms=60000 HTTP/1.1\r\n{HOST}\r\n")
    until(lambda: work_of(controlled, raw) is not None)
    waiting = work_of(controlled, raw)
    assert waiting is not None
    raw.close()
    until(waiting.done)
    assert waiting.cancelled()


def test_more_connections_than_there_may_be(
    client: Client, controlled: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: open_connections(controlled) == 0)
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 2)
    kept = [Raw(client), Raw(client)]
    until(lambda: open_connections(controlled) == 2)
    assert client.get("/v1/health")  # in the place of one that is only open
    for connection in kept:
        connection.close()
    until(lambda: open_connections(controlled) == 0)
    assert client.get("/v1/health")


def test_requests_that_wait_leave_room_for_health_checks(
    client: Client, controlled: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_IN_PROGRESS", 2)
    fault = client.post("/v1/faults", {"api": "EndTxn"}, 201)["fault_id"]
    waiting = [Raw(client), Raw(client)]
    for each in waiting:
        each.send(f"GET /v1/faults/{fault}/wait?hits=1&timeout_ms=60000 HTTP/1.1\r\n{HOST}\r\n")
    until(lambda: client.ask("GET", f"/v1/faults/{fault}").status == 503)
    assert client.get("/v1/health")
    for each in waiting:
        each.close()
    until(lambda: client.ask("GET", f"/v1/faults/{fault}").status == 200)
    client.ask("DELETE", f"/v1/faults/{fault}")


class Transport(asyncio.Transport):
    """A transport that keeps all written bytes, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.is_aborted

    def close(self) -> None:
        self.is_aborted = True

    def abort(self) -> None:
        self.is_aborted = True


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n1"])
def test_a_client_that_sends_too_slowly_is_dropped(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(http_connection, "REQUEST_TIMEOUT_S", 0.01)

    async def connect() -> Transport:
        transport = Transport()
        connection = HttpConnection(_never, set(), 10)
        connection.connection_made(transport)
        if sent:
            connection.data_received(sent)
        await asyncio.sleep(0.05)
        return transport

    assert asyncio.run(connect()).is_aborted


async def _never(request: object) -> http_connection.HttpResponse:
    raise AssertionError("it is not whole")


def test_an_internal_failure_is_returned_and_logged(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "write", lambda value: 1 / 0)
    error = client.refused(500, "GET", "/v1/health")
    assert error["code"] == "internal"
    assert "ZeroDivisionError" in caplog.text


def test_the_control_port_is_off_by_default_and_ends_with_the_emulator() -> None:
    with Emulator() as emulator:
        assert emulator.control_url == ""
    with Emulator(control="127.0.0.1:0") as emulator:
        client = Client(emulator.control_url)
        connection = Raw(client)
        assert json.dumps(client.get("/v1/health"))
    assert emulator.control_url == ""
    assert connection.rest() == b""
    with pytest.raises(OSError):
        Raw(client)


@pytest.mark.parametrize("address", ["8080", "127.0.0.1", "127.0.0.1:99999", ":8080"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="control takes host:port"):
        Emulator(control=address)
