"""One emulator for the tests of a file; faults, holds and stopped nodes of a test are undone after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.producer import Producer
from tests.emulator.control.client import Client


@pytest.fixture(scope="module")
def controlled() -> Iterator[Emulator]:
    with Emulator(nodes=2, clock=VirtualClock(), topics={"orders": 2}, control="127.0.0.1:0") as emulator:
        yield emulator


@pytest.fixture
def client(controlled: Emulator) -> Iterator[Client]:
    client = Client(controlled.control_url)
    yield client
    client.delete("/v1/faults")
    for hold in client.get("/v1/holds")["holds"]:
        client.post(f"/v1/holds/{hold['hold_id']}/release")
    for node in client.get("/v1/nodes")["nodes"]:
        if not node["is_alive"]:
            client.post(f"/v1/nodes/{node['node']}/start")


class Transaction:
    """A producer with one open transaction."""

    def __init__(self, emulator: Emulator, transactional_id: str, *, two_phase_commit: bool = False) -> None:
        self.transactional_id = transactional_id
        self.producer = Producer(
            bootstrap_servers=emulator.bootstrap_servers,
            transactional_id=transactional_id,
            transaction_two_phase_commit_enable=two_phase_commit,
        )
        self.producer.init_transactions()
        self.producer.begin_transaction()

    def send(self, topic: str, partition: int = 0) -> None:
        self.producer.send(topic, value=b"lamp", partition=partition)
        self.producer.flush()

    def commit(self) -> None:
        self.producer.commit_transaction()


@pytest.fixture
def transaction(controlled: Emulator, request: pytest.FixtureRequest) -> Iterator[Transaction]:
    """Begin a transaction, whose id is the name of the test, with a record on orders-0."""
    begun = Transaction(controlled, request.node.name)
    begun.send("orders")
    yield begun
    begun.producer.close()
