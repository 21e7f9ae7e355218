"""A login against a scripted broker; no sockets."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import threading
import traceback
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from dualwrite.client.messages import BrokerFeatures
from dualwrite.client.wire.connection import Connector
from dualwrite.client.wire.security import Login, refuse_listener_that_requires_sasl
from dualwrite.errors import Api, AuthenticationError
from dualwrite.security_config import SecurityConfig

FEATURES = BrokerFeatures(0, {Api.SASL_HANDSHAKE: (0, 1), Api.SASL_AUTHENTICATE: (0, 2)}, 2)

Answerer = Callable[[bytes], tuple[int, str | None, bytes, int]]


class Broker:
    """A broker that accepts `mechanisms`; `answer` returns the response to each message of a mechanism."""

    def __init__(self, answer: Answerer, mechanisms: tuple[str, ...], error_code: int = 0) -> None:
        self.asked: list[tuple[Api, int]] = []
        self.messages: list[bytes] = []
        self._answer = answer
        self._mechanisms = mechanisms
        self._error_code = error_code

    async def ask(self, api: Api, version: int, body: bytes) -> memoryview:
        self.asked.append((api, version))
        if api is Api.SASL_HANDSHAKE:
            wanted = SaslHandshakeRequest.decode(body, version=version).mechanism
            error_code = self._error_code or (0 if wanted in self._mechanisms else 33)
            answer: ApiMessage = SaslHandshakeResponse(
                error_code=error_code, mechanisms=list(self._mechanisms), version=version
            )
        else:
            message = bytes(SaslAuthenticateRequest.decode(body, version=version).auth_bytes)
            self.messages.append(message)
            error_code, text, auth_bytes, lifetime_ms = self._answer(message)
            answer = SaslAuthenticateResponse(
                error_code=error_code,
                error_message=text,
                auth_bytes=auth_bytes,
                session_lifetime_ms=lifetime_ms,
                version=version,
            )
        return memoryview(bytes(answer.encode(version=version)))


def log_in(broker: Broker, config: SecurityConfig, features: BrokerFeatures = FEATURES) -> int:
    return asyncio.run(Login(config).log_in(broker.ask, features))


def by_password(mechanism: str, username: str = "user", password: str = "pencil") -> SecurityConfig:
    return SecurityConfig(
        security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, sasl_username=username, sasl_password=password
    )


def by_token(provider: Callable[[], Any], **more: Any) -> SecurityConfig:
    return SecurityConfig(
        security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=provider, **more
    )


def test_plain() -> None:
    broker = Broker(lambda _: (0, None, b"", 0), ("PLAIN",))
    assert log_in(broker, by_password("PLAIN")) == 0
    assert broker.messages == [b"user\0user\0pencil"]
    assert broker.asked == [(Api.SASL_HANDSHAKE, 1), (Api.SASL_AUTHENTICATE, 2)]


def test_the_session_has_a_lifetime() -> None:
    assert log_in(Broker(lambda _: (0, None, b"", 3000), ("PLAIN",)), by_password("PLAIN")) == 3000


class ScramServer:
    """The server side of SCRAM (RFC 5802), for one user."""

    def __init__(self, password: bytes, *, proves: bool = True, iterations: str = "i=4096") -> None:
        self._iterations = iterations
        self._salted = hashlib.pbkdf2_hmac("sha256", password, b"salt", 4096)
        self._proves = proves
        self._said = ""

    def __call__(self, message: bytes) -> tuple[int, str | None, bytes, int]:
        text = message.decode()
        if text.startswith("n,,"):
            nonce = text.partition("r=")[2] + "server"
            first = f"r={nonce},s={base64.b64encode(b'salt').decode()},{self._iterations}"
            self._said = f"{text.removeprefix('n,,')},{first},c=biws,r={nonce}"
            return 0, None, first.encode(), 0
        key = self._hmac(self._salted, b"Server Key" if self._proves else b"what a stranger would guess")
        return 0, None, b"v=" + base64.b64encode(self._hmac(key, self._said.encode())), 0

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, "sha256")


def test_scram() -> None:
    broker = Broker(ScramServer(b"pencil"), ("SCRAM-SHA-256",))
    assert log_in(broker, by_password("SCRAM-SHA-256", "a,b=c")) == 0
    assert broker.messages[0].startswith(b"n,,n=a=2Cb=3Dc,r=")
    assert b"pencil" not in b"".join(broker.messages)


def test_a_broker_without_the_password_is_rejected() -> None:
    broker = Broker(ScramServer(b"pencil", proves=False), ("SCRAM-SHA-256",))
    with pytest.raises(AuthenticationError, match="does not prove that it knows the password"):
        log_in(broker, by_password("SCRAM-SHA-256"))


@pytest.mark.parametrize("iterations", [1, 4095])
def test_a_broker_that_asks_for_few_iterations_gets_no_proof(iterations: int) -> None:
    """A false broker could find out the password from a proof that costs little to try."""
    broker = Broker(ScramServer(b"pencil", iterations=f"i={iterations}"), ("SCRAM-SHA-256",))
    with pytest.raises(AuthenticationError, match=f"asks for {iterations} iterations, at least 4096 are needed"):
        log_in(broker, by_password("SCRAM-SHA-256"))
    assert len(broker.messages) == 1


@pytest.mark.parametrize(
    "iterations", ["i=5000,i=1", "i= 1", "i=+1", "i=1_0", "x=y", "i=5000,s=c2FsdA==", "m=x,i=5000"]
)
def test_iterations_that_can_be_read_in_two_ways_get_no_proof(iterations: str) -> None:
    broker = Broker(ScramServer(b"pencil", iterations=iterations), ("SCRAM-SHA-256",))
    with pytest.raises(AuthenticationError, match="or is not SCRAM"):
        log_in(broker, by_password("SCRAM-SHA-256"))
    assert len(broker.messages) == 1


@pytest.mark.parametrize("answer", [b"", b"e=unknown-user", b"r=x,s=y,i=z", b"\xff"])
def test_a_broker_that_does_not_speak_scram(answer: bytes) -> None:
    with pytest.raises(AuthenticationError, match="does not prove that it knows the password, or is not SCRAM"):
        log_in(Broker(lambda _: (0, None, answer, 0), ("SCRAM-SHA-256",)), by_password("SCRAM-SHA-256"))


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_a_broker_that_never_comes_to_an_end(mechanism: str) -> None:
    config = by_token(lambda: "t") if mechanism == "OAUTHBEARER" else by_password(mechanism)
    broker = Broker(lambda _: (0, None, b"more", 0), (mechanism,))
    with pytest.raises(AuthenticationError, match=f"are not valid {mechanism}"):
        log_in(broker, config)


def test_tokens_are_asked_for_off_the_loop() -> None:
    threads: list[threading.Thread] = []

    def provider() -> str:
        threads.append(threading.current_thread())
        return "abc.def."

    broker = Broker(lambda _: (0, None, b"", 0), ("OAUTHBEARER",))
    log_in(broker, by_token(provider, sasl_oauth_extensions=(("pool", "p"),)))
    assert broker.messages == [b"n,,\x01auth=Bearer abc.def.\x01pool=p\x01\x01"]
    assert threads[0] is not threading.main_thread()
    assert threads[0].daemon


def test_why_a_token_is_refused() -> None:
    answers = iter([(0, None, b'{"status":"invalid_token"}', 0), (58, None, b"", 0)])
    broker = Broker(lambda _: next(answers), ("OAUTHBEARER",))
    with pytest.raises(AuthenticationError, match=r'refused: {"status":"invalid_token"}; check the token') as caught:
        log_in(broker, by_token(lambda: "abc"))
    assert broker.messages[1] == b"\x01"
    assert caught.value.error_code == 58


def test_a_failing_provider_is_named_without_its_message() -> None:
    def provider() -> str:
        raise LookupError("the secret")

    with pytest.raises(AuthenticationError) as caught:
        log_in(Broker(lambda _: (0, None, b"", 0), ("OAUTHBEARER",)), by_token(provider))
    assert str(caught.value) == "sasl.oauth.token.provider raised LookupError: no token"
    assert "the secret" not in "".join(traceback.format_exception(caught.value))


async def test_a_provider_that_does_not_return_is_called_once() -> None:
    threads: list[threading.Thread] = []
    returns, called = threading.Event(), threading.Event()

    def provider() -> str:
        threads.append(threading.current_thread())
        called.set()
        assert returns.wait(60)
        return "token"

    broker = Broker(lambda _: (0, None, b"", 0), ("OAUTHBEARER",))
    login = Login(by_token(provider))
    first = asyncio.ensure_future(login.log_in(broker.ask, FEATURES))
    assert await asyncio.to_thread(called.wait, 60)
    first.cancel()
    second = asyncio.ensure_future(login.log_in(broker.ask, FEATURES))
    await asyncio.sleep(0)
    returns.set()
    await second
    assert first.cancelled()
    assert len(threads) == 1
    await login.log_in(broker.ask, FEATURES)
    assert len(threads) == 2, "a later login gets a new token"


async def test_a_provider_that_never_returns_is_named_and_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, returns, calls = asyncio.get_running_loop(), threading.Event(), list[str]()
    now_s = loop.time()

    def provider() -> str:
        nonlocal now_s
        calls.append("token")
        if len(calls) == 1:
            now_s += 30
            loop.call_soon_threadsafe(int)  # the loop looks at its clock
            assert returns.wait(60)
        return "token"

    broker = Broker(lambda _: (0, None, b"", 0), ("OAUTHBEARER",))
    connection = Mock(negotiate=AsyncMock(), log_in=lambda login: login.log_in(broker.ask, FEATURES))
    monkeypatch.setattr(loop, "create_connection", AsyncMock(return_value=(None, connection)))
    monkeypatch.setattr(loop, "time", lambda: now_s)
    connector = Connector(by_token(provider))
    with pytest.raises(ConnectionError, match=r"sasl\.oauth\.token\.provider has not returned"):
        await connector.connect("127.0.0.1", 9092, Mock(), timeout_ms=30_000)
    assert await connector.connect("127.0.0.1", 9092, Mock(), timeout_ms=30_000) is connection
    returns.set()


def test_a_thread_that_cannot_be_started_says_nothing_about_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="can't start new thread for a step that blocks"):
        log_in(Broker(lambda _: (0, None, b"", 0), ("PLAIN",)), by_password("PLAIN"))


def test_refusals_of_the_handshake() -> None:
    broker = Broker(lambda _: (0, None, b"", 0), ("SCRAM-SHA-512", "OAUTHBEARER"))
    with pytest.raises(AuthenticationError, match="it accepts SCRAM-SHA-512, OAUTHBEARER: set one of those"):
        log_in(broker, by_password("PLAIN"))
    with pytest.raises(AuthenticationError, match=r"accepts no logins: set security\.protocol=PLAINTEXT"):
        log_in(Broker(lambda _: (0, None, b"", 0), (), error_code=34), by_password("PLAIN"))
    with pytest.raises(AuthenticationError, match="does not support SaslHandshake v1"):
        log_in(broker, by_password("PLAIN"), BrokerFeatures(0, {}, 0))
    assert broker.messages == []


def test_a_listener_says_whether_it_wants_a_login() -> None:
    def look(broker: Broker, features: BrokerFeatures = FEATURES) -> None:
        asyncio.run(refuse_listener_that_requires_sasl(broker.ask, features, uses_tls=True))

    with pytest.raises(AuthenticationError, match=r"set security\.protocol=SASL_SSL, and .* it accepts: PLAIN"):
        look(Broker(lambda _: (0, None, b"", 0), ("PLAIN",)))
    look(Broker(lambda _: (0, None, b"", 0), (), error_code=34))
    look(Broker(lambda _: (0, None, b"", 0), ("PLAIN",)), BrokerFeatures(0, {}, 0))
