"""Conclusions from a description between two transactions: the table, cell by cell."""

from __future__ import annotations

import pytest

from dualwrite.client.transactions.recovery import Described, DescribedState, Settling, settle
from dualwrite.prepared_state import PreparedTxnState

OWN = PreparedTxnState("42:7")
NEXT = PreparedTxnState("42:8")
OTHERS = [PreparedTxnState("42:6"), PreparedTxnState("42:9"), PreparedTxnState("43:7")]
ENDED = (DescribedState.COMPLETE_COMMIT, DescribedState.COMPLETE_ABORT)
ENDING = (DescribedState.PREPARE_COMMIT, DescribedState.PREPARE_ABORT)
KNOWN = [state for state in DescribedState if state is not DescribedState.NOT_FOUND]


def after(state: DescribedState, pair: PreparedTxnState = OWN, *, raise_unanswered: bool = False) -> Settling:
    return settle(OWN, Described(state, pair, -1), raise_unanswered=raise_unanswered)


@pytest.mark.parametrize("raise_unanswered", [False, True])
def test_our_own_pair(raise_unanswered: bool) -> None:
    raises = Settling.AWAIT_RAISE if raise_unanswered else Settling.RAISE
    for state in (DescribedState.EMPTY, *ENDED):
        assert after(state, raise_unanswered=raise_unanswered) is raises
    for state in ENDING:
        assert after(state, raise_unanswered=raise_unanswered) is Settling.DESCRIBE_AGAIN
    assert after(DescribedState.ONGOING, raise_unanswered=raise_unanswered) is Settling.END_REOPENED


@pytest.mark.parametrize("state", KNOWN)
def test_the_next_epoch_is_ours_only_where_a_raise_may_have_arrived(state: DescribedState) -> None:
    assert after(state, NEXT) is Settling.TAKEN_OVER
    expected = Settling.RAISE if state is DescribedState.EMPTY else Settling.TAKEN_OVER
    assert after(state, NEXT, raise_unanswered=True) is expected


def test_the_first_pair_of_the_next_producer_id_is_the_epoch_after_the_last() -> None:
    last = PreparedTxnState("42:32766")
    rotated = Described(DescribedState.EMPTY, PreparedTxnState("99:0"), -1)
    assert settle(last, rotated, raise_unanswered=True) is Settling.RAISE
    assert settle(last, rotated, raise_unanswered=False) is Settling.TAKEN_OVER


@pytest.mark.parametrize("raise_unanswered", [False, True])
@pytest.mark.parametrize("pair", OTHERS, ids=str)
@pytest.mark.parametrize("state", KNOWN)
def test_any_other_pair_belongs_to_another_producer(
    state: DescribedState, pair: PreparedTxnState, raise_unanswered: bool
) -> None:
    assert after(state, pair, raise_unanswered=raise_unanswered) is Settling.TAKEN_OVER


def test_an_id_that_has_expired_begins_anew() -> None:
    assert after(DescribedState.NOT_FOUND, PreparedTxnState()) is Settling.RAISE
