"""What precedes the next transaction after a request got no answer: a table, pure decisions.

A request that was sent on a connection that is gone may arrive after its repetition was answered. Where a transaction
ends without another epoch (transaction.version 0 and 1), it would be one of the next transaction: an EndTxn ends it, an
AddPartitionsToTxn or AddOffsetsToTxn opens one, a TxnOffsetCommit takes the group's positions back (KAFKA-17754). So
the epoch is raised by InitProducerId with our own pair (KIP-360), which refuses whatever is late.

InitProducerId itself aborts whatever is open for its producer id, whatever its epoch. Hence DescribeTransactions comes
first: nothing is sent to an id that somebody else has taken over, and what a late request has opened is ended by an
EndTxn, which is refused to all but the owner of its epoch. An InitProducerId without an answer is looked for a few
times before it is sent again, because one that is still under way would abort the next transaction. One that
arrives even later does; the commit of that transaction is refused then, and nothing of it is visible.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from dualwrite.client.transactions.recovery import Described, DescribedState, Relation, relation_of
from dualwrite.prepared_state import PreparedTxnState

LOOKS: Final = 3
"""How often an InitProducerId without an answer is looked for: a coordinator that answers has read what came before."""


class Settling(Enum):
    """What follows a look."""

    RAISE = "InitProducerId with our own pair; the same one again tells whether the epoch that is seen is ours"
    END_REOPENED = "EndTxn(abort): a late request has opened a transaction, in which nothing is anybody's"
    LOOK_AGAIN = "markers are being written"
    AWAIT_RAISE = "InitProducerId may be under way: look again, a few times"
    TAKEN_OVER = "another producer has the id; it is left alone"


_S = Settling

# One row per described state: our own pair, our own pair after an InitProducerId without an answer,
# one epoch later (or the first pair of the next producer id) after an InitProducerId without an answer.
_ROWS: Final[dict[DescribedState, tuple[Settling, Settling, Settling]]] = {
    DescribedState.EMPTY: (_S.RAISE, _S.AWAIT_RAISE, _S.RAISE),
    DescribedState.ONGOING: (_S.END_REOPENED, _S.END_REOPENED, _S.TAKEN_OVER),
    DescribedState.PREPARE_COMMIT: (_S.LOOK_AGAIN, _S.LOOK_AGAIN, _S.TAKEN_OVER),
    DescribedState.PREPARE_ABORT: (_S.LOOK_AGAIN, _S.LOOK_AGAIN, _S.TAKEN_OVER),
    DescribedState.COMPLETE_COMMIT: (_S.RAISE, _S.AWAIT_RAISE, _S.TAKEN_OVER),
    DescribedState.COMPLETE_ABORT: (_S.RAISE, _S.AWAIT_RAISE, _S.TAKEN_OVER),
}


def settle(own: PreparedTxnState, described: Described, *, raise_unanswered: bool) -> Settling:
    """What `described` asks of the producer that holds `own` and has nothing open."""
    if described.state is DescribedState.NOT_FOUND:
        return Settling.RAISE  # expired: the id begins anew, with another producer id
    relation = relation_of(own, described.pair)
    row = _ROWS[described.state]
    if relation is Relation.SAME:
        return row[1] if raise_unanswered else row[0]
    if raise_unanswered and relation in (Relation.NEXT, Relation.ROTATED):
        return row[2]
    return Settling.TAKEN_OVER
