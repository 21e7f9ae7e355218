from __future__ import annotations

import pytest

from dualwrite.broker_emulator.transactions.states import (
    EXPIRABLE_STATES,
    PERSISTED_STATES,
    STATE_BY_LABEL,
    VALID_PREVIOUS_STATES,
    TransactionState,
    mermaid_diagram,
)

KAFKA_STATES = [  # id, name, persisted, expirable, valid previous states
    (0, "Empty", True, True, "Empty CompleteCommit CompleteAbort"),
    (1, "Ongoing", True, False, "Ongoing Empty CompleteCommit CompleteAbort"),
    (2, "PrepareCommit", True, False, "Ongoing"),
    (3, "PrepareAbort", True, False, "Ongoing PrepareEpochFence Empty CompleteCommit CompleteAbort"),
    (4, "CompleteCommit", True, True, "PrepareCommit"),
    (5, "CompleteAbort", True, True, "PrepareAbort"),
    (6, "Dead", False, False, "Empty CompleteCommit CompleteAbort"),
    (7, "PrepareEpochFence", False, False, "Ongoing"),
]


@pytest.mark.parametrize(("number", "label", "persisted", "expirable", "previous"), KAFKA_STATES)
def test_every_state_is_kafkas(number: int, label: str, persisted: bool, expirable: bool, previous: str) -> None:
    state = TransactionState(number)
    assert state.label == label
    assert STATE_BY_LABEL[label] is state
    assert (state in PERSISTED_STATES) == persisted
    assert (state in EXPIRABLE_STATES) == expirable
    assert {before.label for before in VALID_PREVIOUS_STATES[state]} == set(previous.split())


def test_there_are_no_other_states() -> None:
    assert [state.value for state in TransactionState] == [row[0] for row in KAFKA_STATES]
    assert set(VALID_PREVIOUS_STATES) == set(TransactionState)


def test_the_diagram_has_every_arrow_of_the_table() -> None:
    arrows = sum(len(previous) for previous in VALID_PREVIOUS_STATES.values())
    diagram = mermaid_diagram()
    assert diagram.count(" --> ") == arrows + 2
    assert "    Ongoing --> PrepareCommit\n" in diagram
