"""The producers of one partition: their state, and the rules by which their batches and markers are accepted.

An entry is an immutable value, a check is a function of it, and `after_...` returns the next entry; all of these are
pure. `ProducerStates` holds the entries of a partition and its open transactions; storage persists it as a snapshot.
KIP-98, KIP-360, KIP-890; the checks are those of Kafka's ProducerAppendInfo, in its order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.last_stable_offset import AbortedIndexEntry, UnstableTransactions
from dualwrite.broker_emulator.log.record_batch import (
    MAX_SEQUENCE,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
    BatchHeader,
    iter_records,
    parse_end_txn_marker,
)
from dualwrite.broker_emulator.log.segments import Segment, StorageError
from dualwrite.broker_emulator.log.verification import VerificationEntry, VerificationGuard

RETAINED_BATCHES = 5
"""The number of batches that an idempotent producer may have in flight: a retry of any of them is recognised."""

NO_OFFSET = -1
NO_EPOCH = -1
NO_COORDINATOR_EPOCH = -1
TRANSACTION_VERSION_2 = 2
"""The `transaction.version` level from which each transaction has its own epoch (KIP-890 part 2)."""


class AppendedBatch(NamedTuple):
    """One of the last batches of a producer: the facts that identify a duplicate and acknowledge it."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    timestamp: int = -1
    """Its largest timestamp, which Kafka also returns to a duplicate as its append time; -1 if unknown."""


class ProducerEntry(NamedTuple):
    """The state of one producer id on one partition."""

    producer_epoch: int
    coordinator_epoch: int
    """Coordinator epoch of the last marker; -1 before the first marker."""
    last_timestamp: int
    """Largest timestamp of its newest batch, or of its newest marker; milliseconds since the Unix epoch."""
    last_append_ms: int
    """The time of its last append, by the broker's clock; expiry uses it, not the client's timestamps (KAFKA-9144)."""
    current_txn_first_offset: int
    """First offset of the open transaction; -1 if none is open."""
    batches: tuple[AppendedBatch, ...]
    """The newest five data batches of this epoch, oldest first."""

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest record of this epoch; -1 before the first record."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def has_open_transaction(self) -> bool:
        """Whether a transaction of any epoch is open."""
        return self.current_txn_first_offset != NO_OFFSET


class BadRecord(NamedTuple):
    """The reason to refuse one record of a batch."""

    batch_index: int
    """Its place in the batch, from 0."""
    problem: str


class Rejection(NamedTuple):
    """The reason to refuse a batch or a marker."""

    error: ErrorCode
    message: str
    bad_records: tuple[BadRecord, ...] = ()
    """The records that caused the refusal (KIP-467)."""


def find_duplicate(entry: ProducerEntry | None, header: BatchHeader) -> AppendedBatch | None:
    """Return the retained batch that `header` retries: same epoch, same first and last sequence."""
    if entry is None or entry.producer_epoch != header.producer_epoch:
        return None
    for batch in entry.batches:
        if batch.first_sequence == header.base_sequence and batch.last_sequence == header.last_sequence:
            return batch
    return None


def is_open(entry: ProducerEntry | None, producer_epoch: int, *, any_epoch: bool = False) -> bool:
    """Return whether a transaction of exactly this epoch is open (KAFKA-18575, KAFKA-18654).

    With `any_epoch`, a transaction of any epoch counts: brokers before 4.0 compared the producer id alone.
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
    """Check that a transactional batch belongs to an open transaction or presents the pending guard (else 48)."""
    if not header.attributes & TRANSACTIONAL or is_open(entry, header.producer_epoch, any_epoch=any_epoch):
        return None
    if verification is not None and verification.guard is guard:
        return None
    return Rejection(
        ErrorCode.invalid_txn_state,
        f"producer {header.producer_id} epoch {header.producer_epoch} has no open transaction here and this batch "
        "was not verified with the coordinator, or its verification was ended by a marker",
    )


def check_epoch(entry: ProducerEntry | None, header: BatchHeader) -> Rejection | None:
    """Fence an epoch lower than the last known one (47, never 90 on Produce: KAFKA-9911).

    This precedes the check of the verification guard, which would return 48, fatal to the client (KAFKA-19690).
    """
    last_epoch = NO_EPOCH if entry is None else entry.producer_epoch
    if header.producer_epoch >= last_epoch:
        return None
    return Rejection(
        ErrorCode.invalid_producer_epoch,
        f"producer {header.producer_id} epoch {header.producer_epoch} is older than epoch {last_epoch}",
    )


def check_sequence(
    entry: ProducerEntry | None,
    header: BatchHeader,
    verification: VerificationEntry | None,
) -> Rejection | None:
    """Check the sequence of a batch whose epoch is not fenced (45 if it is out of order)."""
    sequence = header.base_sequence
    if sequence != 0 and _must_start_at_0(entry, verification):
        return _out_of_order(header, "expected 0")
    expected = _expected_sequence(entry, header.producer_epoch)
    if expected is not None and sequence != expected:
        return _out_of_order(header, f"expected {expected}")
    if verification is not None and sequence > verification.lowest_sequence:
        return _out_of_order(header, f"sequence {verification.lowest_sequence} came first and is not appended yet")
    return None


def _must_start_at_0(entry: ProducerEntry | None, verification: VerificationEntry | None) -> bool:
    """Return whether this is the first batch of a client that bumps its epoch for each transaction.

    If such a batch has any other sequence, the first batch was lost. An old client may continue where its expired state
    ended.
    """
    is_first = entry is None or not entry.batches
    return is_first and verification is not None and verification.supports_epoch_bump


def _expected_sequence(entry: ProducerEntry | None, producer_epoch: int) -> int | None:
    """Return the only acceptable base sequence, or None if any is acceptable."""
    if entry is None or entry.producer_epoch == NO_EPOCH:
        return None  # Kafka cannot tell the second case from an unknown producer
    return next_sequence(entry.last_sequence) if producer_epoch == entry.producer_epoch else 0


def next_sequence(last_sequence: int) -> int:
    """Return the sequence after `last_sequence`; 0 after -1 (none yet) and after 2147483647."""
    return 0 if last_sequence == MAX_SEQUENCE else last_sequence + 1


def _out_of_order(header: BatchHeader, reason: str) -> Rejection:
    return Rejection(
        ErrorCode.out_of_order_sequence_number,
        f"producer {header.producer_id} epoch {header.producer_epoch} sent sequence {header.base_sequence}: {reason}",
    )


def check_same_kind(entry: ProducerEntry | None, header: BatchHeader) -> Rejection | None:
    """Check that a producer with an open transaction does not write outside of it (48)."""
    if entry is None or header.attributes & TRANSACTIONAL or not entry.has_open_transaction:
        return None
    return Rejection(
        ErrorCode.invalid_txn_state,
        f"producer {header.producer_id} has a transaction open here since offset {entry.current_txn_first_offset}; "
        "this batch is not part of it",
    )


def after_batch(entry: ProducerEntry | None, header: BatchHeader, base_offset: int, now_ms: int) -> ProducerEntry:
    """Return the entry after a data batch was appended at `base_offset`."""
    batch = AppendedBatch(header.base_sequence, header.last_sequence, base_offset, header.max_timestamp)
    first_offset = base_offset if header.attributes & TRANSACTIONAL else NO_OFFSET
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
    """Check a marker: refuse a marker of an earlier transaction (47) or from an earlier coordinator (52)."""
    last_epoch, last_coordinator_epoch = NO_EPOCH, NO_COORDINATOR_EPOCH
    is_stale = producer_epoch < last_epoch
    if entry is not None:
        last_epoch, last_coordinator_epoch = entry.producer_epoch, entry.coordinator_epoch
        is_stale = _is_stale_marker(entry, producer_epoch, transaction_version)
    if is_stale:
        return Rejection(
            ErrorCode.invalid_producer_epoch,
            f"marker epoch {producer_epoch} does not end a transaction of epoch {last_epoch}",
        )
    if coordinator_epoch < last_coordinator_epoch:
        return Rejection(
            ErrorCode.transaction_coordinator_fenced,
            f"coordinator epoch {coordinator_epoch} is older than {last_coordinator_epoch}",
        )
    return None


def _is_stale_marker(entry: ProducerEntry, producer_epoch: int, transaction_version: int) -> bool:
    if transaction_version < TRANSACTION_VERSION_2 or producer_epoch != entry.producer_epoch:
        return producer_epoch < entry.producer_epoch
    # Under transaction version 2 a marker's epoch is above its transaction's. An equal epoch means the transaction
    # before the open one (KAFKA-19446) or, if none is open, a retry after a lost response (KAFKA-19999).
    return entry.has_open_transaction


def after_marker(
    entry: ProducerEntry | None, producer_epoch: int, coordinator_epoch: int, now_ms: int
) -> ProducerEntry:
    """Return the entry after a marker: it has no open transaction, and a new epoch restarts the sequences."""
    batches = entry.batches if entry is not None and entry.producer_epoch == producer_epoch else ()
    return ProducerEntry(producer_epoch, coordinator_epoch, now_ms, now_ms, NO_OFFSET, batches)


# --- all producers of a partition -----------------------------------------------------------------------------------

_SNAPSHOT_VERSION = 2
_HEAD = struct.Struct(">hi")  # version, number of producers
_PRODUCER = struct.Struct(">qhiqqqB")  # producer id, the entry's fields in their order, number of batches
_BATCH = struct.Struct(">iiqq")
_BATCH_OF_VERSION_1 = struct.Struct(">iiq")  # without its timestamp


class ProducerStates:
    """The producers of one partition by id, and the transactions that hold back its last stable offset."""

    __slots__ = ("entries", "replayed_ms", "unstable")

    def __init__(self, replayed_ms: int) -> None:
        self.replayed_ms = replayed_ms
        """The append time assumed for replayed batches, whose actual time is not stored."""
        self.entries: dict[int, ProducerEntry] = {}
        self.unstable = UnstableTransactions()

    def clear(self) -> None:
        """Forget all producers and transactions."""
        self.entries.clear()
        self.unstable.clear()

    def keep_newest_batches(self) -> None:
        """Forget all but each producer's newest batch, as Kafka does at a start: its snapshots hold no others."""
        for producer_id, entry in self.entries.items():
            if len(entry.batches) > 1:
                self.entries[producer_id] = entry._replace(batches=entry.batches[-1:])

    def stable_offset(self, offset: int) -> int:
        """Return the first offset of the earliest open transaction, else `offset`."""
        first_open = self.unstable.first_open_offset()
        return offset if first_open is None else first_open

    def complete(self, producer_id: int, marker_offset: int, commit: bool, segment: Segment | None) -> None:
        """Complete an open transaction whose marker was written to `segment`. Raises KeyError if none is open."""
        completed = self.unstable.complete(producer_id, marker_offset)
        if segment is not None and not commit:
            stable_offset = self.stable_offset(marker_offset + 1)
            segment.aborted.add(AbortedIndexEntry(producer_id, completed.first_offset, marker_offset, stable_offset))

    def replay(self, header: BatchHeader, batch: bytes | memoryview, segment: Segment | None) -> None:
        """Update the state by a batch of the log, without checks, as it was accepted before.

        Aborted transactions are added to the index of `segment`; None means that they are in it already.
        """
        producer_id = header.producer_id
        if producer_id <= NO_PRODUCER_ID:
            return
        entry = self.entries.get(producer_id)
        if not header.is_control:
            entry = after_batch(entry, header, header.base_offset, self.replayed_ms)
            if entry.has_open_transaction:
                self.unstable.begin(producer_id, entry.current_txn_first_offset)
            self.entries[producer_id] = entry
            return
        marker = next((parse_end_txn_marker(record) for record in iter_records(batch)), None)
        if marker is None:  # another kind of control record, or a marker that compaction emptied
            return
        was_open = entry is not None and entry.has_open_transaction
        entry = after_marker(entry, header.producer_epoch, marker.coordinator_epoch, self.replayed_ms)
        self.entries[producer_id] = entry._replace(last_timestamp=header.max_timestamp)
        if was_open:
            self.complete(producer_id, header.base_offset, marker.commit, segment)

    def encode(self) -> bytes:
        """Encode all entries, for `restore`."""
        return _HEAD.pack(_SNAPSHOT_VERSION, len(self.entries)) + b"".join(self._encode_entries())

    def _encode_entries(self) -> Iterator[bytes]:
        for producer_id, (*fields, batches) in self.entries.items():
            yield _PRODUCER.pack(producer_id, *fields, len(batches))
            for batch in batches:
                yield _BATCH.pack(*batch)

    def restore(self, encoded: bytes) -> None:
        """Replace the state by the output of `encode`. Raises StorageError."""
        self.clear()
        try:
            self._decode(encoded)
        except (struct.error, TypeError) as error:
            raise StorageError(f"a snapshot of producers does not parse: {error}") from error
        opened = [(entry.current_txn_first_offset, pid) for pid, entry in self.entries.items()]
        for first_offset, producer_id in sorted(opened, key=itemgetter(0)):
            if first_offset >= 0:
                self.unstable.begin(producer_id, first_offset)

    def _decode(self, encoded: bytes) -> None:
        version, count = _HEAD.unpack_from(encoded)
        layout = {1: _BATCH_OF_VERSION_1, _SNAPSHOT_VERSION: _BATCH}.get(version)
        if layout is None:
            raise StorageError(f"a snapshot of producers has the unknown version {version}")
        position = _HEAD.size
        for _ in range(count):
            producer_id, *fields, batch_count = _PRODUCER.unpack_from(encoded, position)
            position += _PRODUCER.size
            batches = []
            for _ in range(batch_count):
                batches.append(AppendedBatch(*layout.unpack_from(encoded, position)))
                position += layout.size
            self.entries[producer_id] = ProducerEntry._make((*fields, tuple(batches)))
