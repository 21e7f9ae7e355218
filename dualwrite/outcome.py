"""The outcome of a dual write: of its block, of an error that left the block, and of a recovery."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Outcome(StrEnum):
    """How a dual write, or a transaction that a crash left open, ended in database and Kafka."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled-back"
    NOTHING = "nothing"
    """There was nothing to complete."""
    REPAIRED = "repaired"
    """Kafka had aborted a decided transaction; its records were published again (`repair.py`)."""
    STORED = "stored"
    """The database has committed, and stores the records until Kafka is back (`stored_blocks.py`)."""
    PUBLISHED = "published"
    """Records that waited in an outbox are in Kafka now."""
    SUPERSEDED = "superseded"
    """A later dual write has replaced the row: database and Kafka agree, but the row no longer shows the outcome."""
    UNKNOWN = "unknown"
    """It is unknown now whether the database has committed."""

    @property
    def is_decided(self) -> bool:
        """Whether the database has committed."""
        return self in _DECIDED


_DECIDED: Final = frozenset({Outcome.COMMITTED, Outcome.STORED, Outcome.REPAIRED, Outcome.PUBLISHED})
_NOTED: Final = "_dualwrite_outcome"


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome of the block that `error` left; works for every class of exception.

    ROLLED_BACK: neither side is changed, so the block may be repeated. COMMITTED or STORED (`is_decided`): the database
    has committed, so a repetition would write twice. UNKNOWN: it cannot be said now, or the error left no block.

    If the error left nested blocks, the answer is ROLLED_BACK only if all of them were rolled back.
    """
    noted: Outcome = error.__dict__.get(_NOTED, Outcome.UNKNOWN)
    return noted


def note_outcome(error: BaseException, outcome: Outcome) -> None:
    """Note the outcome of the block that `error` leaves, unless it left an inner block that was not rolled back."""
    noted = error.__dict__.get(_NOTED, Outcome.ROLLED_BACK)
    if outcome.is_decided or noted is Outcome.ROLLED_BACK:
        error.__dict__[_NOTED] = outcome
