"""What a partition knows of each producer, and what it accepts from it (KIP-98, KIP-360, KIP-890; 3.1 and 2.7).

Everything here is pure: an entry is a value, a check looks at it, `after_...` gives the next one.
"""

from __future__ import annotations

from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.record_batch import MAX_SEQUENCE, NO_SEQUENCE, BatchHeader
from dualwrite.broker_emulator.log.verification import VerificationEntry, VerificationGuard

RETAINED_BATCHES = 5
"""As many as an idempotent producer may have in flight: a retry of any of them is recognised."""

NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1
TRANSACTION_VERSION_2 = 2
"""`transaction.version` level from which each transaction has its own epoch (KIP-890 part 2)."""


class AppendedBatch(NamedTuple):
    """One of the last batches of a producer, as far as a duplicate of it has to be recognised and answered."""

    first_sequence: int
    last_sequence: int
    base_offset: int


class ProducerEntry(NamedTuple):
    """The state of one producer id on one partition."""

    producer_epoch: int
    coordinator_epoch: int
    """Of the last marker; -1 until there was one."""
    last_timestamp: int
    """Largest timestamp of its newest batch, or its newest marker's; milliseconds since the Unix epoch."""
    last_append_ms: int
    """When it last appended by the broker's clock; expiry goes by this, not by the client's word (KAFKA-9144)."""
    current_txn_first_offset: int
    """First offset of the open transaction; -1 when none is open."""
    batches: tuple[AppendedBatch, ...]
    """The newest five data batches of this epoch, oldest first."""

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest record of this epoch; -1 when there is none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def has_open_transaction(self) -> bool:
        """Whether a transaction is open, of whatever epoch."""
        return self.current_txn_first_offset != NO_OFFSET


class Rejection(NamedTuple):
    """Why something is not appended."""

    error: ErrorCode
    message: str


def find_duplicate(entry: ProducerEntry | None, header: BatchHeader) -> AppendedBatch | None:
    """The retained batch of which `header` is a retry: same epoch, same first and last sequence."""
    if entry is None or entry.producer_epoch != header.producer_epoch:
        return None
    for batch in entry.batches:
        if batch.first_sequence == header.base_sequence and batch.last_sequence == header.last_sequence:
            return batch
    return None


def is_open(entry: ProducerEntry | None, producer_epoch: int, *, any_epoch: bool = False) -> bool:
    """Whether a transaction of this very epoch is open (KAFKA-18575, KAFKA-18654).

    With `any_epoch` of whichever one: brokers before 4.0 looked at the producer id alone.
    """
    if entry is None or entry.current_txn_first_offset == NO_OFFSET:
        return False
    return any_epoch or entry.producer_epoch == producer_epoch


def check_verified(
    entry: ProducerEntry | None,
    header: BatchHeader,
    verification: VerificationEntry | None,
    guard: VerificationGuard | None,
    *,
    any_epoch: bool = False,
) -> Rejection | None:
    """A transactional batch must belong to an open transaction or present the pending guard (48 otherwise)."""
    if not header.is_transactional or is_open(entry, header.producer_epoch, any_epoch=any_epoch):
        return None
    if verification is not None and verification.guard is guard:
        return None
    return Rejection(
        ErrorCode.invalid_txn_state,
        f"producer {header.producer_id} epoch {header.producer_epoch} has no open transaction here and this batch "
        "was not verified with the coordinator, or its verification was ended by a marker",
    )


def check_epoch(entry: ProducerEntry | None, header: BatchHeader) -> Rejection | None:
    """A lower epoch than the last one seen is fenced (47, never 90 on Produce: KAFKA-9911)."""
    if entry is None or header.producer_epoch >= entry.producer_epoch:
        return None
    return Rejection(
        ErrorCode.invalid_producer_epoch,
        f"producer {header.producer_id} epoch {header.producer_epoch} is older than epoch {entry.producer_epoch}",
    )


def check_sequence(
    entry: ProducerEntry | None,
    header: BatchHeader,
    verification: VerificationEntry | None,
    transaction_version: int,
) -> Rejection | None:
    """The sequence rules of 3.1 for a batch whose epoch is not fenced (45 otherwise)."""
    sequence = header.base_sequence
    expected = _expected_sequence(entry, header.producer_epoch, verification, transaction_version)
    if expected is not None and sequence != expected:
        return _out_of_order(header, f"expected {expected}")
    if verification is not None and sequence > verification.lowest_sequence:
        return _out_of_order(header, f"sequence {verification.lowest_sequence} came first and is not appended yet")
    return None


def _expected_sequence(
    entry: ProducerEntry | None,
    producer_epoch: int,
    verification: VerificationEntry | None,
    transaction_version: int,
) -> int | None:
    """The only acceptable base sequence, or None where any is."""
    if entry is not None:
        return next_sequence(entry.last_sequence) if producer_epoch == entry.producer_epoch else 0
    # Without state, an old client may go on where its expired state ended; one that bumps its epoch per transaction
    # has nothing to go on from, and a gap would mean that its first batch got lost.
    if verification is None or not verification.supports_epoch_bump:
        return None
    return 0 if transaction_version >= TRANSACTION_VERSION_2 else None


def next_sequence(last_sequence: int) -> int:
    """The sequence after `last_sequence`; 0 after -1 (none yet) and after 2147483647."""
    return 0 if last_sequence == MAX_SEQUENCE else last_sequence + 1


def _out_of_order(header: BatchHeader, reason: str) -> Rejection:
    return Rejection(
        ErrorCode.out_of_order_sequence_number,
        f"producer {header.producer_id} epoch {header.producer_epoch} sent sequence {header.base_sequence}: {reason}",
    )


def check_same_kind(entry: ProducerEntry | None, header: BatchHeader) -> Rejection | None:
    """While its transaction is open a producer must not write outside of it (48)."""
    if entry is None or not entry.has_open_transaction or header.is_transactional:
        return None
    return Rejection(
        ErrorCode.invalid_txn_state,
        f"producer {header.producer_id} has a transaction open here since offset {entry.current_txn_first_offset}; "
        "this batch is not part of it",
    )


def after_batch(entry: ProducerEntry | None, header: BatchHeader, base_offset: int, now_ms: int) -> ProducerEntry:
    """The state after a data batch was appended at `base_offset`."""
    batch = AppendedBatch(header.base_sequence, header.last_sequence, base_offset)
    first_offset = base_offset if header.is_transactional else NO_OFFSET
    if entry is None:
        return ProducerEntry(
            header.producer_epoch, NO_COORDINATOR_EPOCH, header.max_timestamp, now_ms, first_offset, (batch,)
        )
    if entry.current_txn_first_offset != NO_OFFSET:
        first_offset = entry.current_txn_first_offset
    same_epoch = entry.producer_epoch == header.producer_epoch
    return ProducerEntry(
        header.producer_epoch,
        entry.coordinator_epoch,
        header.max_timestamp,
        now_ms,
        first_offset,
        (*entry.batches[1 - RETAINED_BATCHES :], batch) if same_epoch else (batch,),
    )


def check_marker(
    entry: ProducerEntry | None, producer_epoch: int, coordinator_epoch: int, transaction_version: int
) -> Rejection | None:
    """Whether a marker is accepted: not from a former transaction (47), not from a former coordinator (52); 2.7."""
    if entry is None:
        return None
    if _is_stale_marker(entry, producer_epoch, transaction_version):
        return Rejection(
            ErrorCode.invalid_producer_epoch,
            f"marker epoch {producer_epoch} does not end a transaction of epoch {entry.producer_epoch}",
        )
    if coordinator_epoch < entry.coordinator_epoch:
        return Rejection(
            ErrorCode.transaction_coordinator_fenced,
            f"coordinator epoch {coordinator_epoch} is older than {entry.coordinator_epoch}",
        )
    return None


def _is_stale_marker(entry: ProducerEntry, producer_epoch: int, transaction_version: int) -> bool:
    if transaction_version < TRANSACTION_VERSION_2 or producer_epoch != entry.producer_epoch:
        return producer_epoch < entry.producer_epoch
    # Under TV2 the marker's epoch is above its transaction's. An equal one belongs to the transaction before the open
    # one (KAFKA-19446), or, with nothing open, is the retry of a marker whose answer got lost (KAFKA-19999).
    return entry.has_open_transaction


def after_marker(
    entry: ProducerEntry | None, producer_epoch: int, coordinator_epoch: int, now_ms: int
) -> ProducerEntry:
    """The state after a marker: no transaction is open, and a new epoch starts its sequences anew."""
    batches = entry.batches if entry is not None and entry.producer_epoch == producer_epoch else ()
    return ProducerEntry(producer_epoch, coordinator_epoch, now_ms, now_ms, NO_OFFSET, batches)
