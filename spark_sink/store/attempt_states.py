"""The states of an attempt, as one literal table, and the states of its Kafka transaction that follow from them.

An attempt is one try of one task to write its partition under a leased transactional id. `CHANGES` says which event
leads from which status to which. Nothing else changes a status, and a pair that is not in the table does not happen:
the store takes the statuses for every UPDATE from `before` and `after`, and counts the rows that the UPDATE changed.

Two rules follow. A Kafka transaction is committed only while its attempt is COMMITTING, and aborted by any process but
its own task only while its attempt is ABORTING. Both statuses are final decisions, so any process that reads one may
act upon it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final, NamedTuple, Protocol

from dualwrite.prepared_state import PreparedTxnState


class AttemptStatus(StrEnum):
    """The status of an attempt; the database stores the values."""

    OPEN = "OPEN"
    """It has leased a transactional id, and may be writing."""
    PREPARED = "PREPARED"
    """Its records are stored and any process can commit its Kafka transaction; not decided."""
    COMMITTING = "COMMITTING"
    """Decided: its Kafka transaction is to be committed."""
    COMMITTED = "COMMITTED"
    ABORTING = "ABORTING"
    """Condemned: its Kafka transaction is to be aborted."""
    ABORTED = "ABORTED"
    LOST = "LOST"
    """It was decided, but Kafka had aborted its transaction, which could not be published again."""


class AttemptEvent(StrEnum):
    """An event that changes the status of an attempt; the values are for sentences."""

    PREPARE = "its task has prepared the Kafka transaction"
    CHOOSE = "its batch was decided, and it is one of the winners"
    CONDEMN = "it can no longer be a winner"
    COMMIT = "Kafka has committed its transaction"
    ABORT = "Kafka has aborted its transaction"
    LOSE = "Kafka had aborted its transaction, and it could not be published again"


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
"""The statuses that no event changes; the transactional id is free again."""

LIVE: Final = frozenset(set(AttemptStatus) - TERMINAL)
"""The statuses in which the attempt still leases its transactional id."""


def before(event: AttemptEvent) -> tuple[AttemptStatus, ...]:
    """Return the statuses in which `event` may happen."""
    return tuple(status for status, cause in CHANGES if cause is event)


def after(event: AttemptEvent) -> AttemptStatus:
    """Return the one status that `event` leads to."""
    (status,) = {status for (_, cause), status in CHANGES.items() if cause is event}
    return status


# ---- completing the transaction -----------------------------------------------------------------------------------


class Verdict(Enum):
    """Whether the store wants the transaction of an attempt committed or aborted."""

    COMMIT = "commit"
    ABORT = "abort"


class Prepared(NamedTuple):
    """The transaction in the row of a prepared attempt."""

    state: PreparedTxnState
    """Empty unless the transaction was prepared."""
    manifest: str = ""
    """Empty if unknown."""

    def is_elsewhere(self, cluster_id: str) -> bool:
        """Return whether it was prepared in another Kafka cluster; False if that is unknown."""
        return bool(cluster_id and self.prepared_in) and self.prepared_in != cluster_id

    @property
    def prepared_in(self) -> str:
        """The id of the Kafka cluster in which it was prepared; empty if unknown."""
        from dualwrite.decisions.republish import cluster_of  # loads a client, which a store alone does not need

        return cluster_of(self.state, self.manifest)


@dataclass(frozen=True)
class Claim:
    """An attempt whose transaction has to be completed, with its row as read at some time."""

    attempt_id: str
    query_id: str
    batch_id: int
    transactional_id: str
    verdict: Verdict
    prepared_state: PreparedTxnState
    """Empty unless the transaction was prepared."""
    is_left: bool = field(default=False, compare=False)
    """Whether the decision is older than this call: an operator may have aborted in a partition since."""


class ClaimRows(Protocol):
    """The rows of claims in the commit store."""

    def still_wanted(self, attempt_ids: Collection[str]) -> Mapping[str, Prepared]:
        """Return those of the given attempts that still have the same verdict, as their rows are now."""

    def named(self, states: Collection[PreparedTxnState], cluster_id: str) -> frozenset[PreparedTxnState]:
        """Return those of these prepared states, of this Kafka cluster, that the row of any attempt has."""

    def replace(self, attempt_id: str, old: PreparedTxnState, new: Prepared) -> bool:
        """Replace `old` in the row by `new`, if it is still there and still to be committed; durably.

        Return whether the row has `new` now. This alone decides whether the transaction of `new` is committed. After an
        exception the outcome is unknown; the row will tell.
        """


class Ending(Enum):
    """The result of completing the transaction of a claim."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    LOST = "Kafka had aborted a transaction that was decided, and it cannot be published again"
    LEFT = "another process has completed it, or is about to"
    FAILED = "not completed; has to be repeated"


_NOT_JUDGED: Final = PreparedTxnState()


@dataclass(frozen=True)
class Ended:
    """The ending of one claim; LOST, FAILED, and a COMMITTED that nothing proves, have an `error` with the facts."""

    ending: Ending
    error: Exception | None = None
    judged: PreparedTxnState = _NOT_JUDGED
    """The prepared state that was committed or is lost; does not apply to a row that has another one by now."""
    repaired: bool = False
    """Whether the transaction was published again."""


VERDICTS: Final[Mapping[AttemptStatus, Verdict]] = {
    AttemptStatus.COMMITTING: Verdict.COMMIT,
    AttemptStatus.ABORTING: Verdict.ABORT,
}
"""The decided statuses, with the verdict that each demands of Kafka."""

EVENTS: Final[Mapping[Ending, AttemptEvent]] = {
    Ending.COMMITTED: AttemptEvent.COMMIT,
    Ending.ABORTED: AttemptEvent.ABORT,
    Ending.LOST: AttemptEvent.LOSE,
}
"""The endings that change a status, with the event that the store records."""
