"""Addresses that lead to another cluster, as after a change of DNS, for clients that outlive the change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from dualwrite import DualWriter, Outcome
from dualwrite.broker_emulator import Emulator
from dualwrite.broker_emulator.cluster import cluster
from dualwrite.errors import AnotherClusterError, DualWriteError, FatalError
from dualwrite.producer import Producer, ProducerState
from tests.support.servers.ports import free_port
from tests.support.topics import committed_values

QUICK: dict[str, Any] = {"max_block_ms": 60_000, "retry_backoff_ms": 5, "reconnect_backoff_ms": 5, "linger_ms": 0}


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of each cluster, whose producer ids begin at 0 as Apache Kafka's do."""
    monkeypatch.setattr(cluster, "PRODUCER_IDS_PER_MS", 0)
    return f"127.0.0.1:{free_port()}"


@contextmanager
def cluster_at(address: str) -> Iterator[None]:
    with Emulator(listen=address, topics={"orders": 1, "others": 1}):
        yield


@pytest.mark.parametrize("has_id", [True, False])
def test_a_producer_ends_and_a_new_one_works(address: str, has_id: bool) -> None:
    """In the other cluster its producer id is another producer's, and its records would be duplicates of those."""

    def new(name: str) -> Producer:
        producer = Producer(
            bootstrap_servers=address, client_id=name, transactional_id=name if has_id else None, **QUICK
        )
        if has_id:
            producer.init_transactions()
        return producer

    def write(producer: Producer, topic: str, value: bytes) -> None:
        with producer.transaction() if has_id else nullcontext():
            producer.send(topic, value).result(60)

    with cluster_at(address):
        outlives = new("outlives")
        write(outlives, "others", b"of the first")
        write(outlives, "orders", b"of the first")
    with cluster_at(address), outlives, new("another") as another:
        write(another, "orders", b"of another")
        with pytest.raises(FatalError, match="lead to another cluster"):
            write(outlives, "orders", b"lost")
        assert outlives.state is ProducerState.FATAL_ERROR
        with new("outlives") as successor:
            write(successor, "orders", b"of the successor")
        assert committed_values(address, "orders") == [b"of another", b"of the successor"]


def test_metadata_of_another_cluster_are_not_applied(producer: Producer, emulator: Emulator) -> None:
    producer.begin_transaction()
    producer.send("orders", b"x").result(60)
    emulator.cluster.cluster_id = "another"
    with pytest.raises(FatalError, match="lead to another cluster now, 'another'"):
        producer.send("events", b"x").result(60)
    assert producer.state is ProducerState.FATAL_ERROR


def test_a_writer_that_outlives_the_move_writes_nothing_before_it_has_taken_over(address: str, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop'}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE items (item TEXT)"))

    def write_both(item: str) -> None:
        with writer.transaction() as tx:
            tx.connection.execute(text("INSERT INTO items VALUES (:item)"), {"item": item})
            tx.send("orders", item)

    writer = DualWriter(engine, bootstrap_servers=address, transactional_id="mover", **QUICK)
    with cluster_at(address):
        write_both("first")
    with cluster_at(address), writer:
        with pytest.raises(DualWriteError) as raised:
            write_both("second")
        assert raised.value.outcome is Outcome.ROLLED_BACK
        with pytest.raises(AnotherClusterError):
            write_both("third")
        assert committed_values(address, "orders") == []
    with engine.begin() as connection:
        assert connection.execute(text("SELECT item FROM items")).scalars().all() == ["first"]
