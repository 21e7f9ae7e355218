"""The two questions that only the database row answers (KIP-939, recovery). Pure."""

from __future__ import annotations

from enum import StrEnum

from dualwrite.prepared_state import PreparedTxnState


class Outcome(StrEnum):
    """How a dual write, or a transaction that a crash left open, ended on both sides."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled-back"
    NOTHING = "nothing"
    """There was nothing to complete."""
    SUPERSEDED = "superseded"
    """A later dual write has replaced the row: both sides agree, but the row no longer tells which way."""


def recovery_outcome(row: PreparedTxnState, ongoing: PreparedTxnState) -> Outcome:
    """What becomes of the transaction that Kafka found open, given the row that was read under its lock."""
    if ongoing.is_empty:
        return Outcome.NOTHING
    return Outcome.COMMITTED if row == ongoing else Outcome.ROLLED_BACK


def commit_outcome(row: PreparedTxnState, *, ours: PreparedTxnState, previous: PreparedTxnState) -> Outcome:
    """What became of a database commit whose answer was lost.

    `ours` is what the lost commit would have left in the row and `previous` what stood there before. A pair is
    never used twice, because transaction protocol V2 bumps the epoch with every transaction (KIP-890).
    """
    if row == ours:
        return Outcome.COMMITTED
    if row == previous:
        return Outcome.ROLLED_BACK
    return Outcome.SUPERSEDED
