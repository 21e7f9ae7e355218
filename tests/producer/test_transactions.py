"""Transactions without two-phase commit, offsets, and records of all kinds."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Fault
from dualwrite.errors import (
    AuthorizationError,
    IllegalStateError,
)
from dualwrite.producer import Producer, ProducerState
from tests.producer.conftest import MakeProducer, ReadCommitted


def test_one_record_transaction_is_two_requests(producer: Producer, emulator: Emulator) -> None:
    producer.begin_transaction()
    producer.send("orders", "warm")
    producer.commit_transaction()
    seen = emulator.faults.add(Fault(client_id="dualwrite", count=None))
    for _ in range(5):
        producer.begin_transaction()
        producer.send("orders", "v")
        producer.commit_transaction()
    assert seen.hits == 10


def test_without_a_transactional_id(make_producer: MakeProducer, read_committed: ReadCommitted) -> None:
    producer = make_producer(None)
    assert producer.send("orders", "a").result(60).offset == 0
    producer.send("orders", "b")
    producer.flush()
    producer.send("orders", "c")
    producer.close()
    assert read_committed() == [b"a", b"b", b"c"]
    with pytest.raises(IllegalStateError, match="has no transactional_id"):
        make_producer(None).begin_transaction()


@pytest.mark.parametrize("acks", [0, 1])
def test_without_idempotence(make_producer: MakeProducer, emulator: Emulator, acks: int) -> None:
    producer = make_producer(None, enable_idempotence=False, acks=acks)
    future = producer.send("orders", "a")
    assert future.result(60).offset == (-1 if acks == 0 else 0)
    producer.close()
    if acks == 1:
        assert emulator.log("orders").log_end_offset == 1


def test_two_phase_commit_switched_off_at_the_broker() -> None:
    with (
        Emulator(config=BrokerConfig(transaction_two_phase_commit_enable=False)) as emulator,
        Producer(
            bootstrap_servers=emulator.bootstrap_servers,
            transactional_id="t",
            transaction_two_phase_commit_enable=True,
        ) as producer,
    ):
        with pytest.raises(AuthorizationError, match=r"two\.phase\.commit\.enable"):
            producer.init_transactions()
        assert producer.state is ProducerState.UNINITIALIZED
