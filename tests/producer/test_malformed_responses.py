"""Responses that are not Kafka's: producers and the admin client end with a typed error, or go on where it heals."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from dualwrite import AsyncProducer, DualWriteError, Producer, TopicPartition
from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import Emulator
from dualwrite.client.wire.frames import Framer
from dualwrite.errors import Api, KafkaError
from tests.producer.conftest import MakeProducer, ReadCommitted
from tests.producer.impatience import until_said

Spoil = Callable[[bytes], bytes]
_CORRELATION_ID_BYTES = 4

SPOILT: dict[str, Spoil] = {
    "half of it": lambda body: body[: len(body) // 2],
    "all but the last byte": lambda body: body[:-1],
    "the longest lengths": lambda body: b"\x7f\xff\xff\xff" * (len(body) // 4 + 1),
    "negative lengths": lambda body: b"\x80" * len(body),
    "lengths without an end": lambda body: b"\xff" * len(body),
    "nothing": lambda body: b"",
    "zeros": lambda body: bytes(len(body) // 2),
}
OF_PRODUCERS = (
    Api.METADATA,
    Api.API_VERSIONS,
    Api.FIND_COORDINATOR,
    Api.INIT_PRODUCER_ID,
    Api.PRODUCE,
    Api.END_TXN,
    Api.TXN_OFFSET_COMMIT,
)
OF_ADMINS = (
    Api.METADATA,
    Api.API_VERSIONS,
    Api.FIND_COORDINATOR,
    Api.LIST_TRANSACTIONS,
    Api.DESCRIBE_TRANSACTIONS,
    Api.DESCRIBE_PRODUCERS,
)


def _first(values: Iterable[Any], count: int) -> list[Any]:
    """Return the parameters of a test; `make test` runs the first ones."""
    return [pytest.param(each, marks=[] if number < count else pytest.mark.proof) for number, each in enumerate(values)]


class Spoiler:
    """Spoils received responses, headers included, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spoilt: Counter[Api] = Counter()
        self.captured: dict[tuple[Api, int], bytes] = {}
        self._choose: Callable[[Api], Spoil | None] = lambda _: None
        monkeypatch.setattr(Framer, "body", self._replacing(Framer.body))

    def always(self, api: Api, spoil: Spoil) -> None:
        self._choose = lambda answered: spoil if answered is api else None

    def once(self, api: Api, spoil: Spoil) -> None:
        self._choose = lambda answered: spoil if answered is api and not self.spoilt[api] else None

    def at_random(self, random: Random) -> None:
        self._choose = lambda _: _damage(random) if random.random() < 0.2 else None

    def stop(self) -> None:
        self._choose = lambda _: None

    def _replacing(self, read: Any) -> Any:
        def body(framer: Framer, api: Api, version: int, frame: memoryview) -> memoryview:
            self.captured[api, version] = bytes(read(framer, api, version, frame))
            spoil = self._choose(api)
            if spoil is not None:
                self.spoilt[api] += 1
                frame = memoryview(bytes(frame[:_CORRELATION_ID_BYTES]) + spoil(bytes(frame[_CORRELATION_ID_BYTES:])))
            result: memoryview = read(framer, api, version, frame)
            return result

        return body


def _damage(random: Random) -> Spoil:
    def damage(body: bytes) -> bytes:
        damaged = bytearray(body)
        for _ in range(random.randint(1, 3)):
            place = random.randrange(len(damaged) + 1)
            damaged[place : place + random.choice((0, 1, 4))] = random.choice(
                (b"", b"\0", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", random.randbytes(3))
            )
        return bytes(damaged[: random.choice((None, None, None, len(damaged) // 2))])

    return random.choice((damage, damage, *SPOILT.values()))


@pytest.fixture
def spoiler(monkeypatch: pytest.MonkeyPatch) -> Spoiler:
    return Spoiler(monkeypatch)


@pytest.fixture(autouse=True)
def no_traceback(caplog: pytest.LogCaptureFixture) -> Any:
    with caplog.at_level(logging.WARNING):
        yield
    assert not [record.getMessage() for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


def write(producer: Producer) -> None:
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"v")
    producer.send_offsets_to_transaction({("events", 0): 1}, "g")
    producer.commit_transaction()


def administer(admin: TransactionAdmin, timeout_ms: int) -> None:
    admin.list_transactions(timeout_ms=timeout_ms)
    admin.describe_transaction("tid", timeout_ms=timeout_ms)
    admin.describe_producers([TopicPartition("orders", 0)], timeout_ms=timeout_ms)


@pytest.mark.parametrize("how", _first(SPOILT, 2))
@pytest.mark.parametrize("api", OF_PRODUCERS, ids=lambda api: api.kafka_name)
def test_a_producer_continues_after_a_malformed_response(
    make_producer: MakeProducer, read_committed: ReadCommitted, spoiler: Spoiler, api: Api, how: str
) -> None:
    spoiler.once(api, SPOILT[how])
    write(make_producer())
    spoiler.stop()
    assert read_committed() == [b"v"]


@pytest.mark.parametrize("api", [Api.API_VERSIONS, Api.METADATA, Api.PRODUCE], ids=lambda api: api.kafka_name)
def test_a_producer_reports_malformed_responses(make_producer: MakeProducer, spoiler: Spoiler, api: Api) -> None:
    producer = make_producer(None, max_block_ms=1_500, delivery_timeout_ms=2_000, request_timeout_ms=1_000)
    spoiler.always(api, SPOILT["half of it"])
    where = "cannot connect to" if api is Api.API_VERSIONS else "the connection to"
    words = rf"(?s)(?=.*{where} 127\.0\.0\.1:).*the response to {api.kafka_name} v.* is malformed"
    until_said(words, DualWriteError, lambda: producer.send("orders", b"v").result(60))


@pytest.mark.parametrize("api", OF_ADMINS, ids=lambda api: api.kafka_name)
@pytest.mark.parametrize("how", _first(["half of it", "nothing", "the longest lengths", "lengths without an end"], 1))
def test_an_admin_client_reports_malformed_responses(
    make_producer: MakeProducer, emulator: Emulator, spoiler: Spoiler, api: Api, how: str
) -> None:
    make_producer().init_transactions()
    with TransactionAdmin(bootstrap_servers=emulator.bootstrap_servers, request_timeout_ms=1_500) as admin:
        spoiler.always(api, SPOILT[how])
        words = f"the response to {api.kafka_name} v.* is malformed|error 32767"
        until_said(words, KafkaError, lambda: administer(admin, timeout_ms=1_500))
        spoiler.stop()
        administer(admin, timeout_ms=10_000)


@pytest.mark.parametrize("seed", _first(range(12), 3))
def test_every_malformed_response_is_a_typed_error(make_producer: MakeProducer, spoiler: Spoiler, seed: int) -> None:
    random = Random(seed)
    for number in range(5):
        producer = make_producer(f"id-{number}", max_block_ms=200, delivery_timeout_ms=300, request_timeout_ms=100)
        spoiler.at_random(random)
        with suppress(DualWriteError):  # a bug would be logged, which the fixture sees
            write(producer)
        spoiler.stop()
        producer.close(timeout_s=0)


@pytest.mark.parametrize("seed", _first(range(6), 2))
def test_malformed_responses_to_an_asynchronous_producer(emulator: Emulator, spoiler: Spoiler, seed: int) -> None:
    async def run(number: int) -> None:
        settings: dict[str, Any] = {"max_block_ms": 200, "delivery_timeout_ms": 300, "request_timeout_ms": 100}
        settings |= {"bootstrap_servers": emulator.bootstrap_servers, "transactional_id": f"id-{number}"}
        async with AsyncProducer(**settings) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send("orders", b"v")
            await producer.commit_transaction()

    spoiler.at_random(Random(seed))
    for number in range(4):
        with suppress(DualWriteError):
            asyncio.run(run(number))


@pytest.mark.parametrize("how", _first(["the longest lengths", "negative lengths", "lengths without an end"], 1))
def test_memory_is_bounded_by_the_bytes_received(make_producer: MakeProducer, spoiler: Spoiler, how: str) -> None:
    producer = make_producer(max_block_ms=300, delivery_timeout_ms=400, request_timeout_ms=100)
    spoiler.at_random(Random(how))
    tracemalloc.start()
    try:
        for api in OF_PRODUCERS:
            spoiler.always(api, SPOILT[how])
            with suppress(DualWriteError):
                write(producer)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
