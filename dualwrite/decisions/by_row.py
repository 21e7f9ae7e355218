"""The outcome of a transaction as the state row decides it (KIP-939, recovery); pure functions."""

from __future__ import annotations

from dualwrite.outcome import Outcome
from dualwrite.prepared_state import PreparedTxnState


def recovery_outcome(row: PreparedTxnState, ongoing: PreparedTxnState) -> Outcome:
    """Return the outcome of the transaction that is open in Kafka, given the row that was read under its lock."""
    if ongoing.is_empty:
        return Outcome.NOTHING
    return Outcome.COMMITTED if row == ongoing else Outcome.ROLLED_BACK


def commit_outcome(row: PreparedTxnState, *, ours: PreparedTxnState, previous: PreparedTxnState) -> Outcome:
    """Return the outcome of a database commit whose response was lost.

    `ours` is the state that this commit would have left in the row, `previous` the state before. A pair of producer id
    and epoch is never used twice, because transaction protocol V2 bumps the epoch with every transaction (KIP-890).
    """
    if row == ours:
        return Outcome.COMMITTED
    if row == previous:
        return Outcome.ROLLED_BACK
    return Outcome.SUPERSEDED
