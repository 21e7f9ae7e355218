"""All producers of one partition and its open transactions: what is learnt from its batches, kept and brought back."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from operator import itemgetter

from dualwrite.broker_emulator.log.aborted_index import AbortedIndexEntry
from dualwrite.broker_emulator.log.producer_state import AppendedBatch, ProducerEntry, after_batch, after_marker
from dualwrite.broker_emulator.log.record_batch import (
    NO_PRODUCER_ID,
    BatchHeader,
    iter_records,
    parse_end_txn_marker,
)
from dualwrite.broker_emulator.log.segment import Segment, StorageError
from dualwrite.broker_emulator.log.unstable_transactions import UnstableTransactions

_VERSION = 1
_HEAD = struct.Struct(">hi")  # version, number of producers
_PRODUCER = struct.Struct(">qhiqqqB")  # producer id, the entry's fields in their order, number of batches
_BATCH = struct.Struct(">iiq")


class ProducerStates:
    """The producers of one partition by id, and the transactions that hold its last stable offset back."""

    __slots__ = ("entries", "replayed_ms", "unstable")

    def __init__(self, replayed_ms: int) -> None:
        self.replayed_ms = replayed_ms
        """What counts as the time of an append that is replayed: when that was is not written anywhere."""
        self.entries: dict[int, ProducerEntry] = {}
        self.unstable = UnstableTransactions()

    def clear(self) -> None:
        """Know nothing any more."""
        self.entries.clear()
        self.unstable.clear()

    def stable_offset(self, offset: int) -> int:
        """First offset of the earliest open transaction, else `offset`."""
        first_open = self.unstable.first_open_offset()
        return offset if first_open is None else first_open

    def complete(self, producer_id: int, marker_offset: int, commit: bool, segment: Segment | None) -> None:
        """The marker of an open transaction was written to `segment`. Raises KeyError when none is open."""
        completed = self.unstable.complete(producer_id, marker_offset)
        if segment is not None and not commit:
            stable_offset = self.stable_offset(marker_offset + 1)
            segment.aborted.add(AbortedIndexEntry(producer_id, completed.first_offset, marker_offset, stable_offset))

    def replay(self, header: BatchHeader, batch: bytes | memoryview, segment: Segment | None) -> None:
        """Learn from a batch that was accepted once what its append had taught.

        `segment` gets what is to be known of aborted transactions; None where it knows already.
        """
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID:
            return
        entry = self.entries.get(producer_id)
        if not header.is_control:
            entry = after_batch(entry, header, header.base_offset, self.replayed_ms)
            if entry.has_open_transaction:
                self.unstable.begin(producer_id, entry.current_txn_first_offset)
            self.entries[producer_id] = entry
            return
        marker = next((parse_end_txn_marker(record) for record in iter_records(batch)), None)
        if marker is None:  # another kind of control record, or one that compaction emptied
            return
        was_open = entry is not None and entry.has_open_transaction
        entry = after_marker(entry, header.producer_epoch, marker.coordinator_epoch, self.replayed_ms)
        self.entries[producer_id] = entry._replace(last_timestamp=header.max_timestamp)
        if was_open:
            self.complete(producer_id, header.base_offset, marker.commit, segment)

    def encode(self) -> bytes:
        """Everything, for `restore`."""
        return _HEAD.pack(_VERSION, len(self.entries)) + b"".join(self._encode_entries())

    def _encode_entries(self) -> Iterator[bytes]:
        for producer_id, (*fields, batches) in self.entries.items():
            yield _PRODUCER.pack(producer_id, *fields, len(batches))
            for batch in batches:
                yield _BATCH.pack(*batch)

    def restore(self, encoded: bytes) -> None:
        """Take over what `encode` gave. Raises StorageError."""
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
        if version != _VERSION:
            raise StorageError(f"a snapshot of producers has the unknown version {version}")
        position = _HEAD.size
        for _ in range(count):
            producer_id, *fields, batch_count = _PRODUCER.unpack_from(encoded, position)
            position += _PRODUCER.size
            batches = []
            for _ in range(batch_count):
                batches.append(AppendedBatch._make(_BATCH.unpack_from(encoded, position)))
                position += _BATCH.size
            self.entries[producer_id] = ProducerEntry._make((*fields, tuple(batches)))
