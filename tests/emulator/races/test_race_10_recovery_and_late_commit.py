"""Race 10: a recovering producer keeps the prepared transaction while the old incarnation still wants to end it.

The old one holds the ongoing pair. Under KIP-939 it is fenced with 90 from the moment the recovery is in the log.
"""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import Emulator, Fault, Hold, PausePoint
from tests.emulator.races.racers import Racer, committed_read, completion, racing, state

CONCURRENT, FENCED = 51, 90
PREPARING = {"enable2_pc": True, "keep_prepared_txn": False}
RECOVERING = {"enable2_pc": True, "keep_prepared_txn": True}


def prepared(emulator: Emulator) -> Racer:
    """A producer with a prepared transaction."""
    old = Racer(emulator, name="old")
    old.init(**PREPARING)
    assert old.write() == 0
    return old


@pytest.mark.parametrize("commit", [False, True])
def test_the_late_end_is_on_its_way_during_the_recovery(commit: bool) -> None:
    with racing() as emulator:
        old, recovered = prepared(emulator), Racer(emulator)
        held = emulator.faults.add(Fault(api="EndTxn", client_id="old", action=Hold()))
        ending = old.send_end(commit=commit)
        held.wait_held()
        answer = recovered.init(**RECOVERING)
        assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == (
            old.producer.producer_id,
            old.producer.producer_epoch,
        )
        held.release()
        assert old.receive_end(ending) == FENCED
        assert state(emulator) == "Ongoing"
        completed = completion(emulator)
        assert recovered.end(commit=not commit) == 0
        completed.wait()
        assert committed_read(recovered.client) == (2, [0] if commit else [])


@pytest.mark.parametrize("commit", [False, True])
def test_the_late_end_comes_while_the_recovery_is_written(commit: bool) -> None:
    with racing() as emulator:
        old, recovered = prepared(emulator), Racer(emulator)
        append = emulator.hold(PausePoint.BEFORE_STATE_APPEND)
        recovering = recovered.send_init(**RECOVERING)
        append.wait_reached()
        assert old.end(commit=commit) == CONCURRENT
        append.release()
        assert recovered.receive_init(recovering).error_code == 0
        assert old.end(commit=commit) == FENCED
        completed = completion(emulator)
        assert recovered.end(commit=True) == 0
        completed.wait()
        assert old.end(commit=commit) == FENCED
        assert committed_read(recovered.client) == (2, [])


@pytest.mark.parametrize("commit", [False, True])
def test_the_late_end_is_first_and_the_recovery_finds_nothing_ongoing(commit: bool) -> None:
    with racing() as emulator:
        old, recovered = prepared(emulator), Racer(emulator)
        prepare = emulator.hold(PausePoint.BEFORE_PREPARE_APPEND)
        completed = completion(emulator)
        ending = old.send_end(commit=commit)
        prepare.wait_reached()
        assert recovered.init(**RECOVERING).error_code == CONCURRENT
        prepare.release()
        assert old.receive_end(ending) == 0
        completed.wait()
        answer = recovered.init(**RECOVERING)
        assert (answer.error_code, answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == (0, -1, -1)
        assert committed_read(recovered.client) == (2, [] if commit else [0])
        assert old.write() == 47


def test_the_old_incarnation_can_still_write_to_the_transaction_that_the_recovery_ends() -> None:
    """Its implicit adds carry the ongoing pair: its records share the fate of the transaction."""
    with racing() as emulator:
        old, recovered = prepared(emulator), Racer(emulator)
        recovered.init(**RECOVERING)
        assert old.write(1) == 0
        completed = completion(emulator)
        assert recovered.end(commit=False) == 0
        completed.wait()
        assert committed_read(recovered.client, 1) == (2, [0])
        assert old.write(1) == 47
