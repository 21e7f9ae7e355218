"""The guarantee for prepared transactions, which depends on the broker (with KIP-939, and without)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class Tier(IntEnum):
    """How much of two-phase commit a broker supports; 1 is all of it."""

    KEEP_PREPARED = 1
    """KIP-939: no timeout, and InitProducerId keeps a prepared transaction."""
    STORED_PAIR = 2
    """Two-phase commit without KeepPreparedTxn (KAFKA-20739): no timeout, completed with the stored id and epoch."""
    BOUNDED = 3
    """transaction.version 2, no two-phase commit: until `transaction.timeout.ms`; completed as `STORED_PAIR`.

    A decided dual write that the broker has aborted is published again from the log.
    """
    BOUNDED_V1 = 4
    """transaction.version 0 or 1: as `BOUNDED`, and the epoch is raised before each transaction."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The guarantee for prepared transactions. `tier` None: two-phase commit is not enabled.

    `bounded_ms`: after how many milliseconds, counted from its first record, the broker aborts a transaction that is
    still open, prepared or not; None if it never does. A dual write outlives that: its records are published again.
    """

    tier: Tier | None
    sentence: str
    bounded_ms: int | None


_BOUNDED: Final = (
    "the broker aborts a prepared transaction {bounded_ms} ms after its first record (transaction.timeout.ms); until "
    "then it survives this process and is completed with the stored pair. One that was aborted in between is published "
    "again from the log if it is a decided dual write; otherwise it is raised as PreparedTransactionLost, never "
    "ignored, if recovery comes within transactional.id.expiration.ms"
)

_SENTENCES: Final[dict[Tier | None, str]] = {
    None: (
        "transactions are atomic while this producer lives; none can be prepared, and the broker aborts one that is "
        "open for {bounded_ms} ms (transaction.timeout.ms)"
    ),
    Tier.KEEP_PREPARED: (
        "a prepared transaction survives without a timeout until a producer with its transactional id completes it: "
        "init_transactions(keep_prepared_txn=True) finds and keeps it, and fences all others (KIP-939)"
    ),
    Tier.STORED_PAIR: (
        "a prepared transaction survives without a timeout; it is found by DescribeTransactions and completed with the "
        "stored pair, because this broker refuses KeepPreparedTxn (KAFKA-20739). Others are fenced only when "
        "complete_transaction() is called, so hold the lock of the stored pair from init_transactions() until then"
    ),
    Tier.BOUNDED: _BOUNDED,
    Tier.BOUNDED_V1: _BOUNDED + ". Each transaction is preceded by InitProducerId, which makes its pair unique",
}

_UNBOUNDED: Final = (Tier.KEEP_PREPARED, Tier.STORED_PAIR)


def guarantee_of(tier: Tier | None, transaction_timeout_ms: int) -> Guarantee:
    """Return the guarantee of a tier, with a transaction timeout in milliseconds."""
    bounded_ms = None if tier in _UNBOUNDED else transaction_timeout_ms
    return Guarantee(tier, _SENTENCES[tier].format(bounded_ms=bounded_ms), bounded_ms)
