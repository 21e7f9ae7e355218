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

from dualwrite.admin import HangingTransaction
from dualwrite.client.transactions.recovery import DescribedState, Finding
from dualwrite.errors import DualWriteError
from dualwrite.hanging import next_step, pair_of
from dualwrite.recipes.core.buffer import BufferedRecord
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.core.database_identity import foreign_suffix_of
from dualwrite.recipes.core.judge import refusal_of
from dualwrite.recipes.core.proof import Verdict
from dualwrite.recipes.recovery.seen import Decision, Seen


class Row(Enum):
    """The state of the id's row in the database."""

    FREE = "recovery holds its lock now"
    HELD = "another database transaction holds its lock: a dual write of the id is running"
    MISSING = "there is no row: this database decides nothing for the id"
    VOUCHED = "there is no row, and the caller vouches that no other database decides for the id"


class Action(StrEnum):
    """The actions of recovery for an id; those from NOTHING on leave the id as it is."""

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
    NO_EVIDENCE = "no-evidence"
    """The coordinator has forgotten how the row's transaction ended, and its records are no longer in the log."""
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
    """A transaction has no marker in a partition, and no coordinator is going to write one."""
    FAILED = "failed"
    """A query or the completion failed, and the next round tries again; or there is nothing that is to be decided."""


def action_of(error: DualWriteError) -> Action | None:
    """Return the action that reports an error, by its name at the judge; None if a later round may not meet it."""
    name = refusal_of(error).name
    return Action(name) if name in set(Action) else None


_IN_ORDER: Final = list(Action)
CHANGES: Final = frozenset(_IN_ORDER[: _IN_ORDER.index(Action.NOTHING)])
"""The actions that change an id."""

NEEDS_OPERATOR: Final = frozenset(Action) - CHANGES - {Action.NOTHING, Action.ENDING, Action.IN_USE, Action.YOUNG}
"""The actions that report an id for an operator to look into."""

_A = Action

# Columns in the order of Finding: OPEN, OTHER_OPEN, COMMITTED, ABORTED, VANISHED, NO_TRACE.
# Without a row nothing is stored, so COMMITTED, ABORTED, VANISHED cannot occur there; the id would be left alone.
_ROWS: Final[dict[Row, tuple[Action, ...]]] = {
    Row.FREE: (_A.COMMIT, _A.ABORT, _A.NOTHING, _A.LOST, _A.FORGOTTEN, _A.NOTHING),
    Row.HELD: (_A.IN_USE, _A.IN_USE, _A.NOTHING, _A.IN_USE, _A.IN_USE, _A.NOTHING),
    Row.MISSING: (_A.NO_ROW, _A.NO_ROW, _A.NOTHING, _A.NOTHING, _A.NOTHING, _A.NOTHING),
    Row.VOUCHED: (_A.NO_ROW, _A.TERMINATE, _A.NOTHING, _A.NOTHING, _A.NOTHING, _A.NOTHING),
}

ACTIONS: Final[dict[tuple[Row, Finding], Action]] = {
    (row, finding): action for row, actions in _ROWS.items() for finding, action in zip(Finding, actions, strict=True)
}

OF_OPEN: Final = (Action.COMMIT, Action.ABORT, Action.TERMINATE, Action.NO_ROW)
"""The actions about an open transaction, which is left to its owner while it is young."""

PROVEN_BY_LOG: Final = frozenset({Finding.COMMITTED, Finding.ABORTED, Finding.VANISHED, Finding.NO_TRACE})
"""The findings that the log confirms or corrects, if it still has the records of the stored transaction.

An open transaction is committed first, and then the log is read.
"""


def finding_of(seen: Seen) -> Finding:
    """Return the finding about the stored transaction, by its row, the log if it was read, and the coordinator."""
    finding, end = seen.finding, seen.end
    if finding not in PROVEN_BY_LOG:
        return finding
    if seen.is_settled:
        return Finding.COMMITTED
    if end is not None and end.aborted:
        return Finding.ABORTED
    if end is not None and end.committed:
        return Finding.COMMITTED
    if seen.verdict is None or finding is Finding.COMMITTED:
        return finding
    return Finding.COMMITTED if seen.verdict is Verdict.COMMITTED else Finding.ABORTED


def decide(seen: Seen, row: Row, *, min_age_ms: int) -> Action:
    """Return the action for an id, by the facts and the decisions of its operator."""
    action = _by_table(seen, row, min_age_ms=min_age_ms)
    has_failed = seen.decides_batch or (seen.unread is not None and finding_of(seen) is not Finding.COMMITTED)
    return Action.FAILED if action is Action.NOTHING and has_failed else action


def _by_table(seen: Seen, row: Row, *, min_age_ms: int) -> Action:
    is_held = row is Row.HELD
    if seen.is_given_up and not is_held:
        return Action.ACKNOWLEDGE
    is_young = seen.age_ms is None or seen.age_ms < min_age_ms
    action = ACTIONS[row, finding_of(seen)]
    if is_young and action in OF_OPEN:
        action = Action.YOUNG
    refusal = None if seen.refusal is None else action_of(seen.refusal)
    if refusal is Action.ANOTHER_CLUSTER:  # the pair is another transaction's in this cluster
        return Action.IN_USE if is_held else Action.ANOTHER_CLUSTER
    if Decision.LOST in seen.decisions and (action is Action.LOST or (row is Row.FREE and seen.is_behind)):
        return Action.ACKNOWLEDGE
    if action is Action.LOST and not seen.has_offsets and _can_be_repaired(seen):
        return Action.TAKE_OUT if Decision.TAKEN_OUT in seen.decisions else Action.REPAIR
    if refusal is Action.WENT_BACK and action is Action.NOTHING:
        return Action.IN_USE if is_held else Action.WENT_BACK
    if row is Row.FREE and _is_not_proven(seen, action):
        if Decision.TAKEN_OUT in seen.decisions:
            return Action.TAKE_OUT
        return Action.PUBLISH_AGAIN if Decision.PUBLISHED_AGAIN in seen.decisions else Action.NOT_PROVEN
    if row is Row.FREE and action is Action.NOTHING and _has_no_evidence(seen):
        return Action.ACKNOWLEDGE if Decision.LOST in seen.decisions else Action.NO_EVIDENCE
    if action is Action.NOTHING and seen.described.is_ending:
        return Action.ENDING
    if action is Action.NOTHING and seen.waits_ms is not None:
        return Action.IN_USE if is_held else _about_stored(seen, is_old=seen.waits_ms >= min_age_ms)
    return action


def _is_not_proven(seen: Seen, action: Action) -> bool:
    """Return whether nothing shows how the last batch of an outbox has ended, as `last_batch.py` says.

    If the operator has looked, another open transaction, or a coordinator that has lost the batch, need not be looked
    into first.
    """
    end, verdict = seen.end, seen.verdict
    is_in_question = seen.is_kept and not seen.is_settled and not seen.stored.is_empty
    if not is_in_question or verdict is Verdict.ABORTED or seen.is_behind or (end is not None and end.committed):
        return False
    if verdict is Verdict.COMMITTED:
        return action is Action.LOST  # an operator has aborted it in a partition
    finding = finding_of(seen)
    if finding is Finding.OTHER_OPEN and end is not None and end.aborted and not end.gone:
        return False  # its end is known
    if seen.decides_batch and finding in (Finding.OTHER_OPEN, Finding.VANISHED):
        return True
    return action is Action.LOST or (action is Action.NOTHING and finding is Finding.NO_TRACE)


def _has_no_evidence(seen: Seen) -> bool:
    """Return whether the log has lost the row's records, no coordinator tells their end, and no block waits."""
    is_gone = seen.end is not None and bool(seen.end.gone)
    return is_gone and seen.waits_ms is None and not seen.is_settled and finding_of(seen) is Finding.NO_TRACE


def _about_stored(seen: Seen, *, is_old: bool) -> Action:
    """Return the action for stored blocks, also those of an outbox whose row is missing.

    Recovery would fence a living publisher. Publishing takes milliseconds, so a publisher whose blocks are old is held
    up by another cause.
    """
    if seen.row.waiting.has_publisher:
        return Action.OVERDUE if is_old else Action.NOTHING
    return Action.PUBLISH if is_old else Action.YOUNG


def _can_be_repaired(seen: Seen) -> bool:
    """Return whether all aborted records may still be in the log, or the database keeps them.

    Before transaction.version 2 only the log or a note in the row (`last_batch.py`) proves that they were aborted.
    """
    end, is_noted = seen.end, seen.verdict is Verdict.ABORTED
    is_final = seen.cluster.transaction_version >= 2 or is_noted
    if end is None:
        return seen.is_kept and is_final
    is_whole = seen.is_kept and (is_final or bool(end.aborted))
    return (bool(end.aborted) and not end.gone) or (is_whole and (is_noted or not end.is_visible))


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


def found(seen: Seen, action: Action, *, changed: bool = False, error: str | None = None) -> Found:
    return Found(
        transactional_id=seen.transactional_id,
        kafka_transactional_id=seen.kafka_id,
        action=action,
        changed=changed,
        row=seen.row.state,
        state=seen.state,
        pair=str(seen.pair),
        age_ms=seen.age_ms,
        topic_partitions=seen.topic_partitions,
        error=_why(seen, action) if error is None else error,
    )


def found_hanging(name: str, row: str | None, hanging: HangingTransaction, *, is_decided: bool | None) -> Found:
    """Return the result for a transaction of an id that hangs in a partition, found there and not by the row."""
    topic, partition = hanging.topic_partition
    return Found(
        transactional_id=name,
        kafka_transactional_id=hanging.transactional_id or name,
        action=Action.HANGS,
        changed=False,
        row=row,
        state=DescribedState.ONGOING.value,
        pair=str(pair_of(hanging)),
        age_ms=None,
        topic_partitions=(f"{topic}-{partition}",),
        error=next_step(hanging, is_decided=is_decided),
    )


def _why(seen: Seen, action: Action) -> str | None:
    if action is Action.NO_ROW and not seen.is_ours:
        suffix = foreign_suffix_of(seen.kafka_id)
        if suffix is None:
            return "not an id of this database, which adds a suffix to each of its ids"
        return f"an id of another database, whose suffix is {suffix}: recover it there"
    if action is Action.OVERDUE:
        return f"a living process holds the lease of this outbox; its oldest block has waited for {seen.waits_ms} ms"
    if action is Action.FAILED and Decision.TAKEN_OUT in seen.decisions:
        return "nothing is owed under this id, so nothing was taken out"
    if action is Action.FAILED and seen.unread is not None:
        return f"only the log shows how {seen.stored} has ended: grant READ on its topics ({seen.unread})"
    if action is Action.FAILED:
        return "this id has no batch with an unproven end, so nothing was published again"
    if action is Action.LOST:
        return seen.why_lost
    is_refused = action in (Action.ANOTHER_CLUSTER, Action.WENT_BACK)
    return first_line(seen.refusal) if is_refused and seen.refusal is not None else None


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
    were left out. `taken_out` has the owed records that were taken out, or would be. `searched` has the topics in which
    transactions that hang were looked for.
    """

    found: tuple[Found, ...]
    settled: int
    unseen: tuple[str, ...]
    applied: bool
    taken_out: tuple[TakenOut, ...] = ()
    searched: tuple[str, ...] = ()

    @property
    def left(self) -> tuple[Found, ...]:
        """The ids that an operator or a later round has to deal with."""
        return tuple(found for found in self.found if found.is_left)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left and everything could be queried."""
        return not self.left and not self.unseen
