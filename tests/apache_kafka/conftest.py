"""Real brokers, started once per run and only where a test asks for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dualwrite.producer import Producer
from dualwrite.testing.apache_kafka import ApacheKafka
from dualwrite.testing.server_unavailable import ServerUnavailableError, servers_are_required

MakeProducer = Callable[..., Producer]

_names = itertools.count(1)


def running(kafka: ApacheKafka) -> Iterator[ApacheKafka]:
    """The body of a fixture that runs `kafka`; its tests are skipped where it cannot be had."""
    try:
        kafka.start()
    except ServerUnavailableError as error:
        if servers_are_required():
            raise
        pytest.skip(str(error))
    yield kafka
    kafka.stop()


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """Names that nobody used before."""
    return lambda kind: f"{kind}-{next(_names)}"


@pytest.fixture
def make_producer() -> Iterator[MakeProducer]:
    """Producers that are let go of after the test, as if their process had ended."""
    made: list[Producer] = []

    def make(config: dict[str, Any]) -> Producer:
        producer = Producer({"max.block.ms": 20_000} | config)
        made.append(producer)
        return producer

    yield make
    for producer in made:
        producer.close(timeout_s=0)
