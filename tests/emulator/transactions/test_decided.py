"""Requests about a decided transaction with nothing pending. On the wire its completion always is."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator.transactions.coordinator import verify_partitions
from dualwrite.broker_emulator.transactions.metadata import ProducerPair
from dualwrite.broker_emulator.transactions.states import PREPARE_STATES, TransactionState

from .simulated_id import MAX, T0, T1, SimulatedId, metadata

each_state = pytest.mark.parametrize("state", sorted(PREPARE_STATES))
RETRIED, OTHER = 51, 48
"""The errors of EndTxn with the decided outcome, and with the other one."""


@each_state
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("stored", [(42, 5), (41, MAX)], ids=["", "rotating"])
def test_end_txn(state: TransactionState, commit: bool, stored: tuple[int, int]) -> None:
    pid, epoch = stored
    rotation = {"next_producer_id": 42, "next_producer_epoch": 0} if epoch == MAX else {}
    before = metadata(state, pid, epoch, **rotation)
    simulated = SimulatedId(before)
    refused = RETRIED if commit == (state is TransactionState.PREPARE_COMMIT) else OTHER
    assert simulated.end(pid, epoch, commit=commit, version=0) == (refused, -1, -1)
    assert simulated.end(pid, epoch - 1, commit=commit) == (refused, -1, -1)
    assert simulated.end(pid, epoch, commit=commit) == (90, -1, -1)
    assert simulated.end(pid - 1, epoch, commit=commit) == (49, -1, -1)
    assert (simulated.known, simulated.log) == (before, [])


@each_state
@pytest.mark.parametrize(
    ("expected", "options", "error"),
    [((), {}, 51), ((), {"keep": True}, 51), ((42, 5), {}, 51), ((42, 1), {}, 51), ((41, 5), {}, 90)],
)
def test_init_producer_id(
    state: TransactionState, expected: tuple[int, ...], options: dict[str, bool], error: int
) -> None:
    before = metadata(state)
    simulated = SimulatedId(before)
    assert simulated.init(*expected, **options) == (error, -1, -1, -1, -1)
    assert simulated.known == before


@each_state
def test_add_partitions(state: TransactionState) -> None:
    simulated = SimulatedId(metadata(state))
    assert simulated.add(42, 5) == 51
    assert verify_partitions(simulated.metadata, ProducerPair(42, 5), [T0, T1]) == {T0: 51, T1: 51}
