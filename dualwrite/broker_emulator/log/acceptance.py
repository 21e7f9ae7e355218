"""Decide whether a partition accepts the batches of an append, from its producers' state; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dualwrite.broker_emulator.log.producer_state import (
    AppendedBatch,
    ProducerEntry,
    Rejection,
    after_batch,
    check_epoch,
    check_same_kind,
    check_sequence,
    check_verified,
    find_duplicate,
)
from dualwrite.broker_emulator.log.record_batch import NO_PRODUCER_ID, BatchHeader
from dualwrite.broker_emulator.log.verification import VerificationEntry, VerificationGuard, Verifications


class Expected(NamedTuple):
    """The state that a partition checks batches against."""

    producers: Mapping[int, ProducerEntry]
    verifications: Verifications
    open_at_any_epoch: bool


def accept(
    batches: Sequence[tuple[BatchHeader, memoryview]],
    expected: Expected,
    guard: VerificationGuard | None,
    *,
    base_offset: int,
    now_ms: int,
    from_client: bool,
) -> dict[int, ProducerEntry] | AppendedBatch | Rejection:
    """Return the producers as they are after all batches, the earlier batch of a duplicate, or the first rejection.

    `guard` is the verification guard that the append presents.
    """
    entries: dict[int, ProducerEntry] = {}
    for header, _ in batches:
        producer_id = header.producer_id
        if producer_id > NO_PRODUCER_ID:
            entry = entries.get(producer_id) or expected.producers.get(producer_id)
            duplicate = find_duplicate(entry, header) if from_client else None
            if duplicate is not None:
                return duplicate
            verification = None if producer_id in entries else expected.verifications.get(producer_id)
            rejection = check_epoch(entry, header)
            rejection = rejection or check_verified(
                entry, header, verification, guard, any_epoch=expected.open_at_any_epoch
            )
            rejection = rejection or _check_order(entry, header, verification, from_client)
            if rejection is not None:
                return rejection
            entries[producer_id] = after_batch(entry, header, base_offset, now_ms)
        base_offset += header.last_offset_delta + 1
    return entries


def _check_order(
    entry: ProducerEntry | None,
    header: BatchHeader,
    verification: VerificationEntry | None,
    from_client: bool,
) -> Rejection | None:
    """Check sequence and kind of a batch, in Kafka's order. Duplicate, epoch and verification were checked before."""
    rejection = check_sequence(entry, header, verification) if from_client else None
    return rejection or check_same_kind(entry, header)
