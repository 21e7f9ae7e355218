"""Compaction: keep only the newest record of each key (`cleanup.policy=compact`).

Records of a transaction are kept or removed by its outcome (KIP-98):

* Records of an aborted transaction are removed, with or without newer records of their keys.
* A marker is kept while records or batches of its transaction precede it. Then it gets a time to live of
  `delete.retention.ms`, so that consumers reading the transaction still find it; the first run after that removes it.
* Tombstones get the same time to live when a run first finds them (KIP-534).

A batch whose records are all removed is removed too, with two exceptions that are kept as empty batches: the last batch
of a producer (duplicates of it must be recognised) and the last batch of a segment (so that segments stay contiguous).
A batch in a compression that the broker cannot decode is kept whole. While there is one, tombstones are kept as well,
because that batch may have an older record of the same key.

A run stops at a compressed batch with a record larger than the current `max.decompressed.message.bytes`. Batches of
aborted transactions are not decompressed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from operator import attrgetter

from dualwrite.broker_emulator.log.last_stable_offset import AbortedIndexEntry
from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.producer_state import ProducerEntry
from dualwrite.broker_emulator.log.record import Record
from dualwrite.broker_emulator.log.record_batch import (
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    UnsupportedCompressionError,
    iter_records,
    parse_end_txn_marker,
    parse_header,
    rebuild_batch,
    records_of,
)
from dualwrite.broker_emulator.log.segments import LogStorage, Segment, Segments, StorageError
from dualwrite.broker_emulator.slices import Steps, at_once

_WITHOUT_PRODUCER = {"attributes": 0, "producer_id": NO_PRODUCER_ID, "producer_epoch": -1, "base_sequence": NO_SEQUENCE}
_MAX_KEYS = 1_000_000
"""The number of keys that one run handles; a log with more keys takes several runs."""


class TransactionOutcomes:
    """The transactions whose first batches a run has passed, and their outcomes."""

    __slots__ = ("_aborted", "_committed", "_observed", "_upcoming")

    def __init__(self, aborted: Sequence[AbortedIndexEntry]) -> None:
        self._upcoming = sorted(aborted, key=attrgetter("first_offset"), reverse=True)
        self._aborted: dict[int, AbortedIndexEntry] = {}
        self._observed: set[int] = set()  # producers whose aborted transaction had a batch in this run
        self._committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether a data batch belongs to an aborted transaction."""
        self._begin(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._observed.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def end(self, header: BatchHeader, *, commit: bool) -> tuple[bool, AbortedIndexEntry | None]:
        """Handle a marker: return whether its transaction has batches left, and its index entry if it was aborted."""
        self._begin(header.last_offset)
        producer_id = header.producer_id
        if commit:
            had_batches = producer_id in self._committed
            self._committed.discard(producer_id)
            return had_batches, None
        entry = self._aborted.pop(producer_id, None)
        had_batches = producer_id in self._observed
        self._observed.discard(producer_id)
        return had_batches, entry if had_batches else None

    def _begin(self, offset: int) -> None:
        while self._upcoming and self._upcoming[-1].first_offset <= offset:
            entry = self._upcoming.pop()
            self._aborted[entry.producer_id] = entry


class Cleaner:
    """Compacts one log."""

    __slots__ = ("_clean_until", "_segments", "_storage")

    def __init__(self, segments: Segments, storage: LogStorage) -> None:
        self._segments = segments
        self._storage = storage
        self._clean_until = 0  # lost in a restart: the first run then rereads everything

    def clean(
        self, config: LogConfig, now_ms: int, limit_offset: int, producers: Mapping[int, ProducerEntry]
    ) -> Iterator[None]:
        """Run once, in steps, if enough of the log is dirty.

        Raises StorageError, CorruptRecordError, RecordTooLargeError.
        """
        cleanable = self._cleanable(config, now_ms, limit_offset)
        dirty = [segment for segment in cleanable if segment.next_offset > self._clean_until]
        size = sum(segment.size_bytes for segment in cleanable)
        dirty_size = sum(segment.size_bytes for segment in dirty)
        if not dirty:
            return
        if dirty_size < config.min_cleanable_dirty_ratio * size and not _is_overdue(dirty, config, now_ms):
            return
        try:
            yield from self._clean(config, now_ms, producers, cleanable, dirty)
        except StorageError:
            if self._segments.holds(cleanable):
                raise  # otherwise retention or DeleteRecords deleted the segments meanwhile

    def _clean(
        self,
        config: LogConfig,
        now_ms: int,
        producers: Mapping[int, ProducerEntry],
        cleanable: Sequence[Segment],
        dirty: Sequence[Segment],
    ) -> Iterator[None]:
        newest: dict[bytes, int] = {}
        most = config.max_decompressed_message_bytes
        end = yield from _find_newest(dirty, self._outcomes(dirty), newest, most)
        cleanable = [segment for segment in cleanable if segment.next_offset <= end]
        run = _Run(config, now_ms, newest, producers, self._outcomes(cleanable))
        for group in _groups(cleanable, config.segment_bytes):
            cleaned = self._storage.new_cleaned_segment(group[0].base_offset, group[0].stable_offset)
            try:
                yield from run.clean(group, cleaned)
            except Exception:
                at_once(self._storage.discard([cleaned]))
                raise
            if not self._segments.holds(group):  # deleted meanwhile, as above
                at_once(self._storage.discard([cleaned]))
                return
            self._segments.replace(group, cleaned)
        self._clean_until = end

    def _outcomes(self, segments: Sequence[Segment]) -> TransactionOutcomes:
        return TransactionOutcomes(self._segments.aborted(segments[0].base_offset, segments[-1].next_offset))

    def _cleanable(self, config: LogConfig, now_ms: int, limit_offset: int) -> list[Segment]:
        """Return the complete segments whose records are decided and old enough."""
        lag_ms = config.min_compaction_lag_ms

        def may_be_cleaned(segment: Segment) -> bool:
            is_old = lag_ms == 0 or segment.max_timestamp <= now_ms - lag_ms
            return is_old and segment.next_offset <= limit_offset

        return list(takewhile(may_be_cleaned, self._segments.complete))


def _is_overdue(dirty: Sequence[Segment], config: LogConfig, now_ms: int) -> bool:
    """Return whether the oldest record that was never compacted is older than `max.compaction.lag.ms` (KIP-354)."""
    due_before_ms = now_ms - config.max_compaction_lag_ms
    if due_before_ms < 0:
        return False
    oldest = parse_header(next(dirty[0].iterate(dirty[0].base_offset)))
    return oldest.max_timestamp < due_before_ms


def _find_newest(
    segments: Sequence[Segment], outcomes: TransactionOutcomes, newest: dict[bytes, int], most: int
) -> Steps[int]:
    """Fill `newest` with the newest offset of each key; return the end of the last segment read."""
    for segment in segments:
        for batch in segment.iterate(segment.base_offset):
            yield
            header = parse_header(batch)
            if header.is_control:
                _end(header, batch, outcomes)
            elif not outcomes.is_aborted(header):
                records = yield from _readable(batch, most)
                newest.update((record.key, record.offset) for record in records or () if record.key is not None)
        if len(newest) >= _MAX_KEYS:
            break
    return segment.next_offset


def _end(header: BatchHeader, batch: bytes, outcomes: TransactionOutcomes) -> tuple[bool, AbortedIndexEntry | None]:
    marker = next((parse_end_txn_marker(record) for record in iter_records(batch)), None)
    if marker is None:  # emptied by an earlier run, or another kind of control record
        return header.record_count > 0, None
    return outcomes.end(header, commit=marker.commit)


def _readable(batch: bytes, most: int) -> Steps[list[Record] | None]:
    """Return the records of a batch; None if the broker cannot decompress them."""
    try:
        return (yield from records_of(batch, most))
    except UnsupportedCompressionError:
        return None


def _groups(segments: Sequence[Segment], segment_bytes: int) -> list[list[Segment]]:
    """Group neighbouring segments that fit into one segment together."""
    groups: list[list[Segment]] = []
    size = 0
    for segment in segments:
        if groups and size + segment.size_bytes <= segment_bytes:
            groups[-1].append(segment)
            size += segment.size_bytes
        else:
            groups.append([segment])
            size = segment.size_bytes
    return groups


class _Run:
    """Decides which records of each batch to keep, in one run over a log from its beginning."""

    def __init__(
        self,
        config: LogConfig,
        now_ms: int,
        newest: Mapping[bytes, int],
        producers: Mapping[int, ProducerEntry],
        outcomes: TransactionOutcomes,
    ) -> None:
        self._now_ms = now_ms
        self._horizon_ms = now_ms + config.delete_retention_ms
        self._most = config.max_decompressed_message_bytes
        self._newest = newest
        self._producers = producers
        self._outcomes = outcomes
        self._has_opaque_batch = False

    def clean(self, originals: Sequence[Segment], cleaned: Segment) -> Iterator[None]:
        """Write the kept part of `originals` to `cleaned`."""
        end = originals[-1].next_offset
        for segment in originals:
            for batch in segment.iterate(segment.base_offset):
                yield
                header = parse_header(batch)
                is_control = header.is_control
                kept = yield from self._marker(header, batch, cleaned) if is_control else self._data(header, batch)
                if kept is None and self._is_last_of_producer(header):
                    kept = yield from rebuild_batch(header, (), delete_horizon_ms=None)
                elif kept is None and header.last_offset + 1 == end:
                    kept = yield from rebuild_batch(header._replace(**_WITHOUT_PRODUCER), (), delete_horizon_ms=None)
                if kept is not None:
                    timestamp = parse_header(kept).max_timestamp
                    cleaned.append([(kept, header.last_offset + 1, timestamp)])

    def _marker(self, header: BatchHeader, batch: bytes, cleaned: Segment) -> Steps[bytes | None]:
        is_needed, aborted = _end(header, batch, self._outcomes)
        if aborted is not None:
            cleaned.aborted.add(aborted)
        if is_needed:
            return batch
        if header.record_count == 0 or self._is_past_horizon(header):
            return None
        if header.delete_horizon_ms is not None:
            return batch
        return (yield from rebuild_batch(header, list(iter_records(batch)), delete_horizon_ms=self._horizon_ms))

    def _data(self, header: BatchHeader, batch: bytes) -> Steps[bytes | None]:
        if self._outcomes.is_aborted(header):
            return None
        records = yield from _readable(batch, self._most)
        if records is None:
            self._has_opaque_batch = True
            return batch
        kept = [record for record in records if self._is_kept(record, header)]
        if not kept:
            return None
        has_tombstone = any(record.value is None for record in kept)
        if has_tombstone and header.delete_horizon_ms is None:
            return (yield from rebuild_batch(header, kept, delete_horizon_ms=self._horizon_ms))
        if len(kept) == len(records):
            return batch
        return (yield from rebuild_batch(header, kept, delete_horizon_ms=None))

    def _is_kept(self, record: Record, header: BatchHeader) -> bool:
        if record.key is None or record.offset < self._newest.get(record.key, -1):
            return False
        return record.value is not None or self._has_opaque_batch or not self._is_past_horizon(header)

    def _is_past_horizon(self, header: BatchHeader) -> bool:
        """Return whether the time to live of a batch's tombstones or marker is over."""
        return header.delete_horizon_ms is not None and header.delete_horizon_ms <= self._now_ms

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        entry = self._producers.get(header.producer_id)
        if entry is None or not entry.batches or header.is_control:
            return False
        return entry.batches[-1].base_offset == header.base_offset
