"""Real brokers, started once per run and only where a test asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dualwrite.guarantee import Tier
from dualwrite.participant import ParticipantProducer
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.names import next_name
from tests.support.real_kafkas import shared_kafka
from tests.support.servers.apache_kafka import ApacheKafka
from tests.support.unavailable import skip

from .clusters import KINDS, Cluster
from .faces import FACES, Face
from .reading import create_topics

MakeProducer = Callable[..., ParticipantProducer]

NewName = Callable[[str], str]
MakeFace = Callable[..., Face]


def running(kafka: ApacheKafka) -> Iterator[ApacheKafka]:
    """The body of a fixture that runs `kafka`; its tests are skipped where it cannot be had."""
    try:
        kafka.start()
    except ServerUnavailableError as error:
        skip(error)
    yield kafka
    kafka.stop()


@pytest.fixture
def new_name() -> NewName:
    return next_name


@pytest.fixture
def make_producer() -> Iterator[MakeProducer]:
    """Producers that are let go of after the test, as if their process had ended."""
    made: list[ParticipantProducer] = []

    def make(config: dict[str, Any]) -> ParticipantProducer:
        producer = ParticipantProducer({"max.block.ms": 20_000} | config)
        made.append(producer)
        return producer

    yield make
    for producer in made:
        producer.close(timeout_s=0)


@pytest.fixture(params=KINDS, ids=lambda tier: f"tier {tier}")
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Each tier of real brokers in turn; a test that kills one starts it again."""
    tier: Tier = request.param
    try:
        return Cluster(shared_kafka(KINDS[tier]), tier)
    except ServerUnavailableError as error:
        skip(error)


@pytest.fixture
def make_face() -> Iterator[MakeFace]:
    """Producers of either face that are let go of after the test."""
    made: list[Face] = []

    def make(face: str, settings: dict[str, Any]) -> Face:
        producer = Face(face, settings)
        made.append(producer)
        return producer

    yield make
    for producer in made:
        producer.close()


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def topic(cluster: Cluster, new_name: NewName) -> str:
    name = new_name("topic")
    create_topics(cluster.bootstrap_servers, name)
    return name


@pytest.fixture
def transactional_id(new_name: NewName) -> str:
    return new_name("txn")
