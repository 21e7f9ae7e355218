"""A producer id that runs out of epochs, step by step (KIP-890, KAFKA-18660, KAFKA-19367, KAFKA-20090)."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator.transactions.metadata import CoordinatorRules
from dualwrite.broker_emulator.transactions.states import TransactionState

from .simulated_id import KIP, MAX, SimulatedId, metadata

TV0 = CoordinatorRules(transaction_version=0)
BEFORE_KAFKA_20090 = CoordinatorRules(rotates_on_server_abort=False)


def open_at(epoch: int, rules: CoordinatorRules = KIP) -> SimulatedId:
    return SimulatedId(metadata(TransactionState.ONGOING, 42, epoch), rules)


def test_an_end_without_bump_stays_at_the_last_epoch() -> None:
    simulated = open_at(MAX - 1, TV0)
    assert simulated.end(42, MAX - 1, commit=True, version=0).error == 0
    simulated.write_markers()
    assert simulated.row() == ("CompleteCommit", 42, MAX - 1, 42, -1, -1)


@pytest.mark.parametrize("by", ["init", "timeout"])
def test_a_server_abort_without_tv2_uses_the_limit_and_the_next_init_rotates(by: str) -> None:
    simulated = open_at(MAX - 1, TV0)
    if by == "init":
        assert simulated.init().error == 51
    else:
        simulated.time_out()
    assert simulated.row() == ("PrepareAbort", 42, MAX, -1, -1, -1)
    simulated.write_markers()
    assert simulated.row() == ("CompleteAbort", 42, MAX, 42, -1, -1)
    assert simulated.init() == (0, 1000, 0, -1, -1)


@pytest.mark.parametrize("commit", [True, False])
def test_tv2_end_at_the_last_epoch(commit: bool) -> None:
    simulated = open_at(MAX - 1)
    assert simulated.end(42, MAX - 1, commit=commit) == (0, 1000, 0)
    assert simulated.row() == ("PrepareCommit" if commit else "PrepareAbort", 42, MAX, -1, 1000, 0)
    assert simulated.end(42, MAX - 1, commit=commit).error == 51
    simulated.write_markers()
    assert simulated.row() == ("CompleteCommit" if commit else "CompleteAbort", 1000, 0, 42, -1, -1)
    assert simulated.known.last_producer_epoch == MAX - 1
    assert simulated.end(42, MAX - 1, commit=commit) == (0, 1000, 0)
    assert simulated.end(42, MAX - 1, commit=not commit).error == (48 if commit else 90)
    for epoch in (MAX, MAX - 2, 0):
        assert simulated.end(42, epoch, commit=commit).error == 49


@pytest.mark.parametrize("by", ["init", "timeout"])
def test_tv2_server_abort_at_the_last_epoch(by: str) -> None:
    simulated = open_at(MAX - 1)
    if by == "init":
        assert simulated.init().error == 51
    else:
        simulated.time_out()
    assert simulated.row() == ("PrepareAbort", 42, MAX, -1, 1000, 0)
    simulated.write_markers()
    assert simulated.row() == ("CompleteAbort", 1000, 0, 42, -1, -1)
    assert simulated.known.last_producer_epoch == MAX - 1
    assert simulated.abort(42, MAX - 1) == (0, 1000, 0)
    assert simulated.commit(42, MAX - 1).error == 90
    assert simulated.init(42, MAX - 1) == (0, 1000, 0, -1, -1)


def test_tv2_server_abort_at_the_last_epoch_before_rotation_was_added() -> None:
    simulated = open_at(MAX - 1, BEFORE_KAFKA_20090)
    simulated.time_out()
    assert simulated.row() == ("PrepareAbort", 42, MAX, -1, -1, -1)
    simulated.write_markers()
    assert simulated.row() == ("CompleteAbort", 42, MAX, 42, -1, -1)
    assert simulated.init() == (0, 1000, 0, -1, -1)


@pytest.mark.parametrize("rules", [KIP, TV0])
@pytest.mark.parametrize("by", ["init", "timeout"])
def test_an_id_that_is_stuck_at_the_limit_is_aborted_there(rules: CoordinatorRules, by: str) -> None:
    simulated = open_at(MAX, rules)
    if by == "init":
        assert simulated.init().error == 51
    else:
        simulated.time_out()
    assert simulated.row() == ("PrepareAbort", 42, MAX, -1, -1, -1)
    assert simulated.known.client_transaction_version == 0  # so that partitions accept a marker of the same epoch
    simulated.write_markers()
    assert simulated.init() == (0, 1000, 0, -1, -1)


@pytest.mark.parametrize("commit", [True, False])
def test_no_client_ends_a_transaction_at_the_limit(commit: bool) -> None:
    assert open_at(MAX).end(42, MAX, commit=commit).error == 90


def test_an_empty_abort_rotates_as_well() -> None:
    simulated = SimulatedId(metadata(TransactionState.EMPTY, 42, MAX - 1))
    assert simulated.abort(42, MAX - 1) == (0, 1000, 0)
    assert simulated.row() == ("PrepareAbort", 42, MAX, -1, 1000, 0)
    simulated.write_markers()
    assert simulated.row() == ("CompleteAbort", 1000, 0, 42, -1, -1)


def test_a_rotation_survives_a_failover() -> None:
    """KAFKA-20310: without the next producer id in the log, the id would complete at 32767, against its response."""
    simulated = open_at(MAX - 1)
    assert simulated.commit(42, MAX - 1) == (0, 1000, 0)
    simulated.reload()
    assert simulated.commit(42, MAX - 1).error == 51
    simulated.write_markers()
    simulated.reload()
    assert simulated.commit(42, MAX - 1) == (0, 1000, 0)
    assert simulated.init(42, MAX - 1) == (0, 1000, 0, -1, -1)


def test_a_rotation_written_without_its_epoch_starts_at_0() -> None:
    """Kafka 4 before KIP-939 has no tag for it."""
    simulated = SimulatedId(metadata(TransactionState.PREPARE_COMMIT, 42, MAX, next_producer_id=85))
    simulated.write_markers()
    assert simulated.row() == ("CompleteCommit", 85, 0, 42, -1, -1)


def test_a_failed_fence_is_not_repeated_below_tv2() -> None:
    """KAFKA-9666."""
    simulated = open_at(5, TV0)
    for _ in range(2):
        response, transition = simulated.decide_init()
        assert response.error == 51
        assert transition is not None
        simulated.begin(transition)
        assert simulated.known.pending_state is TransactionState.PREPARE_EPOCH_FENCE
        assert simulated.known.producer_epoch in (5, 6)
        simulated.fail(transition)
        assert simulated.row()[:3] == ("Ongoing", 42, 6)
        assert simulated.known.has_failed_epoch_fence
        assert simulated.end(42, 5, commit=True, version=0).error == 90
    simulated.init()
    assert simulated.row()[:3] == ("PrepareAbort", 42, 6)
    assert not simulated.known.has_failed_epoch_fence
    simulated.write_markers()
    assert simulated.init()[:3] == (0, 42, 7)


def test_a_failed_abort_changes_nothing_under_tv2() -> None:
    """KAFKA-19367: the first attempt fails, the second bumps once, the third bumps again."""
    simulated = open_at(5)
    before = simulated.known
    _, transition = simulated.decide_init()
    assert transition is not None
    simulated.begin(transition)
    simulated.fail(transition)
    assert simulated.known == before
    simulated.init()
    assert simulated.row()[:3] == ("PrepareAbort", 42, 6)
    simulated.write_markers()
    assert simulated.init()[:3] == (0, 42, 7)
