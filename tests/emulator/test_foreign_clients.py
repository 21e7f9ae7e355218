"""Other Kafka clients (librdkafka, kafka-python, aiokafka) on three nodes, with the oldest profile and the newest.

They are TV1 producers (EndTxn up to v4, AddPartitionsToTxn v0-3) and decode with their own codecs. `tests/interop` has
more of their cases, on one node, and on a real Apache Kafka too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from tests.emulator.nodes.reading import read_committed
from tests.interop.foreign_clients import CLIENTS, ForeignClient, ForeignProducer
from tests.support.conditions import until

Start = Callable[[], ForeignProducer]
PARTITIONS = 3
COMMITTED = [f"{transaction}-{index}".encode() for transaction in (0, 2) for index in range(2 * PARTITIONS)]
"""The records of transactions 0 and 2 of four; 1 and 3 are aborted."""


@pytest.fixture(params=[(3, Profile.KIP_939), (3, Profile.KAFKA_3_9)])
def emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    nodes, profile = request.param
    with Emulator(nodes=nodes, config=BrokerConfig(profile=profile), topics={"t": PARTITIONS}) as broker:
        yield broker


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> ForeignClient:
    chosen: ForeignClient = request.param
    return chosen


@pytest.fixture
def start(emulator: Emulator, client: ForeignClient) -> Iterator[Start]:
    """Makes initialised producers of one transactional id, and closes them."""
    made: list[ForeignProducer] = []

    def start() -> ForeignProducer:
        made.append(client.producer(emulator.bootstrap_servers, "x"))
        made[-1].init()
        return made[-1]

    yield start
    for producer in made:
        producer.close()


def write_transactions(producer: ForeignProducer) -> None:
    for transaction in range(4):
        producer.begin()
        for index in range(2 * PARTITIONS):
            producer.send("t", f"{transaction}-{index}".encode(), index % PARTITIONS)
        producer.flush()
        (producer.abort if transaction % 2 else producer.commit)()


def read(emulator: Emulator, client: ForeignClient, *, committed: bool) -> list[bytes]:
    """The values of partition 0, by the client."""
    log = emulator.log("t")
    return client.read(emulator.bootstrap_servers, "t", log.log_end_offset, committed=committed)


def assert_committed(emulator: Emulator, client: ForeignClient) -> None:
    until(lambda: [row.state for row in emulator.transactions()] == ["CompleteAbort"])
    assert read_committed(emulator, "t", PARTITIONS) == sorted(COMMITTED)
    assert read(emulator, client, committed=True) == COMMITTED[::PARTITIONS]


def test_transactions(emulator: Emulator, client: ForeignClient, start: Start) -> None:
    write_transactions(start())
    assert_committed(emulator, client)
