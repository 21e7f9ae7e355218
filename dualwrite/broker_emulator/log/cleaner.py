"""Compaction: of each key only the newest record stays (`cleanup.policy=compact`).

What belongs to a transaction goes by its outcome (KIP-98):

* Records of an aborted transaction are removed, whatever their keys.
* A marker stays while its transaction has records or batches in front of it. Then it gets a time to live of
  `delete.retention.ms`, so that a consumer that is reading meets it, and goes with the first run after that.
* Tombstones get the same time to live when they are first met (KIP-534).

A batch that loses all its records goes, except, empty, the last one of a producer (duplicates of it must be
recognised) and the last one of a segment (so that the segments follow each other without gaps). Batches in a
compression that only clients know stay whole, and while there is one, tombstones stay as well, because nobody can
say whether it has an older record of the key.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import takewhile
from operator import attrgetter

from dualwrite.broker_emulator.log.aborted_index import AbortedIndexEntry
from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.producer_state import ProducerEntry
from dualwrite.broker_emulator.log.record_batch import (
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    Record,
    UnsupportedCompressionError,
    iter_records,
    parse_end_txn_marker,
    parse_header,
    rebuild_batch,
)
from dualwrite.broker_emulator.log.segment import LogStorage, Segment, StorageError
from dualwrite.broker_emulator.log.segments import Segments

_BATCHES_PER_STEP = 200
_OF_NOBODY = {"attributes": 0, "producer_id": NO_PRODUCER_ID, "producer_epoch": -1, "base_sequence": NO_SEQUENCE}
_MAX_KEYS = 1_000_000
"""How many keys one run looks at; what has more is compacted in several."""


class TransactionOutcomes:
    """The transactions that a run has met the first batches of, and how they ended."""

    __slots__ = ("_aborted", "_committed", "_observed", "_to_come")

    def __init__(self, aborted: Sequence[AbortedIndexEntry]) -> None:
        self._to_come = sorted(aborted, key=attrgetter("first_offset"), reverse=True)
        self._aborted: dict[int, AbortedIndexEntry] = {}
        self._observed: set[int] = set()  # producers whose aborted transaction had a batch in this run
        self._committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a data batch belongs to a transaction that was aborted."""
        self._begin(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._observed.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def end(self, header: BatchHeader, *, commit: bool) -> tuple[bool, AbortedIndexEntry | None]:
        """A marker was met: whether its transaction has batches left, and if it was aborted, its entry of the index."""
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
        while self._to_come and self._to_come[-1].first_offset <= offset:
            entry = self._to_come.pop()
            self._aborted[entry.producer_id] = entry


class Cleaner:
    """Compacts one log."""

    __slots__ = ("_clean_until", "_segments", "_storage")

    def __init__(self, segments: Segments, storage: LogStorage) -> None:
        self._segments = segments
        self._storage = storage
        self._clean_until = 0  # not kept over a restart: the first run then looks at everything once more

    def clean(
        self, config: LogConfig, now_ms: int, limit_offset: int, producers: Mapping[int, ProducerEntry]
    ) -> Iterator[None]:
        """One run, in steps, if it is worth one. Raises StorageError."""
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
                raise  # else records were deleted meanwhile, and their segments with them

    def _clean(
        self,
        config: LogConfig,
        now_ms: int,
        producers: Mapping[int, ProducerEntry],
        cleanable: Sequence[Segment],
        dirty: Sequence[Segment],
    ) -> Iterator[None]:
        newest: dict[bytes, int] = {}
        end = yield from _find_newest(dirty, self._outcomes(dirty), newest)
        cleanable = [segment for segment in cleanable if segment.next_offset <= end]
        run = _Run(config, now_ms, newest, producers, self._outcomes(cleanable))
        for group in _groups(cleanable, config.segment_bytes):
            cleaned = self._storage.new_cleaned_segment(group[0].base_offset, group[0].stable_offset)
            yield from run.clean(group, cleaned)
            if not self._segments.holds(group):  # as above
                self._storage.discard([cleaned])
                return
            self._segments.replace(group, cleaned)
        self._clean_until = end

    def _outcomes(self, segments: Sequence[Segment]) -> TransactionOutcomes:
        return TransactionOutcomes(self._segments.aborted(segments[0].base_offset, segments[-1].next_offset))

    def _cleanable(self, config: LogConfig, now_ms: int, limit_offset: int) -> list[Segment]:
        """Complete segments of decided records, old enough."""
        lag_ms = config.min_compaction_lag_ms

        def may_be_cleaned(segment: Segment) -> bool:
            is_old = lag_ms == 0 or segment.max_timestamp <= now_ms - lag_ms
            return is_old and segment.next_offset <= limit_offset

        return list(takewhile(may_be_cleaned, self._segments.complete))


def _is_overdue(dirty: Sequence[Segment], config: LogConfig, now_ms: int) -> bool:
    """Whether the oldest record that was never compacted must not wait any longer (KIP-354)."""
    due_before_ms = now_ms - config.max_compaction_lag_ms
    if due_before_ms < 0:
        return False
    oldest = parse_header(next(dirty[0].iterate(dirty[0].base_offset)))
    return oldest.max_timestamp < due_before_ms


def _find_newest(
    segments: Sequence[Segment], outcomes: TransactionOutcomes, newest: dict[bytes, int]
) -> Generator[None, None, int]:
    """Note the newest offset of each key; gives the end of the last segment looked at."""
    for segment in segments:
        for number, batch in enumerate(segment.iterate(segment.base_offset)):
            if number % _BATCHES_PER_STEP == 0:
                yield
            header = parse_header(batch)
            if header.is_control:
                _end(header, batch, outcomes)
            elif not outcomes.is_aborted(header):
                newest.update((record.key, record.offset) for record in _readable(batch) if record.key is not None)
        if len(newest) >= _MAX_KEYS:
            break
    return segment.next_offset


def _end(header: BatchHeader, batch: bytes, outcomes: TransactionOutcomes) -> tuple[bool, AbortedIndexEntry | None]:
    marker = next((parse_end_txn_marker(record) for record in iter_records(batch)), None)
    if marker is None:  # emptied by an earlier run, or another kind of control record
        return header.record_count > 0, None
    return outcomes.end(header, commit=marker.commit)


def _readable(batch: bytes) -> Iterator[Record]:
    """The records of a batch; none where only clients can decompress them."""
    try:
        yield from iter_records(batch)
    except UnsupportedCompressionError:
        return


def _groups(segments: Sequence[Segment], segment_bytes: int) -> list[list[Segment]]:
    """Neighbours that fit into one segment together."""
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
    """What of each batch stays, in one run over a log from its beginning."""

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
        self._newest = newest
        self._producers = producers
        self._outcomes = outcomes
        self._has_opaque_batch = False

    def clean(self, originals: Sequence[Segment], cleaned: Segment) -> Iterator[None]:
        """Write what stays of `originals` to `cleaned`."""
        end = originals[-1].next_offset
        for segment in originals:
            for number, batch in enumerate(segment.iterate(segment.base_offset)):
                if number % _BATCHES_PER_STEP == 0:
                    yield
                header = parse_header(batch)
                kept = self._marker(header, batch, cleaned) if header.is_control else self._data(header, batch)
                if kept is None and self._is_last_of_producer(header):
                    kept = rebuild_batch(header, (), delete_horizon_ms=None)
                elif kept is None and header.last_offset + 1 == end:
                    kept = rebuild_batch(header._replace(**_OF_NOBODY), (), delete_horizon_ms=None)
                if kept is not None:
                    timestamp = parse_header(kept).max_timestamp
                    cleaned.append([(kept, header.last_offset + 1, timestamp)])

    def _marker(self, header: BatchHeader, batch: bytes, cleaned: Segment) -> bytes | None:
        is_needed, aborted = _end(header, batch, self._outcomes)
        if aborted is not None:
            cleaned.aborted.add(aborted)
        if is_needed:
            return batch
        if header.record_count == 0 or self._is_over(header):
            return None
        if header.delete_horizon_ms is not None:
            return batch
        return rebuild_batch(header, list(iter_records(batch)), delete_horizon_ms=self._horizon_ms)

    def _data(self, header: BatchHeader, batch: bytes) -> bytes | None:
        if self._outcomes.is_aborted(header):
            return None
        try:
            records = list(iter_records(batch))
        except UnsupportedCompressionError:
            self._has_opaque_batch = True
            return batch
        kept = [record for record in records if self._stays(record, header)]
        if not kept:
            return None
        has_tombstone = any(record.value is None for record in kept)
        if has_tombstone and header.delete_horizon_ms is None:
            return rebuild_batch(header, kept, delete_horizon_ms=self._horizon_ms)
        return batch if len(kept) == len(records) else rebuild_batch(header, kept, delete_horizon_ms=None)

    def _stays(self, record: Record, header: BatchHeader) -> bool:
        if record.key is None or record.offset < self._newest.get(record.key, -1):
            return False
        return record.value is not None or self._has_opaque_batch or not self._is_over(header)

    def _is_over(self, header: BatchHeader) -> bool:
        """Whether the tombstones or the marker of a batch have lived long enough."""
        return header.delete_horizon_ms is not None and header.delete_horizon_ms <= self._now_ms

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        entry = self._producers.get(header.producer_id)
        if entry is None or not entry.batches or header.is_control:
            return False
        return entry.batches[-1].base_offset == header.base_offset
