"""An emulator per test, producers that are closed after it, and reads with read_committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dualwrite.broker_emulator import Emulator
from dualwrite.producer import Producer
from tests.support.topics import committed_values

MakeProducer = Callable[..., Producer]
ReadCommitted = Callable[..., list[bytes]]


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(topics={"orders": 1, "events": 3}) as running:
        yield running


@pytest.fixture
def make_producer(emulator: Emulator) -> Iterator[MakeProducer]:
    made: list[Producer] = []

    def make(transactional_id: str | None = "tid", *, two_phase_commit: bool = True, **settings: Any) -> Producer:
        settings = {"max_block_ms": 60_000, "retry_backoff_ms": 5, "reconnect_backoff_ms": 5} | settings
        if transactional_id is not None:
            settings |= {"transactional_id": transactional_id}
            settings |= {"transaction_two_phase_commit_enable": two_phase_commit}
        producer = Producer(bootstrap_servers=emulator.bootstrap_servers, **settings)
        made.append(producer)
        return producer

    yield make
    for producer in made:
        producer.close(timeout_s=0)


@pytest.fixture
def producer(make_producer: MakeProducer) -> Producer:
    """One that is ready for its first transaction."""
    made = make_producer()
    made.init_transactions()
    return made


@pytest.fixture
def read_committed(emulator: Emulator) -> ReadCommitted:
    """All values of a topic for a read_committed consumer, once no transaction is open before the end."""

    def read(topic: str = "orders", partitions: int = 1) -> list[bytes]:
        return committed_values(emulator.bootstrap_servers, topic, partitions)

    return read
