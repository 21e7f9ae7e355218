"""The actions of recovery for one transactional id: a table, and pure functions of facts; and the report.

The facts are read in this order: the id's state row, under its lock, and then the coordinator's description of the id.
While the lock is held, no dual write of the id can send a record or change the row. So an open transaction that the row
does not name was left by a database transaction that has ended, and one that the row names is decided.

The age of a transaction proves nothing and decides no outcome. It keeps recovery from fencing an owner that is between
the end of its database transaction and the end of its Kafka transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final

from dualwrite.client.log.transaction_end import TransactionEnd
from dualwrite.client.transactions.recovery import Described, DescribedState, Finding, commits_later, find
from dualwrite.errors import DualWriteError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.buffer import BufferedRecord
from dualwrite.recipes.core.judge import refusal_of
from dualwrite.recipes.core.proof import Verdict


class Row(Enum):
    """The state of the id's row in the database."""

    FREE = "recovery holds its lock now"
    HELD = "another database transaction holds its lock: a dual write of the id is running"
    MISSING = "there is no row: this database decides nothing for the id"
    VOUCHED = "there is no row, and the caller vouches that no other database decides for the id"


class Age(Enum):
    """How long the open transaction has been open."""

    YOUNG = "less than the minimum age, or unknown"
    OLD = "at least the minimum age"


class Action(StrEnum):
    """The actions of recovery for an id; those after ACKNOWLEDGE leave the id as it is."""

    COMMIT = "commit"
    """The open transaction is the one that the row names: the database has decided it."""
    ABORT = "abort"
    """The row does not name the open transaction, prepared or not, and its lock was free: it was never decided."""
    TERMINATE = "terminate"
    """Like ABORT, for an id without a row that the caller vouches for."""
    REPAIR = "repair"
    """The database committed and Kafka has aborted: the records, which are still in the log, are published again."""
    PUBLISH = "publish"
    """The database stores blocks of the id that wait for Kafka, or an outbox does: they are published."""
    PUBLISH_AGAIN = "publish-again"
    """Like NOT_PROVEN, but the caller says that Kafka does not have the last batch of the outbox: it is published."""
    TAKE_OUT = "take-out"
    """Like REPAIR or NOT_PROVEN, but the caller takes the records out: they are handed over, and not published."""
    ACKNOWLEDGE = "acknowledge-lost"
    """The caller acknowledged the loss: the id may be used again."""
    NOTHING = "nothing"
    """Nothing is open and nothing is missing."""
    ENDING = "ending"
    """The coordinator is writing the markers of a transaction that is already being completed."""
    IN_USE = "in-use"
    """A live owner is using it."""
    YOUNG = "young"
    """Open for less than the minimum age: its owner may be about to end it."""
    NO_ROW = "no-row"
    """Open, and this database has no row that could decide it."""
    LOST = "lost"
    """The database committed, Kafka has aborted, and the records cannot be published again: the two disagree."""
    NOT_PROVEN = "not-proven"
    """Nothing shows whether Kafka has committed the last batch of an outbox: it publishes nothing more."""
    REFUSED = "refused"
    """Kafka refuses a record of a stored block, or an owed record, for good: nothing behind it is published."""
    OVERDUE = "overdue"
    """Blocks wait in an outbox for longer than the minimum age, although a living process has its lease."""
    FORGOTTEN = "forgotten"
    """The row names a later transaction than any Kafka knows: Kafka lost data, or this is another cluster."""
    ANOTHER_CLUSTER = "another-cluster"
    """The row's transaction was prepared in another Kafka cluster, and is not known to be complete."""
    WENT_BACK = "went-back"
    """The row is older than a transaction that Kafka committed under the id."""
    HANGS = "hangs"
    """A decided transaction has no marker in a partition, and no coordinator is going to write one."""
    FAILED = "failed"
    """A query or the completion failed; the next round tries again."""


def action_of(error: DualWriteError) -> Action | None:
    """Return the action that reports an error, by its name at the judge; None if a later round may not meet it."""
    name = refusal_of(error).name
    return Action(name) if name in set(Action) else None


CHANGES: Final = frozenset(
    {
        Action.COMMIT,
        Action.ABORT,
        Action.TERMINATE,
        Action.REPAIR,
        Action.PUBLISH,
        Action.PUBLISH_AGAIN,
        Action.TAKE_OUT,
        Action.ACKNOWLEDGE,
    }
)
"""The actions that change an id."""

NEEDS_OPERATOR: Final = frozenset(
    {
        Action.NO_ROW,
        Action.LOST,
        Action.NOT_PROVEN,
        Action.REFUSED,
        Action.OVERDUE,
        Action.FORGOTTEN,
        Action.ANOTHER_CLUSTER,
        Action.WENT_BACK,
        Action.HANGS,
        Action.FAILED,
    }
)
"""The actions that report an id for an operator to look into."""

_A, _F = Action, Finding

# Columns in the order of Finding: OPEN, OTHER_OPEN, COMMITTED, ABORTED, VANISHED, NO_TRACE.
# Without a row nothing is stored, so COMMITTED, ABORTED, VANISHED cannot occur there; the id would be left alone.
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
    """The facts that are known of one id.

    `stored` is empty if there is no row; `age_ms` is None if it is unknown. `end` is how the stored transaction ended,
    by the log; None if the log was not read. `is_repairable`: aborted records may be published again.
    """

    row: Row
    stored: PreparedTxnState
    described: Described
    age_ms: int | None
    transaction_version: int
    end: TransactionEnd | None = None
    is_repairable: bool = True
    is_kept: bool = False
    """Whether the database keeps the records of the stored transaction."""
    verdict: Verdict | None = None
    """How the stored transaction has ended, as the row notes it."""
    stored_age_ms: int | None = None
    """For how long the database has stored blocks of the id that wait for Kafka; None if it stores none."""
    has_publisher: bool = False
    """Whether a living process has the lease of this outbox, and so publishes them."""
    is_settled: bool = False
    """Whether the row says that the stored transaction is known to be complete, so that no cluster need be asked."""
    refusal: Action | None = None
    """The action that reports the refusal by the row, as the judge names it; None if the row is no cause of one."""


PROVEN_BY_LOG: Final = frozenset({Finding.COMMITTED, Finding.ABORTED, Finding.VANISHED, Finding.NO_TRACE})
"""The findings that the log confirms or corrects, if it still has the records of the stored transaction.

An open transaction is committed first, and then the log is read.
"""


def finding_of(facts: Facts) -> Finding:
    """Return the finding about the stored transaction, by its row, the log if it was read, and the coordinator."""
    finding = find(facts.stored, facts.described, facts.transaction_version)
    if finding not in PROVEN_BY_LOG:
        return finding
    if facts.is_settled:
        return Finding.COMMITTED
    if facts.end is not None and facts.end.aborted:
        return Finding.ABORTED
    if facts.end is not None and facts.end.committed:
        return Finding.COMMITTED
    if facts.verdict is None or finding is Finding.COMMITTED:
        return finding
    return Finding.COMMITTED if facts.verdict is Verdict.COMMITTED else Finding.ABORTED


def decide(
    facts: Facts,
    *,
    min_age_ms: int,
    lost_is_acknowledged: bool = False,
    owed_is_taken_out: bool = False,
    is_published_again: bool = False,
) -> Action:
    """Return the action for an id with these facts; the flags are its caller's decisions about the id."""
    age = Age.OLD if facts.age_ms is not None and facts.age_ms >= min_age_ms else Age.YOUNG
    action = ACTIONS[facts.row, age, finding_of(facts)]
    if facts.refusal is Action.ANOTHER_CLUSTER:  # what this cluster says of the pair is about another transaction
        return Action.IN_USE if facts.row is Row.HELD else Action.ANOTHER_CLUSTER
    if lost_is_acknowledged and (action is Action.LOST or _is_behind(facts)):
        return Action.ACKNOWLEDGE
    if action is Action.LOST and facts.is_repairable and _can_be_repaired(facts):
        return Action.TAKE_OUT if owed_is_taken_out else Action.REPAIR
    if facts.refusal is Action.WENT_BACK and action is Action.NOTHING:
        return Action.IN_USE if facts.row is Row.HELD else Action.WENT_BACK
    if _is_not_proven(facts, action, is_decided=owed_is_taken_out or is_published_again):
        if owed_is_taken_out:
            return Action.TAKE_OUT
        return Action.PUBLISH_AGAIN if is_published_again else Action.NOT_PROVEN
    if action is Action.NOTHING and facts.described.state in _BEING_ENDED:
        return Action.ENDING
    if action is Action.NOTHING and facts.stored_age_ms is not None:
        return _about_stored(facts, is_old=facts.stored_age_ms >= min_age_ms)
    return action


def _is_not_proven(facts: Facts, action: Action, *, is_decided: bool) -> bool:
    """Return whether nothing shows how the last batch of an outbox has ended, as `last_batch.py` says.

    `is_decided`: the caller has looked. Then another open transaction, or a coordinator that has lost the batch, need
    not be looked into first.
    """
    is_in_question = facts.is_kept and not facts.is_settled and not facts.stored.is_empty
    if facts.row is not Row.FREE or not is_in_question or facts.verdict is Verdict.ABORTED:
        return False
    if commits_later(facts.stored, facts.described) or (facts.end is not None and facts.end.committed):
        return False
    if facts.verdict is Verdict.COMMITTED:
        return action is Action.LOST  # an operator has aborted it in a partition
    finding = finding_of(facts)
    if finding is Finding.OTHER_OPEN and facts.end is not None and facts.end.aborted and not facts.end.gone:
        return False  # its end is known
    if is_decided and finding in (Finding.OTHER_OPEN, Finding.VANISHED):
        return True
    return action is Action.LOST or (action is Action.NOTHING and finding is Finding.NO_TRACE)


def _about_stored(facts: Facts, *, is_old: bool) -> Action:
    """Return the action for stored blocks, also those of an outbox whose row is missing.

    Recovery would fence a living publisher. Publishing takes milliseconds, so a publisher whose blocks are old is held
    up by another cause.
    """
    if facts.row is Row.HELD:
        return Action.IN_USE
    if facts.has_publisher:
        return Action.OVERDUE if is_old else Action.NOTHING
    return Action.PUBLISH if is_old else Action.YOUNG


def _is_behind(facts: Facts) -> bool:
    """Return whether a later transaction than the row's was committed, whose row the database has lost."""
    return facts.row is Row.FREE and commits_later(facts.stored, facts.described)


def _can_be_repaired(facts: Facts) -> bool:
    """Return whether all aborted records may still be in the log, or the database keeps them.

    Before transaction.version 2 only the log or a note in the row (`last_batch.py`) proves that they were aborted.
    """
    end, is_noted = facts.end, facts.verdict is Verdict.ABORTED
    is_final = facts.transaction_version >= 2 or is_noted
    if end is None:
        return facts.is_kept and is_final
    is_whole = facts.is_kept and (is_final or bool(end.aborted))
    return (bool(end.aborted) and not end.gone) or (is_whole and (is_noted or not end.is_visible))


def age_ms_of(state: str, start_ms: int | None, now_ms: int) -> int | None:
    """Return how long the open transaction has been open, or None if none is open."""
    if state != DescribedState.ONGOING.value or start_ms is None:
        return None
    return max(now_ms - start_ms, 0)


# ---- the report -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """One transactional id that recovery looked at.

    `changed` is True if the action was carried out; False if it was only planned, changes nothing, or failed, in which
    case `error` says why. `kafka_transactional_id` is the id as Kafka knows it; `transactional_id` is the same if the
    id is not of this database. `row` is the text of the state row, None if there is no row. `state` and `pair`
    (producer id and epoch) are from the coordinator's description, and `age_ms` is how long its transaction has been
    open, None if none is.
    """

    transactional_id: str
    kafka_transactional_id: str
    action: Action
    changed: bool
    row: str | None
    state: str
    pair: str
    age_ms: int | None
    topic_partitions: tuple[str, ...]
    error: str | None = None

    @property
    def is_left(self) -> bool:
        """Whether the id is still in doubt or wrong, and not in the hands of a live owner."""
        return self.action in NEEDS_OPERATOR or (self.action in CHANGES and not self.changed)


@dataclass(frozen=True, slots=True)
class TakenOut:
    """A stored block with its records; `changed` is whether it was taken out, or only read.

    `seq` is 0 for owed records, those of a decided transaction that Kafka aborted; since when they are owed is not
    known. `unreadable` has the bytes of a block that cannot be read, which has no records then.
    """

    transactional_id: str
    seq: int
    stored_at_ms: int
    records: tuple[BufferedRecord, ...]
    changed: bool = False
    unreadable: bytes | None = None


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The result of one round.

    `settled` counts the ids that had nothing open and nothing missing. `unseen` describes the queries that failed or
    were left out. `taken_out` has the owed records that were taken out, or would be.
    """

    found: tuple[Found, ...]
    settled: int
    unseen: tuple[str, ...]
    applied: bool
    taken_out: tuple[TakenOut, ...] = ()

    @property
    def left(self) -> tuple[Found, ...]:
        """The ids that an operator or a later round has to deal with."""
        return tuple(found for found in self.found if found.is_left)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left and everything could be queried."""
        return not self.left and not self.unseen
