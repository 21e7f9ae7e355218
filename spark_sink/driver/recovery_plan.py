"""What is done about one attempt that somebody finds. Pure: facts in, an action out.

The store's row decides, as it does for the sink itself: COMMITTING is committed and ABORTING is aborted, whoever does
it and however often. Ages decide nothing there; they only keep recovery from doing the work of a process that is
about to do it. An attempt that nobody has decided (OPEN, PREPARED) is its application's: recovery touches it only
where an operator says by name that the application is gone, and where nothing contradicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spark_sink.attempt.states import AttemptStatus
from spark_sink.sink_kafka import Ending


class Action(StrEnum):
    """What recovery does, or has found."""

    COMMIT = "commit"
    ABORT = "abort"
    CONDEMN = "condemn"
    YOUNG = "young"
    IN_USE = "in-use"
    UNDECIDED = "undecided"
    NO_ROW = "no-row"
    LOST = "lost"
    FAILED = "failed"


CHANGES: Final = frozenset({Action.COMMIT, Action.ABORT, Action.CONDEMN})
"""Something is carried out."""

NEEDS_SOMEBODY: Final = frozenset({Action.UNDECIDED, Action.NO_ROW, Action.LOST, Action.FAILED})
"""Nothing is carried out, and a person has to look."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one live attempt. Ages in milliseconds, by the database's clock."""

    status: AttemptStatus
    age_ms: int
    """Since its row changed last."""
    quiet_ms: int
    """Since anything changed in the rows of its sink."""
    is_named: bool
    """Whether an operator has named its sink as one whose application is gone."""


def decide(facts: Facts, *, min_age_ms: int) -> Action:
    """What is to be done about a live attempt."""
    decided = _BY_ROW.get(facts.status)
    if decided is not None:
        return Action.YOUNG if facts.age_ms < min_age_ms else decided
    if facts.quiet_ms < min_age_ms:
        return Action.YOUNG
    return Action.CONDEMN if facts.is_named else Action.UNDECIDED


_BY_ROW: Final = {AttemptStatus.COMMITTING: Action.COMMIT, AttemptStatus.ABORTING: Action.ABORT}

AFTERWARDS: Final = {Ending.LEFT: Action.IN_USE, Ending.LOST: Action.LOST, Ending.FAILED: Action.FAILED}
"""What a change turned out to be, where it could not be carried out here."""
