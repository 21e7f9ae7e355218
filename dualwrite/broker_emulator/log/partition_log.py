"""The log of one partition: what changes it, by clients, coordinators, elections and retention.

`readable_log.py` has its offsets and its reads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.log.acceptance import Expected, accept
from dualwrite.broker_emulator.log.log_config import CleanupPolicy, LogConfig
from dualwrite.broker_emulator.log.producer_state import (
    AppendedBatch,
    ProducerEntry,
    Rejection,
    after_marker,
    check_marker,
    is_open,
)
from dualwrite.broker_emulator.log.readable_log import ReadableLog
from dualwrite.broker_emulator.log.record_batch import (
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    CorruptRecordError,
    OldMagicError,
    RecordTooLargeError,
    build_end_txn_marker,
    build_single,
    checked_batch,
    parse_header,
    split_batches,
    stamp,
    with_append_time,
)
from dualwrite.broker_emulator.log.results import (
    NO_APPEND_TIME_MS,
    AppendResult,
    refused,
)
from dualwrite.broker_emulator.log.segments import StorageError, retained_from
from dualwrite.broker_emulator.log.validation import CheckedContents, check_batches
from dualwrite.broker_emulator.log.verification import VerificationGuard, Verifications
from dualwrite.broker_emulator.slices import Steps

logger = logging.getLogger(__name__)

HIGH_WATERMARK = -1
"""The offset that stands for the high watermark in DeleteRecords."""


class AppendOrigin(Enum):
    """The source of an append. For COORDINATOR (group, transaction), duplicates and sequences are not checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


_CLIENT: Final = AppendOrigin.CLIENT  # quick to read (see `error_codes.py`)


class PartitionLog(ReadableLog):
    """The log of one partition, shared by all of its replicas. Not thread-safe: use it in the emulator's loop."""

    def begin_leader_epoch(self, leader_epoch: int) -> None:
        """Start the term of a newly elected leader: new batches carry its epoch, and no verification is pending."""
        self.leader_epoch = leader_epoch
        self.leader_epoch_start_offset = self._log_end_offset
        self._verifications = Verifications()
        self._expected = Expected(self._producers, self._verifications, self._open_at_any_epoch)

    def truncate_to_high_watermark(self, now_ms: int) -> None:
        """Remove all unreplicated records, since a follower that becomes leader never had them.

        The state of producers and transactions is rebuilt from the remaining batches.
        """
        lost_from = self._high_watermark
        if lost_from == self._log_end_offset:
            return
        self._segments.truncate(lost_from)
        self._states.clear()
        self._states.replayed_ms = now_ms
        for batch in self._segments.iterate(self.log_start_offset):
            self._states.replay(parse_header(batch), batch, None)
        self._log_end_offset = lost_from
        self._flushed_offset = min(self._flushed_offset, lost_from)
        self._unstable.advance_high_watermark(lost_from)
        self._advance()

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether this producer has an open transaction, of exactly this epoch unless any epoch counts."""
        return is_open(self._producers.get(producer_id), producer_epoch, any_epoch=self._open_at_any_epoch)

    def fences_verification(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether an append of this epoch needs no verification, because a later epoch is known (KAFKA-19690).

        Kafka 3.9 asks the coordinator nevertheless.
        """
        entry = self._producers.get(producer_id)
        return entry is not None and producer_epoch < entry.producer_epoch and not self._open_at_any_epoch

    def begin_verification(
        self, producer_id: int, producer_epoch: int, base_sequence: int, *, supports_epoch_bump: bool
    ) -> VerificationGuard:
        """Start the verification of an append and return the guard that it has to present (KIP-890 part 1).

        `base_sequence` is -1 for offset commits. `supports_epoch_bump`: Produce v12+, TxnOffsetCommit v5+. If the
        transaction is already open, there is nothing to verify, and the sentinel is returned.
        """
        if self.has_open_transaction(producer_id, producer_epoch):
            return VerificationGuard.SENTINEL
        return self._verifications.begin(producer_id, producer_epoch, base_sequence, supports_epoch_bump)

    def append(
        self,
        records: bytes | memoryview,
        *,
        now_ms: int,
        guard: VerificationGuard | None = None,
        origin: AppendOrigin = _CLIENT,
        contents: CheckedContents | None = None,
    ) -> AppendResult:
        """Append the batches of one partition of one request: all of them or none.

        A transactional batch of any origin needs the guard of `begin_verification`, unless its transaction is already
        open here. `contents` is the result for the client's only batch, if it was already checked. Bad input gets an
        error in the result, never an exception: 2, 10, 32, 45, 47, 48, 87. A duplicate gets its original offset.
        """
        try:
            if contents is None:
                batches = split_batches(records)
            else:
                batches = [(contents.header, checked_batch(contents.header, records))]
        except OldMagicError as error:
            return refused(Rejection(ErrorCode.invalid_record, str(error)))
        except CorruptRecordError as error:
            return refused(Rejection(ErrorCode.corrupt_message, str(error)))
        if not batches:
            return refused(Rejection(ErrorCode.invalid_record, "a produce request carries at least one batch"))
        from_client = origin is _CLIENT
        rejection = check_batches(
            batches, self.config, contents, now_ms, (self.topic, self.partition), from_client=from_client
        )
        if rejection is not None:
            return self._reject(rejection)
        if not self._stamps_time:
            return self._append_batches(batches, now_ms, guard, from_client)
        batches = [with_append_time(header, batch, now_ms) for header, batch in batches]
        result = self._append_batches(batches, now_ms, guard, from_client)
        is_duplicate = result.log_append_time_ms >= 0
        is_appended = result.error is NO_ERROR and not is_duplicate
        return result._replace(log_append_time_ms=now_ms) if is_appended else result

    def append_own(self, key: bytes, value: bytes | None, *, now_ms: int) -> ErrorCode:
        """Append one record of a coordinator; return error 0, 10 or 56.

        It needs none of the checks of `append`, and skipping them speeds up coordinator requests.
        """
        next_offset = self._log_end_offset + 1
        batch = build_single(
            key, value, timestamp_ms=now_ms, base_offset=self._log_end_offset, leader_epoch=self.leader_epoch
        )
        size_bytes = len(batch)
        if size_bytes > self.config.max_message_bytes:
            return ErrorCode.message_too_large
        try:
            self._segments.append(((batch, next_offset, now_ms),), size_bytes)
        except StorageError as error:
            logger.error("%s", error)
            return ErrorCode.kafka_storage_error
        self._log_end_offset = next_offset
        self._storage.appended(self._segments.active, self._advance)
        return NO_ERROR

    def _append_batches(
        self,
        batches: list[tuple[BatchHeader, memoryview]],
        now_ms: int,
        guard: VerificationGuard | None,
        from_client: bool,
    ) -> AppendResult:
        accepted = accept(
            batches,
            self._expected,
            guard,
            base_offset=self._log_end_offset,
            now_ms=now_ms,
            from_client=from_client,
        )
        if isinstance(accepted, Rejection):
            return self._reject(accepted)
        if isinstance(accepted, AppendedBatch):
            return AppendResult(NO_ERROR, accepted.base_offset, accepted.timestamp, self._log_start_offset)
        if from_client:
            try:  # coordinators' appends skip this, so that transactions can always end
                self._storage.check_room()
            except StorageError as error:
                return self._reject(Rejection(ErrorCode.kafka_storage_error, str(error)))
        return self._store_accepted(batches, accepted)

    def _reject(self, rejection: Rejection) -> AppendResult:
        """Return the result of a refused append: with the log start offset, unless the batch itself is bad."""
        error, message, bad_records = rejection
        start = -1 if error in _WITHOUT_LOG_START else self._log_start_offset
        return AppendResult(error, log_start_offset=start, error_message=message, bad_records=bad_records)

    def _store_accepted(
        self, batches: list[tuple[BatchHeader, memoryview]], entries: dict[int, ProducerEntry]
    ) -> AppendResult:
        base_offset = self._log_end_offset
        try:
            self._store(batches)
        except StorageError as error:
            return refused(Rejection(ErrorCode.kafka_storage_error, str(error)))
        traffic = self.traffic
        for header, _ in batches:
            traffic.messages_in += header.record_count
            traffic.bytes_in += header.size_bytes
            if header.attributes & TRANSACTIONAL:
                self._verifications.end(header.producer_id)
        for producer_id, entry in entries.items():
            if entry.has_open_transaction:
                self._unstable.begin(producer_id, entry.current_txn_first_offset)
            self._producers[producer_id] = entry
        self._storage.appended(self._segments.active, self._advance)
        return AppendResult(NO_ERROR, base_offset, NO_APPEND_TIME_MS, self._log_start_offset)

    def _store(self, batches: Sequence[tuple[BatchHeader, bytes | memoryview]]) -> None:
        """Write batches at the end of the log: all of them or none. Raises StorageError."""
        next_offset, size_bytes = self._log_end_offset, 0
        stored = []
        for header, batch in batches:
            data = stamp(batch, header, base_offset=next_offset, leader_epoch=self.leader_epoch)
            next_offset += header.last_offset_delta + 1
            size_bytes += len(data)
            stored.append((data, next_offset, header.max_timestamp))
        self._segments.append(stored, size_bytes)
        self._log_end_offset = next_offset

    def append_marker(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
        now_ms: int,
    ) -> ErrorCode:
        """End a producer's transaction on this partition; return WriteTxnMarkers' error for it: 0, 47, 52 or 56.

        A marker with a negative producer id belongs to no producer: it is written without further effect.
        """
        entry = self._producers.get(producer_id)
        is_of_producer = producer_id > NO_PRODUCER_ID
        rejection = check_marker(entry, producer_epoch, coordinator_epoch, transaction_version)
        if rejection is not None and is_of_producer:
            return rejection.error
        marker_offset = self._log_end_offset
        marker = build_end_txn_marker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            commit=commit,
            timestamp_ms=now_ms,
            base_offset=marker_offset,
            leader_epoch=self.leader_epoch,
        )
        try:
            self._segments.append(((marker, marker_offset + 1, now_ms),), len(marker))
        except StorageError as error:
            logger.error("no marker was written: %s", error)
            return ErrorCode.kafka_storage_error
        self._log_end_offset = marker_offset + 1
        if is_of_producer:
            self._verifications.end_by_marker(producer_id, producer_epoch)
            self._producers[producer_id] = after_marker(entry, producer_epoch, coordinator_epoch, now_ms)
        if entry is not None and entry.has_open_transaction:
            self._states.complete(producer_id, marker_offset, commit, self._segments.active)
        self._storage.appended(self._segments.active, self._advance)
        return NO_ERROR

    def configure(self, config: LogConfig, *, producer_id_expiration_ms: int | None = None) -> None:
        """Apply new settings from now on."""
        self.config = config
        if producer_id_expiration_ms is not None:
            self._producer_id_expiration_ms = producer_id_expiration_ms
        self._stamps_time = config.is_log_append_time
        self._segments.segment_bytes = config.segment_bytes
        self._segments.segment_ms = config.longest_segment_ms

    def delete_records(self, before_offset: int) -> Steps[ErrorCode]:
        """Delete the records below `before_offset` (HIGH_WATERMARK: all replicated records), as DeleteRecords does.

        They are gone after the first step; the following steps discard their segments.

        Returns error 1 beyond the high watermark, 44 if the topic is compacted only, 56 if storage fails.
        """
        if CleanupPolicy.DELETE not in self.config.cleanup_policy:
            return ErrorCode.policy_violation
        offset = self._high_watermark if before_offset == HIGH_WATERMARK else before_offset
        if not 0 <= offset <= self._high_watermark:
            return ErrorCode.offset_out_of_range
        return (yield from self._move_start(offset)) if offset > self.log_start_offset else NO_ERROR

    def _move_start(self, offset: int) -> Steps[ErrorCode]:
        try:
            removed = self._segments.move_start(offset)
        except (StorageError, OSError) as error:
            logger.error("%s-%d keeps its old records: %s", self.topic, self.partition, error)
            return ErrorCode.kafka_storage_error
        self._log_start_offset = offset
        self._least_stable_offset = offset if self._open_at_any_epoch else self._start_of_batch(offset)
        self._advance()
        try:
            yield from self._storage.discard(removed)
        except OSError as error:
            logger.error("%s-%d has deleted records, and keeps their files: %s", self.topic, self.partition, error)
        return NO_ERROR

    def _start_of_batch(self, offset: int) -> int:
        batch = next(self._segments.iterate(offset), None)
        return offset if batch is None else parse_header(batch).base_offset

    def delete_old_segments(self, now_ms: int) -> Steps[None]:
        """Delete segments by age or size (`retention.ms`, `retention.bytes`): in the first step, then their files.

        Deletes only segments that every consumer could read: all of their records are replicated and decided. In a
        compacted topic, Kafka's cleaner does this, too, and it leaves alone a log that it could not compact.
        """
        is_left_alone = self.config.is_compacted and self._is_uncleanable
        if is_left_alone or CleanupPolicy.DELETE not in self.config.cleanup_policy:
            return
        start = retained_from(
            [*self._segments.complete, self._segments.active], self.config, now_ms, self._last_stable_offset
        )
        if start > self.log_start_offset:
            if start == self._log_end_offset:
                self._segments.roll()
            yield from self._move_start(start)

    def compact(self, now_ms: int) -> Iterator[None]:
        """Keep only the newest record of each key (log compaction), in steps; a step takes some milliseconds.

        The log may be used between the steps. Records that are replicated, decided and not in the newest segment are
        compacted once enough of them are dirty. As in Kafka, a log with an unreadable batch or a record that is too
        large is not compacted until its broker has restarted. Raises StorageError.
        """
        if not self.config.is_compacted or self._is_uncleanable:
            return
        try:
            yield from self._cleaner.clean(self.config, now_ms, self._last_stable_offset, self._producers)
        except (CorruptRecordError, RecordTooLargeError) as error:
            self._is_uncleanable = True
            logger.warning("%s-%d is not compacted until its broker restarts: %s", self.topic, self.partition, error)

    def close(self) -> None:
        """Persist everything for the next start; no append may follow. Raises StorageError."""
        self._storage.close(self._segments.active)

    def destroy(self) -> Steps[None]:
        """Delete the log of a deleted topic. Its name is free after the first step."""
        self.on_release = []
        yield from self._storage.destroy(self._segments.forget())

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers idle for producer.id.expiration.ms, except those with an open transaction (KAFKA-9144)."""
        expired_before_ms = now_ms - self._producer_id_expiration_ms
        for producer_id, entry in list(self._producers.items()):
            if not entry.has_open_transaction and entry.last_append_ms <= expired_before_ms:
                del self._producers[producer_id]
        self._verifications.expire(now_ms, self._producer_id_expiration_ms)


_WITHOUT_LOG_START = frozenset({ErrorCode.corrupt_message, ErrorCode.kafka_storage_error, ErrorCode.message_too_large})
