"""The log messages about a producer that is closed too early."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dualwrite.client.transactions.operations import Operation
from dualwrite.client.transactions.states import Call, ProducerState
from dualwrite.client.unfinished_on_close import failed_on_close, unfinished_on_close
from dualwrite.config import ProducerConfig
from dualwrite.errors import RetriableError
from dualwrite.prepared_state import PreparedTxnState

S = ProducerState
NOTHING = PreparedTxnState()
PREPARED = PreparedTxnState("42:7")


def config(**settings: Any) -> ProducerConfig:
    return ProducerConfig.parse(None, {"bootstrap_servers": "h:1", "transactional_id": "orders-1"} | settings)


@pytest.mark.parametrize("state", list(S))
def test_nothing_is_said_where_nothing_is_left(state: ProducerState) -> None:
    """A transaction without records can be prepared, too; then there is nothing to complete."""
    assert unfinished_on_close(state, NOTHING, config(), pending=False) is None


def test_the_bound_of_a_prepared_transaction_is_said() -> None:
    for bounded_ms, words in ((None, "are called for that id"), (5000, "no longer than 5000 ms")):
        left = unfinished_on_close(S.PREPARED_TRANSACTION, PREPARED, config(), pending=False, bounded_ms=bounded_ms)
        assert left is not None
        assert left.message.endswith(words) is (bounded_ms is None)
        assert words in left.message


def test_what_is_handed_over_is_nothing_to_be_warned_of() -> None:
    for hand_over, level in ((False, logging.WARNING), (True, logging.DEBUG)):
        left = unfinished_on_close(S.PREPARED_TRANSACTION, PREPARED, config(), pending=False, hand_over=hand_over)
        assert left is not None
        assert left.level == level


@pytest.mark.parametrize(
    ("state", "prepared", "two_phase", "level", "words"),
    [
        (S.PREPARED_TRANSACTION, PREPARED, True, logging.WARNING, ["transaction 42:7", "in doubt", "complete_tr"]),
        (S.INITIALIZING, NOTHING, True, logging.INFO, ["no transaction was begun", "the next producer"]),
        (S.COMMITTING_TRANSACTION, PREPARED, True, logging.WARNING, ["the commit", "stays prepared until init_tr"]),
        (S.ABORTING_TRANSACTION, PREPARED, True, logging.WARNING, ["the abort", "stays prepared until init_tr"]),
        (S.COMMITTING_TRANSACTION, NOTHING, True, logging.WARNING, ["the next producer with that id aborts it"]),
        (S.ABORTING_TRANSACTION, NOTHING, False, logging.WARNING, ["after transaction.timeout.ms=60000"]),
    ],
)
def test_pending_calls_and_their_completion(
    state: ProducerState, prepared: PreparedTxnState, two_phase: bool, level: int, words: list[str]
) -> None:
    left = unfinished_on_close(state, prepared, config(transaction_two_phase_commit_enable=two_phase), pending=True)
    assert left is not None
    assert left.level == level
    assert "'orders-1'" in left.message
    assert not [word for word in words if word not in left.message]


def test_records_without_an_answer() -> None:
    left = unfinished_on_close(S.READY, NOTHING, config(transactional_id=None), pending=True)
    assert left is not None
    assert "the futures of the others raise an error" in left.message


@pytest.mark.parametrize(
    ("call", "level"),
    [(Call.INIT_TRANSACTIONS, logging.INFO), (Call.ABORT_TRANSACTION, logging.WARNING)],
)
def test_what_failed_while_closing(call: Call, level: int) -> None:
    """A failed initialisation has begun no transaction: otherwise a writer without Kafka would warn at each attempt."""
    operation = Operation(call.value)
    assert failed_on_close(operation) is None
    operation.end(RetriableError("no broker"))
    assert failed_on_close(operation) == (level, f"{call.value} failed while closing: no broker")
