"""A connection that gets bytes, in whole frames and one at a time; no sockets."""

from __future__ import annotations

import asyncio

import pytest

from dualwrite.client.wire import connection as module
from dualwrite.client.wire.connection import Connection, Connector
from dualwrite.client.wire.frames import Framer
from dualwrite.errors import Api
from dualwrite.security_config import SecurityConfig


class FakeTransport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.aborted = False
        self.ended = asyncio.Event()

    def writelines(self, pieces: list[bytes]) -> None:
        self.written.append(b"".join(pieces))

    def abort(self) -> None:
        self.aborted = True
        self.ended.set()


class Fixture:
    def __init__(self, timeout_ms: float = 10_000) -> None:
        self.transport = FakeTransport()
        self.lost: list[Connection] = []
        self.answers: list[bytes | None] = []
        self.connection = Connection(framer=Framer("c"), request_timeout_ms=timeout_ms, on_lost=self.lost.append)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def ask(self, count: int = 1) -> None:
        for _ in range(count):
            self.connection.send(Api.END_TXN, 5, b"?", self._answered)

    def _answered(self, body: memoryview | None) -> None:
        self.answers.append(None if body is None else bytes(body))


def answer(correlation_id: int, body: bytes) -> bytes:
    frame = correlation_id.to_bytes(4, "big") + b"\x00" + body
    return len(frame).to_bytes(4, "big") + frame


STREAM = answer(1, b"one") + answer(2, b"") + answer(3, b"three" * 100)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 100, len(STREAM)])
async def test_answers_come_whole_however_the_bytes_are_cut(size: int) -> None:
    fixture = Fixture()
    fixture.ask(3)
    for start in range(0, len(STREAM), size):
        fixture.connection.data_received(STREAM[start : start + size])
    assert fixture.answers == [b"one", b"", b"three" * 100]
    assert not fixture.transport.aborted


async def test_correlation_ids_count_up() -> None:
    fixture = Fixture()
    fixture.ask(2)
    assert [int.from_bytes(written[8:12], "big") for written in fixture.transport.written] == [1, 2]


@pytest.mark.parametrize(
    "data",
    [answer(2, b"not the first"), b"\x00\x00\x00\x01x", b"HTTP/1.1 400 Bad Request", b"\xff\xff\xff\xff"],
    ids=["wrong order", "too short", "too long", "negative"],
)
async def test_a_server_that_is_not_kafka_ends_the_connection(data: bytes) -> None:
    fixture = Fixture()
    fixture.ask(2)
    fixture.connection.data_received(data)
    assert fixture.transport.aborted
    assert fixture.answers == []


async def test_a_response_without_a_request_ends_the_connection() -> None:
    fixture = Fixture()
    fixture.connection.data_received(answer(1, b"hello"))
    assert fixture.transport.aborted


async def test_a_lost_connection_answers_everybody_with_nothing() -> None:
    fixture = Fixture()
    fixture.ask(2)
    fixture.connection.connection_lost(None)
    assert fixture.answers == [None, None]
    assert fixture.lost == [fixture.connection]
    fixture.ask()
    await asyncio.sleep(0)
    assert fixture.answers == [None, None, None]


async def test_a_request_without_an_answer_in_time_ends_the_connection() -> None:
    fixture = Fixture(timeout_ms=1)
    fixture.ask()
    await asyncio.wait_for(fixture.transport.ended.wait(), 10)
    assert fixture.transport.aborted


@pytest.mark.parametrize("addresses", [["silent", "alive"], ["slow", *map(str, range(7))]])
async def test_an_address_has_time_and_leaves_some_for_the_next(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, ready = asyncio.get_running_loop(), Fixture().connection
    now_s, tried = loop.time(), list[str]()

    async def addresses_of(*_: object) -> list[str]:
        return addresses

    async def negotiate() -> None:
        pass

    async def create_connection(_: object, address: str, *__: object, **___: object) -> tuple[None, Connection]:
        nonlocal now_s
        tried.append(address)
        for _turn in range({"silent": 10, "slow": 2}.get(address, 0)):
            now_s += 0.2
            await asyncio.sleep(0)
        return None, ready

    monkeypatch.setattr(module, "_addresses_of", addresses_of)
    monkeypatch.setattr(ready, "negotiate", negotiate)
    monkeypatch.setattr(loop, "create_connection", create_connection)
    monkeypatch.setattr(loop, "time", lambda: now_s)
    connecting = Connector(SecurityConfig()).connect("broker", 9092, lambda: ready, timeout_ms=1000)
    assert await connecting is ready
    assert tried == (addresses if "silent" in addresses else ["slow"])
