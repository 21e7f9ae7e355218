"""The examples of docs/admin.md do as the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import BrokerConfig, DropRequest, Emulator, Fault
from dualwrite.errors import PreparedTransactionLost
from dualwrite.producer import Producer
from dualwrite.settings import ProducerSettings
from tests.interop.wire import Identity, Wire, record_batch
from tests.test_docs import ROOT, Run, examples, run

__all__ = ["run"]  # the fixture

LOOK, INCOMPLETE, HANGING, TERMINATE, OFFERS, AWAITED = examples(ROOT / "docs" / "admin.md")


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(transaction_partition_verification_enable=False)
    with Emulator(config=config, topics={"orders": 2}) as running:
        yield running


@pytest.fixture
def owner(emulator: Emulator) -> Iterator[Producer]:
    """Give the owner of a prepared transaction of the id on the page."""
    settings: ProducerSettings = {"transactional_id": "orders-1", "transaction_two_phase_commit_enable": True}
    producer = Producer({"bootstrap.servers": emulator.bootstrap_servers}, **settings)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", value=b"1", partition=0)
    producer.prepare_transaction()
    yield producer
    producer.close(timeout_s=0)


@pytest.mark.usefixtures("owner")
def test_looking(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(LOOK)
    expected = "orders-1 Ongoing [TopicPartition(topic='orders', partition=0)] waits for its owner\n"
    assert capsys.readouterr().out == expected


@pytest.mark.usefixtures("owner")
def test_an_unanswered_listing_is_named(run: Run, emulator: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row.transactional_id for row in run(INCOMPLETE)["transactions"]] == ["orders-1"]
    held = emulator.faults.add(Fault(api="ListTransactions", count=None, action=DropRequest()))
    assert run(INCOMPLETE.replace("5000", "200"))["transactions"] == ()
    assert held.hits
    assert re.match(r"0 broker 0 has not responded to ListTransactions yet\n", capsys.readouterr().out)


@pytest.mark.usefixtures("owner")
def test_hanging_transactions_are_listed(run: Run, emulator: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    with Wire(emulator.bootstrap_servers) as wire:
        batch = record_batch([b"v"], Identity(4711, 0), 0, transactional=True, timestamp_ms=1_600_000_000_000)
        wire.produce_bytes("nobody", "orders", batch, partition=1, version=11)
    run(HANGING)
    assert capsys.readouterr().out == "None TopicPartition(topic='orders', partition=1) 0\n"


def test_terminating(run: Run, emulator: Emulator, owner: Producer, capsys: pytest.CaptureFixture[str]) -> None:
    run(TERMINATE)
    assert capsys.readouterr().out == "Ongoing -> CompleteAbort\n"
    assert emulator.log("orders", 0).last_stable_offset == 2
    with pytest.raises(PreparedTransactionLost):
        owner.complete_transaction(owner.prepared_txn_state)
    with TransactionAdmin(bootstrap_servers=emulator.bootstrap_servers) as admin:
        assert admin.describe_transaction("orders-1").state == "CompleteAbort"  # as each later recovery finds it


def test_the_features_of_a_cluster_are_printed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(OFFERS)
    assert capsys.readouterr().out == "1 brokers\nbroker 0: transaction.version 2, two-phase commit True\n"


@pytest.mark.usefixtures("owner")
def test_awaited(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(AWAITED)
    assert "transactional_id='orders-1'" in capsys.readouterr().out
