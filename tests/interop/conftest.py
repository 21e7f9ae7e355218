"""The brokers under comparison: our emulator and a real Apache Kafka, configured alike.

Every test that takes `broker` runs on both, with one and the same expectation. Tests that take `apache_kafka`
or `emulated_kafka` by name are about that one only, and say why.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.apache_kafka import KAFKA_VERSION, ApacheKafka
from dualwrite.testing.server_unavailable import ServerUnavailableError, servers_are_required

from .wire import Code, Wire

TIMEOUT_SCAN_MS = 100
"""Interval at which both brokers look for timed-out transactions; Kafka's default is ten seconds."""

_names = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker of either kind."""

    name: str
    bootstrap_servers: str
    commit_after_abort: Code
    """What a commit gets that arrives when its transaction has been aborted already (TV2). KAFKA-20785 made
    INVALID_TXN_STATE, which clients take for a programming error, into PRODUCER_FENCED; 4.4.0 is without it."""


@pytest.fixture(scope="session")
def apache_kafka() -> Iterator[Broker]:
    """A real Apache Kafka with two-phase commit allowed, as far as a release has it."""
    server = ApacheKafka(
        version=os.environ.get("DUALWRITE_KAFKA_VERSION", KAFKA_VERSION),
        two_phase_commit=True,
        properties={"transaction.abort.timed.out.transaction.cleanup.interval.ms": str(TIMEOUT_SCAN_MS)},
    )
    try:
        server.start()
    except ServerUnavailableError as error:
        if servers_are_required():
            raise
        pytest.skip(str(error))
    yield Broker(f"Apache Kafka {server.version}", server.bootstrap_servers, Code.INVALID_TXN_STATE)
    server.stop()


@pytest.fixture(scope="session")
def emulated_kafka() -> Iterator[Broker]:
    """The emulator in its default profile."""
    config = BrokerConfig(
        transaction_abort_timed_out_transaction_cleanup_interval_ms=TIMEOUT_SCAN_MS,
        transaction_state_log_num_partitions=5,
        offsets_topic_num_partitions=5,
    )
    with Emulator(config=config) as emulator:
        yield Broker("the emulator", emulator.bootstrap_servers, Code.PRODUCER_FENCED)


@pytest.fixture(scope="session", params=["emulated_kafka", "apache_kafka"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each of the two brokers in turn."""
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
    name = f"topic-{next(_names)}"
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(name)
    return name


@pytest.fixture
def transactional_id() -> str:
    """A transactional id that nobody used before."""
    return f"txn-{next(_names)}"


@pytest.fixture
def group() -> str:
    """A group id that nobody used before."""
    return f"group-{next(_names)}"


@pytest.fixture
def broker_wire(broker: Broker) -> Iterator[Wire]:
    """A second connection."""
    with Wire(broker.bootstrap_servers) as wire:
        yield wire
