"""Prepare, crash, recover: the promises of KIP-939, against the emulator and read by another client."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dualwrite.broker_emulator import Emulator, Fault, Hold
from dualwrite.errors import FencedError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import Producer, ProducerState
from tests.producer.conftest import MakeProducer, ReadCommitted
from tests.support.conditions import until


def prepared(producer: Producer, value: str = "v") -> PreparedTxnState:
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", value)
    return producer.prepare_transaction()


@pytest.mark.parametrize("form", [str, lambda state: str(state).encode(), lambda state: None])
def test_a_stored_text_is_not_mistaken_for_another_state(
    make_producer: MakeProducer, read_committed: ReadCommitted, form: Callable[[PreparedTxnState], object]
) -> None:
    """A state given as text would compare unequal, and its committed data would be aborted."""
    producer = make_producer()
    state = prepared(producer)
    with pytest.raises(TypeError, match=r"PreparedTxnState\(text\)"):
        producer.complete_transaction(form(state))  # type: ignore[arg-type]
    assert producer.state is ProducerState.PREPARED_TRANSACTION
    producer.complete_transaction(PreparedTxnState(str(state)))
    assert read_committed() == [b"v"]


def test_a_commit_that_a_recovery_has_completed_succeeds_and_is_the_last(
    make_producer: MakeProducer, read_committed: ReadCommitted, emulator: Emulator
) -> None:
    """Until the markers are written, a partition would add records with the same pair to the committed ones."""
    zombie, recovering = make_producer(), make_producer()
    prepared(zombie)
    recovering.init_transactions(keep_prepared_txn=True)
    description = emulator.faults.add(Fault(api="DescribeTransactions", action=Hold()))
    markers = emulator.faults.add(Fault(api="WriteTxnMarkers", action=Hold(), topic="orders", count=None))
    commit = threading.Thread(target=zombie.commit_transaction)
    commit.start()
    until(lambda: bool(description.held))  # the commit was refused, because the id is fenced
    recovering.commit_transaction()
    description.release()
    commit.join()
    with pytest.raises(FencedError):
        zombie.begin_transaction()
    markers.remove()
    markers.release()
    assert read_committed() == [b"v"]


def test_an_open_transaction_that_was_not_prepared_is_found_too(
    make_producer: MakeProducer, read_committed: ReadCommitted
) -> None:
    """Kafka cannot tell it from a prepared one; the database's older state decides: abort."""
    crashed = make_producer()
    crashed.init_transactions()
    crashed.begin_transaction()
    crashed.send("orders", "half").result(60)
    recovering = make_producer()
    recovering.init_transactions(keep_prepared_txn=True)
    assert not recovering.prepared_txn_state.is_empty
    recovering.complete_transaction(PreparedTxnState())
    assert recovering.state is ProducerState.READY
    recovering.begin_transaction()
    recovering.send("orders", "after")
    recovering.commit_transaction()
    assert read_committed() == [b"after"]


def test_the_pair_of_an_empty_prepared_transaction_is_not_used_again(
    producer: Producer, make_producer: MakeProducer, read_committed: ReadCommitted
) -> None:
    """A database that stored it would otherwise commit the next transaction after a crash."""
    producer.begin_transaction()
    stored = producer.prepare_transaction()
    assert not producer.transaction_has_records
    producer.complete_transaction(stored)
    producer.begin_transaction()
    producer.send("orders", "undecided")
    assert producer.prepare_transaction() != stored
    recovering = make_producer()
    recovering.init_transactions(keep_prepared_txn=True)
    assert recovering.prepared_txn_state != stored
    recovering.complete_transaction(stored)
    recovering.begin_transaction()
    recovering.send("orders", "after")
    recovering.commit_transaction()
    assert read_committed() == [b"after"]


def test_dropping_the_producer_ends_no_transaction(make_producer: MakeProducer, emulator: Emulator) -> None:
    producer = Producer(
        bootstrap_servers=emulator.bootstrap_servers,
        transactional_id="dropped",
        transaction_two_phase_commit_enable=True,
    )
    state = prepared(producer)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del producer
    recovering = make_producer("dropped")
    recovering.init_transactions(keep_prepared_txn=True)
    assert recovering.prepared_txn_state == state
