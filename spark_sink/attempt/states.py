"""The statuses of an attempt, as one literal table.

An attempt is one try of one task to write its partition under a leased transactional id. `CHANGES` says which event
leads from which status to which; nothing else changes a status, and a pair that is not in the table does not happen.
The store asks `before` and `after` for every UPDATE it sends, and counts the rows.

Two rules follow from it: a Kafka transaction is committed only while its attempt is COMMITTING, and aborted by somebody
else only while its attempt is ABORTING. Both statuses are final decisions, so whoever finds one may act upon it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class AttemptStatus(StrEnum):
    """Where an attempt stands. In the database by these values."""

    OPEN = "OPEN"
    """It has leased a transactional id, and may be writing."""
    PREPARED = "PREPARED"
    """Its records are stored and its Kafka transaction can be committed by anybody; not decided."""
    COMMITTING = "COMMITTING"
    """Decided: its Kafka transaction is to be committed."""
    COMMITTED = "COMMITTED"
    ABORTING = "ABORTING"
    """Condemned: its Kafka transaction is to be aborted."""
    ABORTED = "ABORTED"
    LOST = "LOST"
    """It was decided, and the broker had dropped its transaction."""


class AttemptEvent(StrEnum):
    """What happens to an attempt; the values are for sentences."""

    PREPARE = "its task has prepared the Kafka transaction"
    CHOOSE = "its batch was decided, and it is one of the winners"
    CONDEMN = "it can no longer be a winner"
    COMMIT = "Kafka has committed its transaction"
    ABORT = "Kafka has aborted its transaction"
    LOSE = "Kafka had aborted its transaction by itself"


_S = AttemptStatus
_E = AttemptEvent

CHANGES: Final[Mapping[tuple[AttemptStatus, AttemptEvent], AttemptStatus]] = {
    (_S.OPEN, _E.PREPARE): _S.PREPARED,
    (_S.OPEN, _E.CONDEMN): _S.ABORTING,
    (_S.PREPARED, _E.CONDEMN): _S.ABORTING,
    (_S.PREPARED, _E.CHOOSE): _S.COMMITTING,
    (_S.COMMITTING, _E.COMMIT): _S.COMMITTED,
    (_S.COMMITTING, _E.LOSE): _S.LOST,
    (_S.ABORTING, _E.ABORT): _S.ABORTED,
}

TERMINAL: Final = frozenset(set(AttemptStatus) - {status for status, _ in CHANGES})
"""From here nothing leads on; the transactional id is free again."""

LIVE: Final = frozenset(set(AttemptStatus) - TERMINAL)
"""The transactional id is leased."""


def before(event: AttemptEvent) -> tuple[AttemptStatus, ...]:
    """The statuses in which `event` may happen."""
    return tuple(status for status, cause in CHANGES if cause is event)


def after(event: AttemptEvent) -> AttemptStatus:
    """The one status that `event` leads to."""
    (status,) = {status for (_, cause), status in CHANGES.items() if cause is event}
    return status
