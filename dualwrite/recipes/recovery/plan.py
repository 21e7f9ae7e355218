"""What recovery does about one transactional id, from facts alone: a table, pure decisions.

The facts are read in this order: the row of the id, under its lock, and then what its coordinator says of it. While the
lock is held, no dual write of the id can send a record or change the row. So an open transaction that the row does not
name was left by a database transaction that is over, and one that the row names is decided.

An age is no proof and decides no outcome. It keeps recovery away from an owner who is between the end of its database
transaction and that of its Kafka transaction, and who would be fenced in the middle of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final

from dualwrite.client.transactions.recovery import Described, DescribedState, Finding, find
from dualwrite.prepared_state import PreparedTxnState


class Row(Enum):
    """What the database says of the id's row."""

    FREE = "it is locked by us now"
    HELD = "a database transaction holds its lock: a dual write of the id is running"
    MISSING = "there is none: this database decides nothing for the id"
    VOUCHED = "there is none, and the caller has named the id as one that nothing else decides for"


class Age(Enum):
    """For how long the open transaction has been open."""

    YOUNG = "less than the least age, or nobody knows"
    OLD = "the least age, or more"


class Action(StrEnum):
    """What recovery does about an id; all but the first four leave it as it is."""

    COMMIT = "commit"
    """The open transaction is the one that the row names: the database has decided it."""
    ABORT = "abort"
    """The row does not name the open transaction, prepared or not, and nobody holds the row: it was never decided."""
    TERMINATE = "terminate"
    """As ABORT, for an id without a row that was named by the caller."""
    ACKNOWLEDGE = "acknowledge-lost"
    """The loss was acknowledged by the caller: the id is taken on."""
    NOTHING = "nothing"
    """Nothing is open and nothing is missing."""
    ENDING = "ending"
    """The coordinator is writing the markers of an end that was decided."""
    IN_USE = "in-use"
    """A living owner is at it."""
    YOUNG = "young"
    """Open for less than the least age: its owner may be about to end it."""
    NO_ROW = "no-row"
    """Open, and this database has no row that could decide it."""
    LOST = "lost"
    """The database has decided for what Kafka has aborted: the two sides disagree."""
    FORGOTTEN = "forgotten"
    """The row names a transaction later than all that Kafka knows: it lost data, or it is another cluster."""
    FAILED = "failed"
    """It could not be found out or carried out now; the next round tries again."""


CHANGES: Final = frozenset({Action.COMMIT, Action.ABORT, Action.TERMINATE, Action.ACKNOWLEDGE})
"""What changes something."""

NEEDS_SOMEBODY: Final = frozenset({Action.NO_ROW, Action.LOST, Action.FORGOTTEN, Action.FAILED})
"""What somebody has to see to."""

_A, _F = Action, Finding

# Columns in the order of Finding: OPEN, OTHER_OPEN, COMMITTED, ABORTED, VANISHED, NO_TRACE.
# Without a row nothing is stored that could be found: those columns say what cannot be, and leave it alone.
_ROWS: Final[dict[tuple[Row, Age], tuple[Action, ...]]] = {
    (Row.FREE, Age.OLD): (_A.COMMIT, _A.ABORT, _A.NOTHING, _A.LOST, _A.FORGOTTEN, _A.NOTHING),
    (Row.FREE, Age.YOUNG): (_A.YOUNG, _A.YOUNG, _A.NOTHING, _A.LOST, _A.FORGOTTEN, _A.NOTHING),
    (Row.HELD, Age.OLD): (_A.IN_USE, _A.IN_USE, _A.NOTHING, _A.IN_USE, _A.IN_USE, _A.NOTHING),
    (Row.HELD, Age.YOUNG): (_A.IN_USE, _A.IN_USE, _A.NOTHING, _A.IN_USE, _A.IN_USE, _A.NOTHING),
    (Row.MISSING, Age.OLD): (_A.NO_ROW, _A.NO_ROW, _A.NOTHING, _A.NOTHING, _A.NOTHING, _A.NOTHING),
    (Row.MISSING, Age.YOUNG): (_A.YOUNG, _A.YOUNG, _A.NOTHING, _A.NOTHING, _A.NOTHING, _A.NOTHING),
    (Row.VOUCHED, Age.OLD): (_A.NO_ROW, _A.TERMINATE, _A.NOTHING, _A.NOTHING, _A.NOTHING, _A.NOTHING),
    (Row.VOUCHED, Age.YOUNG): (_A.YOUNG, _A.YOUNG, _A.NOTHING, _A.NOTHING, _A.NOTHING, _A.NOTHING),
}

ACTIONS: Final[dict[tuple[Row, Age, Finding], Action]] = {
    (row, age, finding): action
    for (row, age), actions in _ROWS.items()
    for finding, action in zip(Finding, actions, strict=True)
}

_BEING_ENDED: Final = (DescribedState.PREPARE_COMMIT, DescribedState.PREPARE_ABORT)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one id. `stored` is empty where there is no row; `age_ms` None where nobody knows."""

    row: Row
    stored: PreparedTxnState
    described: Described
    age_ms: int | None
    transaction_version: int


def decide(facts: Facts, *, min_age_ms: int, lost_is_acknowledged: bool = False) -> Action:
    """What recovery does about an id with these facts."""
    age = Age.OLD if facts.age_ms is not None and facts.age_ms >= min_age_ms else Age.YOUNG
    action = ACTIONS[facts.row, age, find(facts.stored, facts.described, facts.transaction_version)]
    if action is Action.LOST and lost_is_acknowledged:
        return Action.ACKNOWLEDGE
    if action is Action.NOTHING and facts.described.state in _BEING_ENDED:
        return Action.ENDING
    return action


def age_ms_of(state: str, start_ms: int | None, now_ms: int) -> int | None:
    """For how long the open transaction has been open; None where nothing is open."""
    if state != DescribedState.ONGOING.value or start_ms is None:
        return None
    return max(now_ms - start_ms, 0)
