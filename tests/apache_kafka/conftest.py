"""Real brokers, started once per run and only where a test asks for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dualwrite.guarantee import Tier
from dualwrite.producer import Producer
from dualwrite.testing.apache_kafka import ApacheKafka
from dualwrite.testing.server_unavailable import ServerUnavailableError, servers_are_required

from .clusters import VERSIONS, Cluster, cluster_of
from .faces import Face

MakeProducer = Callable[..., Producer]

NewName = Callable[[str], str]
MakeFace = Callable[..., Face]

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
def new_name() -> NewName:
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


@pytest.fixture(scope="session")
def session_clusters() -> Iterator[Callable[[Tier], Cluster]]:
    """One cluster per tier, started when it is first asked for; who kills it starts it again."""
    started: dict[Tier, Iterator[ApacheKafka]] = {}
    clusters: dict[Tier, Cluster] = {}

    def get(tier: Tier) -> Cluster:
        if tier not in clusters:
            cluster = cluster_of(tier)
            started[tier] = running(cluster.kafka)
            next(started[tier])
            clusters[tier] = cluster
        return clusters[tier]

    yield get
    for each in started.values():
        next(each, None)


@pytest.fixture(params=VERSIONS, ids=lambda tier: f"tier {tier}")
def cluster(request: pytest.FixtureRequest, session_clusters: Callable[[Tier], Cluster]) -> Cluster:
    """Each tier of real brokers in turn."""
    return session_clusters(request.param)


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
