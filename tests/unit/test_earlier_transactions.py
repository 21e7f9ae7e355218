"""The questions to leaders before a transaction writes, and their responses (`client/transactions/earlier.py`)."""

from __future__ import annotations

import pytest

from dualwrite.client import messages as m
from dualwrite.client.records.record import TopicPartition
from dualwrite.client.transactions.earlier import EarlierTransactions
from dualwrite.prepared_state import PreparedTxnState

OWN = PreparedTxnState("42:7")
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
LEADER = (1, 0)
OLDER, SAME, NEWER = ({42: m.OpenAt(epoch, 3)} for epoch in (6, 7, 8))
NOTHING = m.PartitionProducers(0, {})


def may_write(earlier: EarlierTransactions, where: TopicPartition = P0, by: tuple[int, int] = LEADER) -> bool:
    return earlier.may_write(where, by, is_stored=False)


def ask(earlier: EarlierTransactions, described: m.PartitionProducers) -> bool:
    """Ask the leader, and return whether the transaction may write then; assert that nothing hangs."""
    assert not may_write(earlier)
    question = earlier.question()
    assert question is not None
    assert (question.request, question.node_id) == (m.DescribeProducers((P0,)), LEADER[0])
    assert earlier.take(m.DescribeProducersResponse({P0: described}), OWN).hanging == {}
    return not earlier.asks_coordinator and may_write(earlier)


@pytest.mark.parametrize(
    "opened", [{}, NEWER, {41: m.OpenAt(1, 0)}], ids=["nothing", "a successor", "another producer"]
)
def test_transactions_that_hold_nothing_up(opened: dict[int, m.OpenAt]) -> None:
    assert ask(EarlierTransactions(), m.PartitionProducers(0, opened))


@pytest.mark.parametrize("code", [29, 35], ids=["no READ", "an old broker"])
def test_a_leader_without_the_right_to_answer_is_not_asked_again(code: int) -> None:
    assert ask(EarlierTransactions(), m.PartitionProducers(code, {}))


@pytest.mark.parametrize("code", [6, 13, -1], ids=["not the leader", "no connection", "an unknown error"])
def test_a_leader_that_cannot_answer_yet_is_asked_again(code: int) -> None:
    earlier = EarlierTransactions()
    assert not ask(earlier, m.PartitionProducers(code, {}))
    assert ask(earlier, NOTHING)


@pytest.mark.parametrize("opened", [OLDER, SAME], ids=["an older epoch", "the same epoch"])
def test_an_open_transaction_hangs_once_its_coordinator_has_ended(opened: dict[int, m.OpenAt]) -> None:
    earlier = EarlierTransactions()
    assert not ask(earlier, m.PartitionProducers(0, opened))
    earlier.coordinator_has_ended()
    assert earlier.question() is not None
    response = m.DescribeProducersResponse({P0: m.PartitionProducers(0, opened)})
    assert earlier.take(response, OWN).hanging == {P0: opened[42]}


def test_a_leader_whose_connection_was_lost_is_asked_again_until_it_has_acknowledged_a_batch() -> None:
    earlier = EarlierTransactions()
    assert ask(earlier, NOTHING)
    assert not may_write(earlier, by=(1, 1))
    assert not may_write(earlier, by=(2, 0))
    assert earlier.may_write(P0, (1, 1), is_stored=True)


def test_a_batch_whose_response_was_lost_is_of_the_present_transaction() -> None:
    earlier = EarlierTransactions()
    assert ask(earlier, NOTHING)
    assert not may_write(earlier, by=(1, 1))
    assert earlier.question() is not None
    earlier.take(m.DescribeProducersResponse({P0: m.PartitionProducers(0, SAME)}), OWN)
    assert may_write(earlier, by=(1, 1))


def test_a_question_without_a_response_is_put_to_the_next_leader() -> None:
    earlier = EarlierTransactions()
    assert not may_write(earlier)
    assert earlier.question() is not None
    earlier.withdraw()
    assert earlier.question() is None
    assert not may_write(earlier, by=(2, 0))
    question = earlier.question()
    assert question is not None
    assert question.node_id == 2


def test_no_leader_is_asked_once_one_lacks_the_api() -> None:
    earlier = EarlierTransactions()
    assert not may_write(earlier)
    earlier.turn_off()
    assert earlier.question() is None
    assert may_write(earlier)
    assert may_write(earlier, P1)
