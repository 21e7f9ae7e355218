"""EndTxn: every cell of the tables for versions 0-4 and 5."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.transactions.metadata import CoordinatorRules
from dualwrite.broker_emulator.transactions.states import COMPLETE_STATES, PREPARE_STATES, TransactionState

from .simulated_id import KIP, MAX, SimulatedId, metadata, with_pending

STORED_STATES = sorted(set(TransactionState) - {TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE})
ENDED = 0  # NONE, after the Prepare record
REPLAY = -2  # NONE, nothing written

BEFORE_KAFKA_20785 = CoordinatorRules(late_commit_error=ErrorCode.invalid_txn_state)


@pytest.mark.parametrize("version", [0, 2])
def test_an_unknown_id(version: int) -> None:
    assert SimulatedId().end(42, 5, commit=True, version=version) == (49, -1, -1)


# --- versions 0 to 4: the epoch must be the stored one -----------------------------------------------------------

V4_CELLS = [  # state, commit, abort
    ("EMPTY", 48, 48),
    ("ONGOING", ENDED, ENDED),
    ("PREPARE_COMMIT", 51, 48),
    ("PREPARE_ABORT", 48, 51),
    ("COMPLETE_COMMIT", REPLAY, 48),
    ("COMPLETE_ABORT", 48, REPLAY),
]


@pytest.mark.parametrize(
    ("state", "commit", "outcome"),
    [(state, commit, row[not commit]) for state, *row in V4_CELLS for commit in (True, False)],
)
def test_v4_with_the_ids_own_pair(state: str, commit: bool, outcome: int) -> None:
    before = metadata(TransactionState[state])
    simulated = SimulatedId(before)
    assert simulated.end(42, 5, commit=commit, version=0) == (max(outcome, 0), -1, -1)
    if outcome != ENDED:
        assert (simulated.known, simulated.log) == (before, [])
        return
    assert simulated.row() == ("PrepareCommit" if commit else "PrepareAbort", 42, 5, -1, -1, -1)
    known = simulated.known
    assert (known.last_producer_epoch, known.client_transaction_version) == (4, 0)
    assert known.topic_partitions == before.topic_partitions
    assert (known.start_timestamp_ms, known.last_update_timestamp_ms) == (900, 10_000)
    simulated.write_markers()
    assert simulated.row() == ("CompleteCommit" if commit else "CompleteAbort", 42, 5, 42, -1, -1)
    assert simulated.known.topic_partitions == frozenset()
    assert simulated.known.start_timestamp_ms == 900


@pytest.mark.parametrize("state", STORED_STATES)
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("is_pending", [True, False])
@pytest.mark.parametrize(("pair", "outcome"), [((41, 5), 49), ((42, 4), 90), ((42, 6), 90)])
def test_v4_with_another_pair(
    state: TransactionState, commit: bool, is_pending: bool, pair: tuple[int, int], outcome: int
) -> None:
    """Pid and epoch are checked before a pending transition."""
    before = metadata(state)
    if is_pending:
        before = with_pending(before, TransactionState.ONGOING)
    simulated = SimulatedId(before)
    assert simulated.end(*pair, commit=commit, version=0).error == outcome
    assert simulated.known == before


@pytest.mark.parametrize("state", STORED_STATES)
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("pending", list(TransactionState))
def test_v4_while_a_transition_is_pending(state: TransactionState, commit: bool, pending: TransactionState) -> None:
    assert SimulatedId(with_pending(metadata(state), pending)).end(42, 5, commit=commit, version=0).error == 51


# --- version 5: every transaction has its own epoch --------------------------------------------------------------

V5_CELLS = [  # state, abort+retry, abort+current, commit+retry, commit+current
    ("EMPTY", 90, ENDED, 90, 48),
    ("ONGOING", 90, ENDED, 90, ENDED),
    ("PREPARE_COMMIT", 48, 90, 51, 90),
    ("PREPARE_ABORT", 51, 90, 48, 90),
    ("COMPLETE_COMMIT", 48, ENDED, REPLAY, 48),
    ("COMPLETE_ABORT", REPLAY, ENDED, 90, 48),
]
V5 = [
    (state, commit, is_retry, outcome)
    for state, *row in V5_CELLS
    for (commit, is_retry), outcome in zip(
        [(False, True), (False, False), (True, True), (True, False)], row, strict=True
    )
]


@pytest.mark.parametrize(("state", "commit", "is_retry", "outcome"), V5)
def test_v5(state: str, commit: bool, is_retry: bool, outcome: int) -> None:
    before = metadata(TransactionState[state])
    simulated = SimulatedId(before)
    response = simulated.end(42, 4 if is_retry else 5, commit=commit)
    if outcome == REPLAY:
        assert response == (0, 42, 5)
    elif outcome == ENDED:
        assert response == (0, 42, 6)
    else:
        assert response == (outcome, -1, -1)
    if outcome != ENDED:
        assert (simulated.known, simulated.log) == (before, [])
        return
    assert simulated.row() == ("PrepareCommit" if commit else "PrepareAbort", 42, 6, -1, -1, -1)
    known = simulated.known
    assert (known.last_producer_epoch, known.client_transaction_version) == (5, 2)
    assert known.start_timestamp_ms == (900 if state == "ONGOING" else 10_000)
    simulated.write_markers()
    assert simulated.row() == ("CompleteCommit" if commit else "CompleteAbort", 42, 6, 42, -1, -1)


@pytest.mark.parametrize(("state", "commit", "is_retry", "outcome"), [cell for cell in V5 if cell[0] != "ONGOING"])
def test_v5_after_a_rotation(state: str, commit: bool, is_retry: bool, outcome: int) -> None:
    """The same cells where the retry still names the pid from before: 41 with epoch 32766."""
    stored = (41, MAX) if TransactionState[state] in PREPARE_STATES else (42, 0)
    rotation = {"next_producer_id": 42, "next_producer_epoch": 0} if stored[1] == MAX else {"previous_producer_id": 41}
    before = metadata(TransactionState[state], *stored, last_producer_epoch=MAX - 1, **rotation)
    simulated = SimulatedId(before)
    response = simulated.end(*((41, MAX - 1) if is_retry else stored), commit=commit)
    if outcome == REPLAY:
        assert response == (0, 42, 0)
    elif outcome == ENDED:
        assert response == (0, 42, 1)
    else:
        assert response == (outcome, -1, -1)


@pytest.mark.parametrize("state", STORED_STATES)
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(("pair", "outcome"), [((41, 5), 49), ((42, 3), 90), ((42, 6), 90), ((42, MAX), 90)])
def test_v5_with_another_pair(state: TransactionState, commit: bool, pair: tuple[int, int], outcome: int) -> None:
    before = metadata(state)
    simulated = SimulatedId(before)
    assert simulated.end(*pair, commit=commit).error == outcome
    assert simulated.known == before


@pytest.mark.parametrize("state", STORED_STATES)
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("pair", [(41, 5), (42, 3), (42, 4), (42, 5)])
@pytest.mark.parametrize("pending", list(TransactionState))
def test_v5_a_pending_transition_comes_first(
    state: TransactionState, commit: bool, pair: tuple[int, int], pending: TransactionState
) -> None:
    """KAFKA-18660: a client that already got the rotated pair must not be refused by pid while Prepare is pending."""
    assert SimulatedId(with_pending(metadata(state), pending)).end(*pair, commit=commit).error == 51


def test_a_commit_that_comes_after_the_server_aborted() -> None:
    for rules, outcome in ((KIP, 90), (BEFORE_KAFKA_20785, 48)):
        simulated = SimulatedId(metadata(TransactionState.ONGOING), rules)
        simulated.time_out()
        simulated.write_markers()
        assert simulated.commit(42, 5).error == outcome
        assert simulated.abort(42, 5) == (0, 42, 6)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", sorted(COMPLETE_STATES))
def test_an_end_without_bump_has_no_retry_by_the_epoch_before(state: TransactionState, commit: bool) -> None:
    """No transaction was ended with epoch 4 here: the holder of 4 was fenced by an InitProducerId."""
    simulated = SimulatedId(metadata(state, client_transaction_version=0))
    assert simulated.end(42, 4, commit=commit).error == 90


def test_a_v4_end_of_a_transaction_that_was_opened_implicitly() -> None:
    simulated = SimulatedId(metadata(TransactionState.EMPTY))
    simulated.add(42, 5, version=2)
    assert simulated.end(42, 5, commit=True, version=0).error == 0
    simulated.write_markers()
    assert simulated.row()[:3] == ("CompleteCommit", 42, 5)


def test_transactions_one_after_another_each_have_their_epoch() -> None:
    simulated = SimulatedId()
    _, pid, epoch, _, _ = simulated.init()
    for _ in range(3):
        assert simulated.add(pid, epoch) == 0
        response = simulated.commit(pid, epoch)
        assert response == (0, pid, epoch + 1)
        assert simulated.known.producer_epoch == epoch + 1  # the epoch of the markers
        simulated.write_markers()
        assert simulated.commit(pid, epoch) == response
        epoch = response.producer_epoch


def test_an_empty_abort_right_after_a_commit_does_not_fence_its_producer() -> None:
    """KAFKA-18464."""
    simulated = SimulatedId(metadata(TransactionState.ONGOING))
    assert simulated.commit(42, 5) == (0, 42, 6)
    assert simulated.abort(42, 6).error == 51
    simulated.write_markers()
    assert simulated.abort(42, 6) == (0, 42, 7)
    assert simulated.known.topic_partitions == frozenset()
