"""Conclusions from a description of a transactional id: decision tables, without state.

A pair is a producer id and epoch. Recovery without KeepPreparedTxn has two facts: the response of DescribeTransactions
for the transactional id, and the pair that was stored with the application's decision. Every end of a transaction
leaves a trace that fits exactly one pair, because

* transaction.version 2 raises the epoch with each end (KIP-890): a transaction of (p, e) is over at (p, e + 1), or at
  (p', 0) when e was the last epoch;
* transaction.version 0 and 1 end it at (p, e) when a client asked, and at (p, e + 1) when the broker did (KAFKA-5231).
  There the client raises the epoch twice before each transaction, so that an abort of the next one, at (p, e + 2), is
  not taken for the broker's abort of the stored one.

The next InitProducerId removes the trace, because it leaves the state Empty. Therefore none is sent before the stored
pair was compared, and none at all if the transaction is lost: a later recovery must be able to see it too.

KIP-939's recovery with KeepPreparedTxn raises the epoch too: after k recoveries a transaction of (p, e) is over at
(p, e + k + 1). An abort after one of them cannot be distinguished from a commit followed by another transaction's
abort, so only an abort at (p, e + 1) is proof.

Settling precedes the next transaction after a request got no response. A request that was sent on a lost
connection may arrive after its repetition was answered. With transaction.version 0 and 1, where a transaction ends
without another epoch, it would become part of the next transaction: EndTxn ends it, AddPartitionsToTxn and
AddOffsetsToTxn open one, TxnOffsetCommit takes the group's offsets back (KAFKA-17754). So the epoch is raised by
InitProducerId with our own pair (KIP-360), after which late requests are refused.

InitProducerId itself aborts any transaction that is open for its producer id, at any epoch. Therefore
DescribeTransactions comes first: nothing is sent to an id that another producer has taken over, and a transaction that
a late request has opened is ended by EndTxn, which only the owner of its epoch can do. An InitProducerId without a
response is searched for a few times before it is sent again, because one that is still on its way would abort the next
transaction. One that arrives even later does so; the commit of that transaction is then refused, and none of its
records becomes visible.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from dualwrite.prepared_state import MAX_PRODUCER_EPOCH, PreparedTxnState

TRANSACTIONAL_ID_NOT_FOUND: Final = 105

_LAST_USED_EPOCH: Final = MAX_PRODUCER_EPOCH - 1


class DescribedState(Enum):
    """The state of a transactional id, by Kafka's names. `NOT_FOUND`: never used, or expired (error 105)."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    NOT_FOUND = "unknown"


class Described(NamedTuple):
    """A description of a transactional id.

    `start_ms` is in milliseconds since 1970, -1 for none; `timeout_ms` is -1 while unknown.
    """

    state: DescribedState
    pair: PreparedTxnState
    start_ms: int
    timeout_ms: int = -1

    @property
    def is_committed(self) -> bool:
        """Whether the last transaction is committed, or is being committed."""
        return self.state in (DescribedState.PREPARE_COMMIT, DescribedState.COMPLETE_COMMIT)

    @property
    def is_aborted(self) -> bool:
        """Whether the last transaction is aborted, or is being aborted."""
        return self.state in (DescribedState.PREPARE_ABORT, DescribedState.COMPLETE_ABORT)

    @property
    def is_ending(self) -> bool:
        """Whether markers are still being written. The pair changes when that is done."""
        return self.state in (DescribedState.PREPARE_COMMIT, DescribedState.PREPARE_ABORT)


class Relation(Enum):
    """The described pair compared with the stored one."""

    NOTHING_STORED = "nothing is stored"
    SAME = "the stored pair itself"
    NEXT = "one epoch after the stored pair"
    ROTATED = "the first pair of another producer id, after a stored pair with the last epoch"
    FURTHER = "two epochs or more after the stored pair"
    BEFORE = "an earlier epoch than the stored pair"
    OTHER = "another producer id, or none"


class Finding(Enum):
    """The conclusion from the description about the stored transaction."""

    OPEN = "the stored transaction is open"
    OTHER_OPEN = "a transaction is open that is not the stored one"
    COMMITTED = "the stored transaction is committed, or is being committed"
    ABORTED = "the stored transaction was aborted, or is being aborted"
    VANISHED = "the stored pair is later than any that Kafka knows"
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
# The aborts stay, because transaction.version may have been lowered since.
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
    """The action of `complete_transaction(stored)` after a finding."""

    COMMIT = "EndTxn(commit) with the stored pair, then the id is taken over"
    TAKE_OVER = "any open transaction is aborted, and the id is taken over"
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
    """The meaning of a prepared transaction's refused commit, after the id was described."""

    COMMITTED = "another producer committed it"
    LOST = "PreparedTransactionLost"
    FENCED = "another producer has the id, and how it ended the transaction cannot be seen any more"


REFUSALS: Final[dict[Finding, AfterRefusal]] = {
    Finding.OPEN: AfterRefusal.FENCED,
    Finding.OTHER_OPEN: AfterRefusal.FENCED,
    Finding.COMMITTED: AfterRefusal.COMMITTED,
    Finding.ABORTED: AfterRefusal.LOST,
    Finding.VANISHED: AfterRefusal.LOST,
    Finding.NO_TRACE: AfterRefusal.FENCED,
}


def relation_of(stored: PreparedTxnState, described: PreparedTxnState) -> Relation:
    """Compare the described pair with the stored one."""
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
    """Return the conclusion from `described` about the transaction of the stored pair."""
    version = 2 if transaction_version >= 2 else 1
    return FINDINGS[version, described.state, relation_of(stored, described.pair)]


_LATER: Final = (Relation.NOTHING_STORED, Relation.FURTHER, Relation.OTHER)


def commits_later(stored: PreparedTxnState, described: Described) -> bool:
    """Return whether a later transaction than that of the stored pair is committed.

    Not so after recoveries with KeepPreparedTxn, each of which raises the epoch at which the stored one ends.
    """
    return described.is_committed and relation_of(stored, described.pair) in _LATER


def aborts_later(stored: PreparedTxnState, described: Described) -> bool:
    """Return whether a transaction is aborted at a later pair than that at which the stored one would be over.

    InitProducerId aborts the open transaction there, so it may be the stored one, or one after it.
    """
    return described.is_aborted and relation_of(stored, described.pair) in _LATER


_PROOFS: Final = (Finding.OPEN, Finding.COMMITTED)


class CoordinatorMemory(NamedTuple):
    """A coordinator's memory of the last transaction of an id, as a take-over has found it.

    `prepared` is open, `described` is the description that was compared with the stored pair, and `committed` one that
    preceded KeepPreparedTxn, which erases it. Where nothing is proven, the log can tell more (`client/log`).
    """

    prepared: PreparedTxnState
    described: Described | None
    committed: Described | None
    transaction_version: int

    def knows(self, stored: PreparedTxnState) -> bool:
        """Return whether it proves that the stored transaction is open or committed; an empty one needs no proof."""
        if stored.is_empty or stored == self.prepared:
            return True
        found = self.described or self.committed
        return found is not None and find(stored, found, self.transaction_version) in _PROOFS

    def aborted(self, stored: PreparedTxnState) -> bool:
        """Return whether it proves that the stored transaction was aborted."""
        found = self.described
        return found is not None and find(stored, found, self.transaction_version) is Finding.ABORTED

    def committed_later(self, stored: PreparedTxnState) -> bool:
        """Return whether it proves that a later transaction than the stored one was committed."""
        return self.described is not None and commits_later(stored, self.described)

    def aborted_later(self, stored: PreparedTxnState) -> bool:
        """Return whether it shows an abort at a later pair, of the stored transaction or another."""
        return self.described is not None and aborts_later(stored, self.described)

    @property
    def is_ending(self) -> bool:
        """Whether markers of the last transaction were being written."""
        return self.described is not None and self.described.is_ending


class SecondDescription(Enum):
    """The next step when the id is described again, before anything is changed."""

    GO_ON = "nothing has changed, except that the transaction that was decided may have ended"
    WAIT = "a transaction is being ended: its pair is not the final one"
    OVERTAKEN = "another producer has used the id"


def compare_descriptions(decided: Described, now: Described, *, claimed: bool) -> SecondDescription:
    """Return whether the id is still as described when it was decided, except for the end of that transaction.

    Between the description that was compared with the stored pair and the next request, another process may have taken
    the id over, prepared a transaction and decided it. `claimed`: an InitProducerId with the pair of `decided` was sent
    and may have been carried out.
    """
    if now.is_ending:
        return SecondDescription.WAIT
    is_same = now.state is decided.state and now.pair == decided.pair
    is_open = DescribedState.ONGOING in (now.state, decided.state)
    if is_open and now.start_ms != decided.start_ms:
        return SecondDescription.OVERTAKEN
    if is_same or _is_own_end(decided, now) or (claimed and _is_claim_of(decided, now)):
        return SecondDescription.GO_ON
    return SecondDescription.OVERTAKEN


def _is_own_end(decided: Described, now: Described) -> bool:
    """Return whether `now` is the state that the decided transaction leaves when it ends."""
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
    """Return whether `now` is the state that an InitProducerId with the pair of `decided` leaves."""
    return now.state is DescribedState.EMPTY and relation_of(decided.pair, now.pair) in (
        Relation.NEXT,
        Relation.ROTATED,
    )


RAISE_CHECKS: Final = 3
"""How often to look for an InitProducerId without a response: a coordinator that responds has read earlier requests."""


class Settling(Enum):
    """The action after a description that precedes raising the epoch."""

    RAISE = "InitProducerId with our own pair; repeating it shows whether the epoch that is seen is ours"
    END_REOPENED = "EndTxn(abort): a late request has opened a transaction, which holds no data of any transaction"
    DESCRIBE_AGAIN = "markers are being written"
    AWAIT_RAISE = "InitProducerId may be on its way: describe again, a few times"
    TAKEN_OVER = "another producer has the id; it is left alone"


_S = Settling

# One row per described state: our own pair, our own pair after an InitProducerId without a response,
# one epoch later (or the first pair of the next producer id) after an InitProducerId without a response.
_SETTLING_ROWS: Final[dict[DescribedState, tuple[Settling, Settling, Settling]]] = {
    DescribedState.EMPTY: (_S.RAISE, _S.AWAIT_RAISE, _S.RAISE),
    DescribedState.ONGOING: (_S.END_REOPENED, _S.END_REOPENED, _S.TAKEN_OVER),
    DescribedState.PREPARE_COMMIT: (_S.DESCRIBE_AGAIN, _S.DESCRIBE_AGAIN, _S.TAKEN_OVER),
    DescribedState.PREPARE_ABORT: (_S.DESCRIBE_AGAIN, _S.DESCRIBE_AGAIN, _S.TAKEN_OVER),
    DescribedState.COMPLETE_COMMIT: (_S.RAISE, _S.AWAIT_RAISE, _S.TAKEN_OVER),
    DescribedState.COMPLETE_ABORT: (_S.RAISE, _S.AWAIT_RAISE, _S.TAKEN_OVER),
}


def settle(own: PreparedTxnState, described: Described, *, raise_unanswered: bool) -> Settling:
    """Return the next action, after `described`, of the producer that holds `own` and has no open transaction."""
    if described.state is DescribedState.NOT_FOUND:
        return Settling.RAISE  # expired: the id begins anew, with another producer id
    relation = relation_of(own, described.pair)
    row = _SETTLING_ROWS[described.state]
    if relation is Relation.SAME:
        return row[1] if raise_unanswered else row[0]
    if raise_unanswered and relation in (Relation.NEXT, Relation.ROTATED):
        return row[2]
    return Settling.TAKEN_OVER
