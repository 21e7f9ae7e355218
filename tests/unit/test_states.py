"""All (state, call) pairs of Kafka's producer, one by one, against a matrix written by hand from the protocol."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dualwrite.client.operations import Operation
from dualwrite.client.pacing import Backoff
from dualwrite.client.records.record import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from dualwrite.client.transactions.manager import TransactionManager
from dualwrite.client.transactions.states import CALLS, EVENTS, WHAT_NEXT, Call, Event, ProducerState
from dualwrite.errors import AbortableError, FatalError, FencedError, IllegalStateError, InvalidTxnStateError
from dualwrite.prepared_state import PreparedTxnState

S = ProducerState

IllegalState = IllegalStateError
InvalidTxn = InvalidTxnStateError
Last = AbortableError  # the error that made the transaction abortable
Fatal = FencedError  # the error that ended the producer

# Columns: states; rows: calls. A state: the call is legal and leads there. Nothing is pending.
STATES = [
    S.UNINITIALIZED,
    S.INITIALIZING,
    S.READY,
    S.IN_TRANSACTION,
    S.PREPARED_TRANSACTION,
    S.COMMITTING_TRANSACTION,
    S.ABORTING_TRANSACTION,
    S.ABORTABLE_ERROR,
    S.FATAL_ERROR,
    S.CLOSED,
]
No, NoTxn = IllegalState, InvalidTxn
INIT, IN, COMMITTING, ABORTING = S.INITIALIZING, S.IN_TRANSACTION, S.COMMITTING_TRANSACTION, S.ABORTING_TRANSACTION
MATRIX: dict[str, list[S | type[Exception]]] = {
    # UNINIT INITIALIZING READY IN_TXN PREPARED COMMITTING ABORTING ABORTABLE FATAL CLOSED
    "init": [INIT, No, No, No, No, No, No, No, Fatal, No],
    "begin": [No, No, IN, No, No, No, No, Last, Fatal, No],
    "send": [No, No, No, IN, No, No, No, Last, Fatal, No],
    "send_offsets": [No, No, No, IN, No, No, No, Last, Fatal, No],
    "prepare": [No, No, No, IN, No, No, No, Last, Fatal, No],
    "commit": [No, No, No, COMMITTING, COMMITTING, No, No, Last, Fatal, No],
    "abort": [No, No, No, ABORTING, ABORTING, No, No, ABORTING, Fatal, No],
    "complete_same": [NoTxn, NoTxn, NoTxn, NoTxn, COMMITTING, NoTxn, NoTxn, Last, Fatal, NoTxn],
    "complete_other": [NoTxn, NoTxn, NoTxn, NoTxn, ABORTING, NoTxn, NoTxn, Last, Fatal, NoTxn],
    "close": [S.CLOSED] * 10,
}


def manager_in(state: ProducerState) -> TransactionManager:
    manager = TransactionManager(
        transactional_id="t", transaction_timeout_ms=1, two_phase_commit=True, backoff=Backoff(100, 1000)
    )
    manager.state = state
    manager.producer_id, manager.producer_epoch = 42, 7
    if state is S.PREPARED_TRANSACTION:
        manager.transaction.prepared_state = PreparedTxnState("42:7")
        manager.produced()
    if state is S.ABORTABLE_ERROR:
        manager.error = AbortableError("a record was lost")
    if state is S.FATAL_ERROR:
        manager.error = FencedError("another producer", error_code=90)
    return manager


def make(manager: TransactionManager, call: str) -> Operation | None:
    offsets = {TopicPartition("t", 0): OffsetAndMetadata(1)}
    calls: dict[str, Callable[[], Operation | None]] = {
        "init": lambda: manager.init_transactions(False),
        "begin": manager.begin_transaction,
        "send": manager.check_send,
        "send_offsets": lambda: manager.send_offsets(offsets, ConsumerGroupMetadata("g")),
        "prepare": manager.prepare_transaction,
        "commit": manager.commit_transaction,
        "abort": manager.abort_transaction,
        "complete_same": lambda: manager.complete_transaction(PreparedTxnState("42:7")),
        "complete_other": lambda: manager.complete_transaction(PreparedTxnState("1:1")),
        "close": lambda: manager.close(FatalError("closed")),
    }
    return calls[call]()


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
        assert "'t'" in str(raised.value), "which transactional id"


# The meaning of each further call while a call's outcome is unknown to its caller. JOIN: the same operation.
PENDING = ["init", "send_offsets", "prepare", "commit", "abort", "complete_same", "complete_other"]
JOIN, TAKES_OVER = "join", "takes over"
WHILE_PENDING: dict[str, dict[str, str]] = {
    "init": {"init": JOIN},
    "send_offsets": {"send_offsets": JOIN, "abort": TAKES_OVER},
    "prepare": {"prepare": JOIN, "abort": TAKES_OVER},
    "commit": {"commit": JOIN},
    "abort": {"abort": JOIN},
    "complete_same": {"complete_same": JOIN},
    "complete_other": {"complete_other": JOIN},
}
STATE_FOR = {
    "init": S.UNINITIALIZED,
    "send_offsets": S.IN_TRANSACTION,
    "prepare": S.IN_TRANSACTION,
    "commit": S.IN_TRANSACTION,
    "abort": S.IN_TRANSACTION,
    "complete_same": S.PREPARED_TRANSACTION,
    "complete_other": S.PREPARED_TRANSACTION,
}


@pytest.mark.parametrize("call", [call for call in MATRIX if call != "close"])
@pytest.mark.parametrize("pending", PENDING)
def test_every_call_while_another_has_no_outcome_yet(pending: str, call: str) -> None:
    manager = manager_in(STATE_FOR[pending])
    manager.produced()
    first = make(manager, pending)
    state = manager.state
    expected = WHILE_PENDING[pending].get(call)
    if expected == JOIN:
        assert make(manager, call) is first
        assert manager.state is state
    elif expected == TAKES_OVER:
        second = make(manager, call)
        assert second is not first
        assert isinstance(first, Operation)
        assert isinstance(first.error, IllegalStateError)
        assert manager.state is S.ABORTING_TRANSACTION
    else:
        with pytest.raises(IllegalStateError, match=r"is not known yet.*'t'.*repeat that call"):
            make(manager, call)
        assert manager.state is state


def test_another_argument_is_another_call() -> None:
    manager = manager_in(S.UNINITIALIZED)
    manager.init_transactions(True)
    with pytest.raises(IllegalStateError, match="same argument"):
        manager.init_transactions(False)


def test_the_error_that_ended_the_producer_is_raised_again_with_its_code() -> None:
    with pytest.raises(FencedError, match="another producer") as raised:
        manager_in(S.FATAL_ERROR).begin_transaction()
    assert raised.value.error_code == 90


def test_every_state_has_its_sentence_and_every_call_and_event_is_used() -> None:
    assert WHAT_NEXT.keys() == set(ProducerState)
    assert {call for _, call in CALLS} == set(Call)
    assert {event for _, event in EVENTS} == set(Event)


def test_entries_are_those_of_kafkas_own_client() -> None:
    """From which states each state may be entered; re-initialisation after an error is not supported."""
    entered_from: dict[S, set[S]] = {state: set() for state in S}
    for (before, _), after in [*CALLS.items(), *EVENTS.items()]:
        if after is not before:
            entered_from[after].add(before)
    # without KeepPreparedTxn, InitProducerId comes after the stored state was compared: in complete_transaction()
    assert entered_from[S.INITIALIZING] == {
        S.UNINITIALIZED,
        S.READY,
        S.PREPARED_TRANSACTION,
        S.COMMITTING_TRANSACTION,
    }
    assert entered_from[S.READY] == {S.INITIALIZING, S.COMMITTING_TRANSACTION, S.ABORTING_TRANSACTION}
    assert entered_from[S.IN_TRANSACTION] == {S.READY}
    assert entered_from[S.PREPARED_TRANSACTION] == {S.IN_TRANSACTION, S.INITIALIZING}
    assert entered_from[S.COMMITTING_TRANSACTION] == {S.IN_TRANSACTION, S.PREPARED_TRANSACTION}
    assert entered_from[S.ABORTING_TRANSACTION] == {S.IN_TRANSACTION, S.PREPARED_TRANSACTION, S.ABORTABLE_ERROR}
    assert entered_from[S.ABORTABLE_ERROR] == {S.IN_TRANSACTION, S.COMMITTING_TRANSACTION}
    assert entered_from[S.FATAL_ERROR] == set(S) - {S.FATAL_ERROR, S.CLOSED}
