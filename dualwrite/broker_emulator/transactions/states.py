"""The states of a transactional id, and the table of valid steps, against which every change of state is checked.

The table is that of Kafka's TransactionState with KIP-890 part 2: a version 5 EndTxn may abort a transaction without
partitions, hence PrepareAbort directly after Empty or Complete*.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class TransactionState(IntEnum):
    """A state by its id in `__transaction_state`; `label` is its name in DescribeTransactions and ListTransactions."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6  # only pending: decided to expire, tombstone not yet appended
    PREPARE_EPOCH_FENCE = 7  # only pending: the server decided to abort, PrepareAbort not yet appended

    @property
    def label(self) -> str:
        """The name that Kafka's APIs show, such as `PrepareCommit`."""
        return LABELS[self]


_S = TransactionState

EMPTY: Final = _S.EMPTY
ONGOING: Final = _S.ONGOING
PREPARE_COMMIT: Final = _S.PREPARE_COMMIT
PREPARE_ABORT: Final = _S.PREPARE_ABORT
"""The states of every transaction, under names that are quick to read (see `error_codes.py`)."""

LABELS: Mapping[TransactionState, str] = {
    state: "".join(word.capitalize() for word in state.name.split("_")) for state in TransactionState
}
STATE_BY_LABEL: Mapping[str, TransactionState] = {label: state for state, label in LABELS.items()}

# fmt: off
VALID_PREVIOUS_STATES: Mapping[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY:               frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.ONGOING:             frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_COMMIT:      frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT:       frozenset({_S.ONGOING, _S.PREPARE_EPOCH_FENCE,
                                       _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT:     frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT:      frozenset({_S.PREPARE_ABORT}),
    _S.DEAD:                frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}
# fmt: on

PERSISTED_STATES = frozenset(TransactionState) - {_S.DEAD, _S.PREPARE_EPOCH_FENCE}
COMPLETE_STATES = frozenset({_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
PREPARE_STATES = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
EXPIRABLE_STATES = frozenset({_S.EMPTY}) | COMPLETE_STATES


def mermaid_diagram() -> str:
    """Return the table as a Mermaid state diagram, for the documentation."""
    arrows = [
        f"    {previous.label} --> {state.label}"
        for state, previous_states in VALID_PREVIOUS_STATES.items()
        for previous in sorted(previous_states)
    ]
    return "\n".join(["stateDiagram-v2", "    [*] --> Empty", *arrows, "    Dead --> [*]"]) + "\n"
