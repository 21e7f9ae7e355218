"""The matrix of late requests: the cells of each broker, and their reported errors.

There are no other errors, and no cell has an anomaly. An InitProducerId is the one request that Kafka cannot tell from
a newer producer's, and on an open transaction it looks at nothing but the producer id. A late one therefore fences its
own producer, and aborts its open transaction, prepared or not. A decided transaction is then lost where a prepared one
cannot be kept (tiers 2 to 4), and every recovery reports that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.support.late_requests import TWO_PHASE, Cell, End, How, Request

V1, V2, STORED_PAIR, KEEPS = "transaction.version 1", "transaction.version 2", "Enable2Pc alone", "KIP-939"
"""Differences between brokers: an epoch for each transaction, and an initialisation that keeps a prepared one."""

_ONLY_V1: Final = (Request.ADD_PARTITIONS, Request.ADD_OFFSETS, Request.RAISE)


def why_not(kind: str, cell: Cell) -> str | None:
    """Why there is no such cell on brokers of this kind."""
    if kind != V1 and cell.request in _ONLY_V1:
        return "from version 2 on brokers add partitions and groups, and the end of a transaction raises the epoch"
    if cell.next_end is End.ABORT and cell.how is not How.LATE:
        return "only what arrives in the next transaction can make a difference to how that one ends"
    if kind == STORED_PAIR and cell.end not in TWO_PHASE:
        return "without two-phase commit it is like any other broker of version 2"
    if cell.how is How.OVERTAKEN and cell.request is Request.END:
        return "nothing of its transaction follows it"
    if kind == V2 and cell.request is Request.INIT and cell.end is End.RECOVER:
        return "a recovery ends what it found, and raises the epoch, by EndTxn with the pair that it found"
    if cell.how is How.OVERTAKEN and cell.request is Request.INIT and cell.end is End.RECOVER:
        return "the end of what is recovered follows it, which is 'between'"
    return None


def cells(kind: str) -> Iterator[Cell]:
    for request in Request:
        for how in How:
            for end in End:
                for next_end in (End.COMMIT, End.ABORT):
                    cell = Cell(request, how, end, next_end)
                    if why_not(kind, cell) is None:
                        yield cell


def told(kind: str, cell: Cell) -> list[str]:
    """The errors that the cell reports."""
    two_phase = cell.end in TWO_PHASE
    if kind == STORED_PAIR and cell.request is Request.INIT:
        return []  # the first one asks to keep a prepared transaction, which is refused without effect
    match cell.request, cell.how:
        case Request.INIT, How.OVERTAKEN:
            return ["A: FencedError" if kind == V1 else "A: DeliveryError"]
        case Request.INIT, How.BETWEEN if kind == V1 and cell.end is End.RECOVER:
            return []  # it names the pair that was found, and nothing is open
        case Request.INIT, How.BETWEEN:
            return ["C: FencedError" if kind == V1 else "C: DeliveryError"]
        case Request.RAISE, How.OVERTAKEN:
            return ["B: FencedError"]
        case ((Request.INIT | Request.RAISE), How.LATE) if cell.next_end is End.COMMIT:
            if two_phase and kind != KEEPS:
                return ["C: PreparedTransactionLost"] * 2  # by complete_transaction() and by the recovery after it
            return ["C: FatalError" if kind == V2 else "C: FencedError"]
        case ((Request.INIT | Request.RAISE), How.LATE):
            # from version 2 on, the requested abort has happened
            return ["C: FencedError"] if kind == V1 or (two_phase and kind == KEEPS) else []
        case _:
            return []


def forgotten(kind: str, cell: Cell) -> list[str]:
    """Return the anomaly of Kafka's group coordinator up to 3.9 that is left (docs/internals/late-requests.md).

    It notes the positions of a TxnOffsetCommit before it appends them. When the append is refused for its old epoch, it
    forgets the pending positions of that producer id: by now the next transaction's. After its commit the group stands
    where it stood before, until the coordinator reads its log again. A producer that missed a response sends its
    positions again right before EndTxn, unless the transaction is prepared: nothing may fail then.
    """
    forgets = kind == V1 and cell.request is Request.TXN_OFFSET_COMMIT and cell.how is How.LATE
    if not forgets or cell.next_end is not End.COMMIT or cell.end not in TWO_PHASE:
        return []
    return ["after C: committed offset 30, found 20"]
