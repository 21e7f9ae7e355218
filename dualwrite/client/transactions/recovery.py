"""What became of a prepared transaction on a broker that cannot keep it by KeepPreparedTxn: a table, pure decisions.

Such a broker offers two facts: what DescribeTransactions says of the transactional id, and the pair that was stored
with the application's decision. Every end of a transaction leaves a trace that fits exactly one pair, because

* transaction.version 2 raises the epoch with each end (KIP-890): a transaction of (p, e) is over at (p, e + 1), or at
  (p', 0) when e was the last epoch;
* transaction.version 0 and 1 end it at (p, e) when a client asked, and at (p, e + 1) when the broker did (KAFKA-5231).
  There the client raises the epoch twice before each transaction, so that an abort of the next one, at (p, e + 2), is
  not taken for the broker's abort of the stored one.

The trace is gone with the next InitProducerId, which leaves Empty. That is why none is sent before the stored pair was
compared, and none at all where the transaction is lost: whoever recovers later must be able to see it too.

KIP-939's recovery with KeepPreparedTxn moves the epoch on too: after k of them a transaction of (p, e) is over at
(p, e + k + 1). An abort after one of them is not told from a commit that was followed by another transaction's abort,
so only the one at (p, e + 1) is proof.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from dualwrite.prepared_state import MAX_PRODUCER_EPOCH, PreparedTxnState

TRANSACTIONAL_ID_NOT_FOUND: Final = 105

_LAST_USED_EPOCH: Final = MAX_PRODUCER_EPOCH - 1


class DescribedState(Enum):
    """A transactional id's state by Kafka's names. `NOT_FOUND`: never used, or expired (error 105)."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    NOT_FOUND = "unknown"


class Described(NamedTuple):
    """What DescribeTransactions said; `start_ms` since 1970, -1 for none; `timeout_ms` -1 where it is not known."""

    state: DescribedState
    pair: PreparedTxnState
    start_ms: int
    timeout_ms: int = -1

    @property
    def is_committed(self) -> bool:
        """Whether the last transaction is committed, or is being."""
        return self.state in (DescribedState.PREPARE_COMMIT, DescribedState.COMPLETE_COMMIT)

    @property
    def is_aborted(self) -> bool:
        """Whether the last transaction is aborted, or is being."""
        return self.state in (DescribedState.PREPARE_ABORT, DescribedState.COMPLETE_ABORT)

    @property
    def is_ending(self) -> bool:
        """Whether markers are still being written. The pair is another one when that is done."""
        return self.state in (DescribedState.PREPARE_COMMIT, DescribedState.PREPARE_ABORT)


class Relation(Enum):
    """How the described pair stands to the stored one."""

    NOTHING_STORED = "nothing is stored"
    SAME = "the stored pair itself"
    NEXT = "one epoch after the stored pair"
    ROTATED = "the first pair of another producer id, and the stored one had the last epoch"
    FURTHER = "two epochs or more after the stored pair"
    BEFORE = "an earlier epoch than the stored pair"
    OTHER = "another producer id, or none"


class Finding(Enum):
    """What the description proves about the stored transaction."""

    OPEN = "the stored transaction is open"
    OTHER_OPEN = "a transaction is open that is not the stored one"
    COMMITTED = "the stored transaction is committed, or is being"
    ABORTED = "the stored transaction was aborted, or is being"
    VANISHED = "the stored pair is later than all that Kafka knows"
    NO_TRACE = "nothing is open, and the id has been used or initialised since the stored transaction ended"


_F = Finding

# One row per described state; its columns in the order of Relation:
#   NOTHING_STORED, SAME, NEXT, ROTATED, FURTHER, BEFORE, OTHER
_V2_ROWS: Final[dict[DescribedState, tuple[Finding, ...]]] = {
    DescribedState.EMPTY: (_F.NO_TRACE,) * 5 + (_F.VANISHED, _F.NO_TRACE),
    DescribedState.ONGOING: (_F.OTHER_OPEN, _F.OPEN) + (_F.OTHER_OPEN,) * 3 + (_F.VANISHED, _F.OTHER_OPEN),
    # (p', 0) is reached when the commit is complete; until then the state shows (p, 32767), which is NEXT
    DescribedState.PREPARE_COMMIT: (
        _F.NO_TRACE, _F.COMMITTED, _F.COMMITTED, _F.NO_TRACE, _F.NO_TRACE, _F.VANISHED, _F.NO_TRACE,
    ),
    DescribedState.COMPLETE_COMMIT: (
        _F.NO_TRACE, _F.COMMITTED, _F.COMMITTED, _F.COMMITTED, _F.NO_TRACE, _F.VANISHED, _F.NO_TRACE,
    ),
    DescribedState.PREPARE_ABORT: (
        _F.NO_TRACE, _F.ABORTED, _F.ABORTED, _F.ABORTED, _F.NO_TRACE, _F.VANISHED, _F.NO_TRACE,
    ),
    DescribedState.COMPLETE_ABORT: (
        _F.NO_TRACE, _F.ABORTED, _F.ABORTED, _F.ABORTED, _F.NO_TRACE, _F.VANISHED, _F.NO_TRACE,
    ),
    DescribedState.NOT_FOUND: (_F.NO_TRACE,) * 7,
}  # fmt: skip

# transaction.version 0 and 1 commit at the same epoch: a commit one epoch later is another transaction's.
# The aborts stay, because the level may have been lowered since.
_V1_ROWS: Final[dict[DescribedState, tuple[Finding, ...]]] = _V2_ROWS | {
    DescribedState.PREPARE_COMMIT: (_F.NO_TRACE, _F.COMMITTED) + (_F.NO_TRACE,) * 3 + (_F.VANISHED, _F.NO_TRACE),
    DescribedState.COMPLETE_COMMIT: (_F.NO_TRACE, _F.COMMITTED) + (_F.NO_TRACE,) * 3 + (_F.VANISHED, _F.NO_TRACE),
}

FINDINGS: Final[dict[tuple[int, DescribedState, Relation], Finding]] = {
    (version, state, relation): finding
    for version, rows in ((1, _V1_ROWS), (2, _V2_ROWS))
    for state, row in rows.items()
    for relation, finding in zip(Relation, row, strict=True)
}


class Recovery(Enum):
    """What `complete_transaction(stored)` does about a finding."""

    COMMIT = "EndTxn(commit) with the stored pair, then the id is taken over"
    TAKE_OVER = "what is open is aborted, and the id taken over"
    LOST = "PreparedTransactionLost, and no request"


RECOVERIES: Final[dict[Finding, Recovery]] = {
    Finding.OPEN: Recovery.COMMIT,
    Finding.OTHER_OPEN: Recovery.TAKE_OVER,
    Finding.COMMITTED: Recovery.TAKE_OVER,
    Finding.ABORTED: Recovery.LOST,
    Finding.VANISHED: Recovery.LOST,
    Finding.NO_TRACE: Recovery.TAKE_OVER,
}


class AfterRefusal(Enum):
    """What the refused commit of a prepared transaction means, once the id was described."""

    COMMITTED = "somebody else committed it"
    LOST = "PreparedTransactionLost"
    FENCED = "another producer has the id, and what it made of the transaction cannot be seen any more"


REFUSALS: Final[dict[Finding, AfterRefusal]] = {
    Finding.OPEN: AfterRefusal.FENCED,
    Finding.OTHER_OPEN: AfterRefusal.FENCED,
    Finding.COMMITTED: AfterRefusal.COMMITTED,
    Finding.ABORTED: AfterRefusal.LOST,
    Finding.VANISHED: AfterRefusal.LOST,
    Finding.NO_TRACE: AfterRefusal.FENCED,
}


def relation_of(stored: PreparedTxnState, described: PreparedTxnState) -> Relation:
    """How `described` stands to `stored`."""
    if stored.is_empty:
        return Relation.NOTHING_STORED
    if described.producer_id == stored.producer_id:
        ahead = described.producer_epoch - stored.producer_epoch
        if ahead < 0:
            return Relation.BEFORE
        return (Relation.SAME, Relation.NEXT)[ahead] if ahead < 2 else Relation.FURTHER
    if stored.producer_epoch >= _LAST_USED_EPOCH and described.producer_epoch == 0:
        return Relation.ROTATED
    return Relation.OTHER


def find(stored: PreparedTxnState, described: Described, transaction_version: int) -> Finding:
    """What `described` proves about the transaction of the stored pair."""
    version = 2 if transaction_version >= 2 else 1
    return FINDINGS[version, described.state, relation_of(stored, described.pair)]


class SecondLook(Enum):
    """What may follow, once the id was described again before something is changed."""

    GO_ON = "nothing has changed but that what was decided about may have ended"
    WAIT = "something is being ended: its pair is not the last word"
    OVERTAKEN = "somebody else was there"


def look_again(decided: Described, now: Described, *, claimed: bool) -> SecondLook:
    """Whether nothing has happened but what was decided about, and its own end.

    Between the description that was compared with the stored pair and the next request another process may have taken
    the id over, prepared a transaction and decided it. `claimed`: an InitProducerId with the pair of `decided` was sent
    and may have been carried out.
    """
    if now.is_ending:
        return SecondLook.WAIT
    is_same = now.state is decided.state and now.pair == decided.pair
    is_open = DescribedState.ONGOING in (now.state, decided.state)
    if is_open and now.start_ms != decided.start_ms:
        return SecondLook.OVERTAKEN
    if is_same or _is_own_end(decided, now) or (claimed and _is_claim_of(decided, now)):
        return SecondLook.GO_ON
    return SecondLook.OVERTAKEN


def _is_own_end(decided: Described, now: Described) -> bool:
    """Whether `now` is what is left of what was decided about."""
    relation = relation_of(decided.pair, now.pair)
    match decided.state:
        case DescribedState.ONGOING:
            ends = (Relation.SAME, Relation.NEXT, Relation.ROTATED)
            return now.state is DescribedState.COMPLETE_ABORT and relation in ends
        case DescribedState.PREPARE_COMMIT:
            return now.state is DescribedState.COMPLETE_COMMIT and relation in (Relation.SAME, Relation.ROTATED)
        case DescribedState.PREPARE_ABORT:
            return now.state is DescribedState.COMPLETE_ABORT and relation in (Relation.SAME, Relation.ROTATED)
        case DescribedState.NOT_FOUND:  # created since: nothing is open, and the next request compares the pair
            return now.state is DescribedState.EMPTY and now.pair.producer_epoch == 0
        case _:
            return False


def _is_claim_of(decided: Described, now: Described) -> bool:
    """Whether `now` is what an InitProducerId with the pair of `decided` leaves."""
    return now.state is DescribedState.EMPTY and relation_of(decided.pair, now.pair) in (
        Relation.NEXT,
        Relation.ROTATED,
    )
