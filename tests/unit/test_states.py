"""All (state, call) pairs of Kafka's producer, one by one, against a matrix written by hand from the protocol."""

from __future__ import annotations

import pytest

from dualwrite.client.backoff import Backoff
from dualwrite.client.records import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from dualwrite.client.states import CALLS, EVENTS, WHAT_NEXT, Call, Event, ProducerState
from dualwrite.client.transaction_manager import TransactionManager
from dualwrite.errors import AbortableError, FencedError, IllegalStateError, InvalidTxnStateError
from dualwrite.prepared_state import PreparedTxnState

S = ProducerState

IllegalState = IllegalStateError
InvalidTxn = InvalidTxnStateError
Last = AbortableError  # the error that made the transaction abortable
Fatal = FencedError  # the error that ended the producer

# rows: calls; columns in the order of STATES. A state: the call is legal and leads there.
STATES = [S.UNINITIALIZED, S.READY, S.IN_TRANSACTION, S.PREPARED_TRANSACTION, S.ABORTABLE_ERROR, S.FATAL_ERROR]
MATRIX: dict[str, list[S | type[Exception]]] = {
    "init": [S.INITIALIZING, IllegalState, IllegalState, IllegalState, IllegalState, Fatal],
    "begin": [IllegalState, S.IN_TRANSACTION, IllegalState, IllegalState, Last, Fatal],
    "send": [IllegalState, IllegalState, S.IN_TRANSACTION, IllegalState, Last, Fatal],
    "send_offsets": [IllegalState, IllegalState, S.IN_TRANSACTION, IllegalState, Last, Fatal],
    "prepare": [IllegalState, IllegalState, S.IN_TRANSACTION, IllegalState, Last, Fatal],
    "commit": [
        IllegalState,
        IllegalState,
        S.COMMITTING_TRANSACTION,
        S.COMMITTING_TRANSACTION,
        Last,
        Fatal,
    ],
    "abort": [
        IllegalState,
        IllegalState,
        S.ABORTING_TRANSACTION,
        S.ABORTING_TRANSACTION,
        S.ABORTING_TRANSACTION,
        Fatal,
    ],
    "complete_same": [InvalidTxn, InvalidTxn, InvalidTxn, S.COMMITTING_TRANSACTION, Last, Fatal],
    "complete_other": [InvalidTxn, InvalidTxn, InvalidTxn, S.ABORTING_TRANSACTION, Last, Fatal],
}


def manager_in(state: ProducerState) -> TransactionManager:
    manager = TransactionManager(
        transactional_id="t", transaction_timeout_ms=1, two_phase_commit=True, backoff=Backoff(100, 1000)
    )
    manager.state = state
    manager.producer_id, manager.producer_epoch = 42, 7
    if state is S.PREPARED_TRANSACTION:
        manager.prepared_txn_state = PreparedTxnState("42:7")
        manager.produced()
    if state is S.ABORTABLE_ERROR:
        manager._error = AbortableError("a record was lost")
    if state is S.FATAL_ERROR:
        manager._error = FencedError("another producer", error_code=90)
    return manager


def make(manager: TransactionManager, call: str) -> None:
    if call == "init":
        manager.init_transactions(False)
    elif call == "begin":
        manager.begin_transaction()
    elif call == "send":
        manager.check_send()
    elif call == "send_offsets":
        manager.send_offsets({TopicPartition("t", 0): OffsetAndMetadata(1)}, ConsumerGroupMetadata("g"))
    elif call == "prepare":
        manager.prepare_transaction()
    elif call == "commit":
        manager.commit_transaction()
    elif call == "abort":
        manager.abort_transaction()
    elif call == "complete_same":
        manager.complete_transaction(manager.prepared_txn_state)
    else:
        manager.complete_transaction(PreparedTxnState("1:1"))


CASES = [(state, call, expected) for call, row in MATRIX.items() for state, expected in zip(STATES, row, strict=True)]


@pytest.mark.parametrize(("state", "call", "expected"), CASES, ids=[f"{c}-{s.name}" for s, c, _ in CASES])
def test_every_state_and_call(state: S, call: str, expected: S | type[Exception]) -> None:
    manager = manager_in(state)
    if isinstance(expected, ProducerState):
        make(manager, call)
        assert manager.state is expected
    else:
        with pytest.raises(expected) as raised:
            make(manager, call)
        assert type(raised.value) is expected
        assert manager.state is state
        assert WHAT_NEXT[state] in str(raised.value)


@pytest.mark.parametrize("call", MATRIX)
def test_a_closed_producer_allows_nothing(call: str) -> None:
    manager = manager_in(S.CLOSED)
    with pytest.raises(IllegalStateError, match="create a new producer"):
        make(manager, call)


def test_the_error_that_ended_the_producer_is_raised_again_with_its_code() -> None:
    with pytest.raises(FencedError, match="another producer") as raised:
        manager_in(S.FATAL_ERROR).begin_transaction()
    assert raised.value.error_code == 90


def test_every_state_has_its_sentence_and_every_call_and_event_is_used() -> None:
    assert WHAT_NEXT.keys() == set(ProducerState)
    assert {call for _, call in CALLS} == set(Call)
    assert {event for _, event in EVENTS} == set(Event)


def test_entries_are_those_of_kafkas_own_client() -> None:
    """Which states each state may be entered from; re-initialisation after an error is not offered here."""
    entered_from: dict[S, set[S]] = {state: set() for state in S}
    for (before, _), after in [*CALLS.items(), *EVENTS.items()]:
        if after is not before:
            entered_from[after].add(before)
    assert entered_from[S.INITIALIZING] == {S.UNINITIALIZED}
    assert entered_from[S.READY] == {S.INITIALIZING, S.COMMITTING_TRANSACTION, S.ABORTING_TRANSACTION}
    assert entered_from[S.IN_TRANSACTION] == {S.READY}
    assert entered_from[S.PREPARED_TRANSACTION] == {S.IN_TRANSACTION, S.INITIALIZING}
    assert entered_from[S.COMMITTING_TRANSACTION] == {S.IN_TRANSACTION, S.PREPARED_TRANSACTION}
    assert entered_from[S.ABORTING_TRANSACTION] == {S.IN_TRANSACTION, S.PREPARED_TRANSACTION, S.ABORTABLE_ERROR}
    assert entered_from[S.ABORTABLE_ERROR] == {S.IN_TRANSACTION, S.COMMITTING_TRANSACTION}
    assert entered_from[S.FATAL_ERROR] == set(S) - {S.FATAL_ERROR, S.CLOSED}
