"""Errors for transactions that no marker is going to end (KAFKA-20734), with the commands that end them.

A writer that is refused nothing does not load this module.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from dualwrite.errors import KafkaError, NoMarkerError, TransactionHangsError
from dualwrite.guarantee import Tier
from dualwrite.hanging import EndByHand, end_by_hand
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.metrics import Counted, TornEnd, count
from dualwrite.recipes.core.owned_id import OwnedId

_log = logging.getLogger("dualwrite.recipes.core.coordinator")  # one logger for all steps of a dual write


def log_hanging(transactional_id: str, row: PreparedTxnState, error: NoMarkerError) -> TransactionHangsError:
    """Log that a decided transaction has no marker, and will get none; return the error to raise.

    A commit marker is right even if the coordinator decided an abort, because the database has decided to commit.
    """
    ends = end_by_hand(row, dict.fromkeys(error.partitions))
    found = TransactionHangsError(
        f"transactional id {transactional_id!r} cannot be used: no marker ends {row} in {_named(error.partitions)}, "
        "and no coordinator is going to write one (KAFKA-20734). Consumers with read_committed stop there. The "
        f"database has decided it, so end it with a commit marker: {ends.commit}. Then repeat this "
        "call. Nothing was published again",
        transactional_id=transactional_id,
        prepared_state=str(row),
        partitions=error.partitions,
    )
    _log.error("%s", found)
    return found


async def hangs_before(owned: OwnedId, error: TransactionHangsError) -> TransactionHangsError:
    """Log and count that an earlier transaction hangs in a partition of the block; return the error to raise."""
    cluster_id = ""
    with suppress(KafkaError):
        cluster_id = await owned.kafka.cluster_id(owned.resolve_timeout_ms)
    count(Counted.TORN, outcome=TornEnd.HANGING)
    earlier = PreparedTxnState(error.prepared_state)
    ends = end_by_hand(earlier, dict(zip(error.partitions, error.start_offsets, strict=True)))
    remedy = _by_row(owned, earlier, ends, cluster_id)
    found = TransactionHangsError(
        f"transactional id {owned.transactional_id!r} cannot write to {_named(error.partitions)}: its earlier "
        f"transaction {earlier} is open there from offset {error.start_offsets[0]} on, and no coordinator is going to "
        "write its marker (KAFKA-20734). Consumers with read_committed stop there, and the next marker of the id would "
        f"end both, so nothing was written there. Neither side was changed. {remedy}. Then repeat "
        "the block",
        transactional_id=owned.transactional_id,
        prepared_state=error.prepared_state,
        partitions=error.partitions,
        start_offsets=error.start_offsets,
    )
    _log.error("%s", found)
    return found


def _by_row(owned: OwnedId, earlier: PreparedTxnState, ends: EndByHand, cluster_id: str) -> str:
    """Return the command that ends an earlier transaction, by the rows that this process has seen.

    Each cluster assigns the same pairs, so a row says nothing of a transaction in another one. Before
    transaction.version 2 several transactions have the same pair.
    """
    inherited = owned.inherited
    is_of_here = inherited.is_empty or owned.inherited_from == cluster_id != ""
    if is_of_here and _is_between(inherited, earlier, owned.first_decided):
        return f"The database has not decided it, so abort it: {ends.abort}"
    is_ours = is_of_here or owned.row != inherited
    if is_ours and earlier == owned.row and owned.kafka.guarantee.tier is not Tier.BOUNDED_V1:
        return f"The database has decided it, so commit it: {ends.commit}"
    return (
        "The state row no longer shows whether the database has decided it, because later ones were: read its records "
        "there, and those behind, with read_uncommitted. If the database has their changes, and no other producer id "
        f"has sent them again, commit it: {ends.commit}; else abort it: {ends.abort}"
    )


def _is_between(after: PreparedTxnState, pair: PreparedTxnState, before: PreparedTxnState | None) -> bool:
    """Return whether a pair is newer than `after`, which may be empty, and older than `before`, if there is one."""
    ids = {each.producer_id for each in (after, before) if each}
    if ids - {pair.producer_id}:
        return False
    is_newer = after.is_empty or after.producer_epoch < pair.producer_epoch
    return is_newer and (before is None or pair.producer_epoch < before.producer_epoch)


def _named(partitions: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in partitions)
