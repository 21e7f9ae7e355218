"""The brokers under comparison: our emulator in two profiles and a real Apache Kafka, configured alike.

Every test that takes `broker` runs on all of them, with one and the same expectation; `Facts` lists the differences
between the KIPs and the releases. Tests that take one broker by its name say why they are about it alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.profiles import Profile
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.names import next_name
from tests.support.real_kafkas import OLDER, TIMEOUT_SCAN_MS, Kind, shared_kafka
from tests.support.servers.apache_kafka import KAFKA_VERSION, ApacheKafka
from tests.support.unavailable import skip

from .client_folders import broker_of, case_of, folder_of
from .known_failures import KNOWN_FAILURES
from .wire import LAST_CLIENT_EPOCH, Code, Identity, Wire

KAFKA_VERSION_USED = os.environ.get("DUALWRITE_KAFKA_VERSION", KAFKA_VERSION)
"""The release that is compared with, 4.3 or later; 4.1 differs in one thing only, a timeout at the last epoch."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Differences of releases from the emulator's default profile, which follows the KIPs and Kafka's trunk."""

    commit_after_abort: Code
    """The code for a commit that arrives when its transaction has been aborted already (TV2). KAFKA-20785 made
    INVALID_TXN_STATE, which clients take for a programming error, into PRODUCER_FENCED; 4.4.0 is without it.
    """
    stale_epoch_at_the_limit: Code
    """The code for InitProducerId with an old epoch when the current one is the last: releases compare after the bump,
    which throws (KIP-360 wants the epochs compared).
    """


RELEASED = Facts(commit_after_abort=Code.INVALID_TXN_STATE, stale_epoch_at_the_limit=Code.UNKNOWN_SERVER_ERROR)
NEWEST = Facts(commit_after_abort=Code.PRODUCER_FENCED, stale_epoch_at_the_limit=Code.PRODUCER_FENCED)


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker of either kind."""

    name: str
    bootstrap_servers: str
    facts: Facts
    emulator: Emulator | None = None

    def exhaust_epochs(self, wire: Wire, transactional_id: str, *, timeout_ms: int = 60_000) -> Identity:
        """Bring an id to the last epoch that a client may hold; on the emulator without most of the way there."""
        if self.emulator is not None:
            self.emulator.set_next_producer_epoch(LAST_CLIENT_EPOCH - 10, transactional_id=transactional_id)
        return wire.exhaust_epochs(transactional_id, timeout_ms=timeout_ms)


def start(server: ApacheKafka) -> Iterator[Broker]:
    """The body of a fixture that runs `server`; the tests are skipped where it cannot be had."""
    try:
        server.start()
    except ServerUnavailableError as error:
        skip(error)
    yield _real(server)
    server.stop()


def shared(kind: Kind) -> Broker:
    """A real Apache Kafka that all folders share; the tests are skipped where it cannot be had."""
    try:
        return _real(shared_kafka(kind))
    except ServerUnavailableError as error:
        skip(error)


def _real(server: ApacheKafka) -> Broker:
    return Broker(f"Apache Kafka {server.version}", server.bootstrap_servers, RELEASED)


@pytest.fixture(scope="session")
def apache_kafka() -> Broker:
    """A real Apache Kafka with two-phase commit allowed, as far as a release has it."""
    return shared(Kind(KAFKA_VERSION_USED, two_phase_commit=True))


def _emulate(profile: Profile) -> Emulator:
    return Emulator(
        config=BrokerConfig(
            profile=profile,
            unstable_api_versions_enable=True,
            transaction_abort_timed_out_transaction_cleanup_interval_ms=TIMEOUT_SCAN_MS,
            transaction_state_log_num_partitions=5,
            offsets_topic_num_partitions=5,
            properties={"group.share.assignment.interval.ms": "0", "share.coordinator.state.topic.num.partitions": "5"},
        )
    )


@pytest.fixture(scope="session")
def emulated_kafka() -> Iterator[Broker]:
    """The emulator in its default profile."""
    with _emulate(Profile.KIP_939) as emulator:
        yield Broker("the emulator", emulator.bootstrap_servers, NEWEST, emulator)


@pytest.fixture(scope="session")
def emulated_kafka_4_4() -> Iterator[Broker]:
    """The emulator as Kafka 4.4, with its unstable API versions enabled."""
    with _emulate(Profile.KAFKA_4_4) as emulator:
        yield Broker("the emulator as Kafka 4.4", emulator.bootstrap_servers, RELEASED, emulator)


@pytest.fixture(scope="session")
def emulated_kafka_3_9() -> Iterator[Broker]:
    """The emulator as Kafka 3.9, without transaction version 2."""
    with _emulate(Profile.KAFKA_3_9) as emulator:
        yield Broker("the emulator as Kafka 3.9", emulator.bootstrap_servers, RELEASED, emulator)


@pytest.fixture(scope="session")
def apache_kafka_3_9() -> Broker:
    return shared(OLDER)


RELEASED_EMULATOR = pytest.param("emulated_kafka_4_4", marks=pytest.mark.proof)
"""For `make proof`, where the default profile does the same: `released_kafka` is for what differs."""


@pytest.fixture(scope="session", params=["emulated_kafka", RELEASED_EMULATOR, "apache_kafka"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each of the brokers in turn."""
    chosen: Broker = request.getfixturevalue(request.param)
    return chosen


every_broker = pytest.mark.parametrize(
    "broker",
    ["emulated_kafka", RELEASED_EMULATOR, "emulated_kafka_3_9", "apache_kafka", "apache_kafka_3_9"],
    indirect=True,
)
"""For tests whose requests Kafka 3.9 serves as well."""


@pytest.fixture(scope="session", params=["emulated_kafka_4_4", "apache_kafka"])
def released_kafka(request: pytest.FixtureRequest) -> Broker:
    """The brokers that behave as a release does, for tests of differences between KIPs and releases."""
    chosen: Broker = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    """A connection to the broker whose coordinators are ready."""
    with Wire(broker.bootstrap_servers) as wire:
        wire.wait_for_coordinator("any")
        yield wire


@pytest.fixture
def topic(broker: Broker) -> str:
    """A new topic with one partition."""
    name = next_name("topic")
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(name)
    return name


@pytest.fixture
def transactional_id() -> str:
    """A new transactional id."""
    return next_name("txn")


@pytest.fixture
def group() -> str:
    """A new group id."""
    return next_name("group")


@pytest.fixture
def broker_wire(broker: Broker) -> Iterator[Wire]:
    """A second connection."""
    with Wire(broker.bootstrap_servers) as wire:
        yield wire


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect known failures."""
    for item in items:
        known = KNOWN_FAILURES.get(folder_of(item) or "", {}).get(case_of(item))
        if known is not None and broker_of(item) in known.on:
            item.add_marker(pytest.mark.xfail(reason=known.reason, strict=True))
