"""A connection that logs in again holds all other requests back meanwhile, in order; no sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dualwrite.client.messages import BrokerFeatures
from dualwrite.client.wire.connection import Connection
from dualwrite.client.wire.frames import Framer
from dualwrite.client.wire.security import SendRequest
from dualwrite.errors import Api, AuthenticationError


class FakeTransport:
    def __init__(self) -> None:
        self.written: list[tuple[int, bytes]] = []
        self.aborted = False

    def writelines(self, pieces: list[bytes]) -> None:
        data = b"".join(pieces)
        self.written.append((int.from_bytes(data[4:6], "big"), data))

    def abort(self) -> None:
        self.aborted = True


class FakeLogin:
    """A login with one request; every session except the first is unlimited."""

    def __init__(self, lifetime_ms: int, second: Exception | None = None) -> None:
        self.logins = 0
        self._lifetime_ms = lifetime_ms
        self._second = second

    async def log_in(self, request: SendRequest, features: BrokerFeatures) -> int:
        self.logins += 1
        await request(Api.SASL_HANDSHAKE, 1, b"?")
        if self.logins > 1 and self._second is not None:
            raise self._second
        return self._lifetime_ms if self.logins == 1 else 0


class Fixture:
    def __init__(self) -> None:
        self.transport = FakeTransport()
        self.answers: list[bytes | None] = []
        self.lost: list[Connection] = []
        self.connection = Connection(framer=Framer("c"), request_timeout_ms=10_000, on_lost=self.lost.append)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self.answered = 0

    @property
    def written(self) -> list[int]:
        return [api for api, _ in self.transport.written]

    def produce(self) -> None:
        self.connection.send(
            Api.PRODUCE, 3, b"", lambda body: self.answers.append(None if body is None else bytes(body))
        )

    def answer(self, body: bytes = b"x") -> None:
        self.answered += 1
        frame = self.answered.to_bytes(4, "big") + body
        self.connection.data_received(len(frame).to_bytes(4, "big") + frame)

    async def logged_in(self, login: FakeLogin) -> None:
        task = asyncio.ensure_future(self.connection.log_in(login))  # type: ignore[arg-type]
        await self.until(lambda: len(self.written) == 1)
        self.answer()
        await task

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - anything may bring it about
                await asyncio.sleep(0)


SASL_HANDSHAKE, PRODUCE = int(Api.SASL_HANDSHAKE), int(Api.PRODUCE)


async def test_requests_wait_for_the_new_login() -> None:
    fixture, login = Fixture(), FakeLogin(lifetime_ms=1)
    await fixture.logged_in(login)
    fixture.produce()  # on its way when the session is renewed
    await fixture.until(lambda: fixture.written == [SASL_HANDSHAKE, PRODUCE, SASL_HANDSHAKE])
    fixture.produce()
    fixture.connection.send_without_response(Api.PRODUCE, 3, b"")
    fixture.produce()
    fixture.answer(b"before")
    assert fixture.answers == [b"before"]
    assert fixture.written == [SASL_HANDSHAKE, PRODUCE, SASL_HANDSHAKE]
    fixture.answer()
    await fixture.until(lambda: fixture.written[3:] == [PRODUCE, PRODUCE, PRODUCE])
    fixture.answer(b"first")
    fixture.answered += 1  # acks=0
    fixture.answer(b"second")
    assert fixture.answers == [b"before", b"first", b"second"]
    assert login.logins == 2
    assert not fixture.transport.aborted


@pytest.mark.parametrize("error", [AuthenticationError("no"), ConnectionError("gone")])
async def test_a_login_that_fails_ends_the_connection(error: Exception) -> None:
    fixture = Fixture()
    await fixture.logged_in(FakeLogin(lifetime_ms=1, second=error))
    await fixture.until(lambda: len(fixture.written) == 2)
    fixture.produce()
    fixture.answer()
    await fixture.until(lambda: fixture.transport.aborted)
    fixture.connection.connection_lost(None)
    assert fixture.answers == [None]
    assert "the session could not be renewed" in fixture.connection.problem


async def test_a_connection_that_is_lost_during_the_login_answers_everybody() -> None:
    fixture = Fixture()
    await fixture.logged_in(FakeLogin(lifetime_ms=1))
    await fixture.until(lambda: len(fixture.written) == 2)
    fixture.produce()
    fixture.connection.connection_lost(None)
    assert fixture.answers == [None]
    assert fixture.lost == [fixture.connection]


async def test_a_session_without_an_end_is_left_alone() -> None:
    fixture = Fixture()
    await fixture.logged_in(FakeLogin(lifetime_ms=0))
    fixture.produce()
    assert fixture.written == [SASL_HANDSHAKE, PRODUCE]


async def test_a_connection_lost_before_serving_anything_is_reported() -> None:
    for served in (False, True):
        fixture = Fixture()
        await fixture.logged_in(FakeLogin(lifetime_ms=0))
        for _ in range(2):
            fixture.produce()
        if served:
            fixture.answer()
        fixture.connection.connection_lost(None)
        assert fixture.connection.unserved is not served


async def test_an_alert_of_tls_is_recognised() -> None:
    fixture = Fixture()
    asked = asyncio.ensure_future(fixture.connection.request(Api.API_VERSIONS, 3, b""))
    await asyncio.sleep(0)
    fixture.connection.data_received(b"\x15\x03\x03\x00\x02\x02\x50")
    fixture.connection.connection_lost(None)
    with pytest.raises(AuthenticationError, match="the listener speaks TLS"):
        await asked
