"""What the log of one partition shows: its offsets, reads of both isolation levels, its epochs and producers.

The last stable offset is computed by `last_stable_offset.UnstableTransactions` and set in `ReadableLog._advance`.
`partition_log.py` has the changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.log.acceptance import Expected
from dualwrite.broker_emulator.log.cleaner import Cleaner
from dualwrite.broker_emulator.log.last_stable_offset import AbortedTransaction
from dualwrite.broker_emulator.log.log_config import LogConfig
from dualwrite.broker_emulator.log.memory_segment import MemoryBudget, MemoryStorage
from dualwrite.broker_emulator.log.offset_lookup import (
    UNKNOWN_EPOCH,
    EpochEnd,
    EpochOfBatch,
    end_of_epoch,
    offset_for_timestamp,
)
from dualwrite.broker_emulator.log.producer_state import ProducerStates
from dualwrite.broker_emulator.log.record_batch import parse_header
from dualwrite.broker_emulator.log.results import LogTraffic, ProducerDescription, ReadResult
from dualwrite.broker_emulator.log.segments import LogStorage, Segments, StorageError
from dualwrite.broker_emulator.log.verification import Verifications
from dualwrite.broker_emulator.slices import Steps

logger = logging.getLogger(__name__)

_NO_LIMIT = 1 << 62


class ReadableLog:
    """The log of one partition, as far as it is read. Not thread-safe: use it in the emulator's loop.

    `leader_epoch` is that of the last election and stamped on every batch appended afterwards.
    `on_advance` callbacks run after the high watermark or the last stable offset moved, when the log is consistent
    again; they must not raise. `on_release` callbacks run once, when the high watermark is no longer held.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        leader_epoch: int = 0,
        producer_id_expiration_ms: int = 86_400_000,
        config: LogConfig | None = None,
        storage: LogStorage | None = None,
        now_ms: int = 0,
        open_for_one_epoch: bool = True,
    ) -> None:
        """Load the log from `storage`.

        `open_for_one_epoch`: a transaction is open only for its own epoch (KAFKA-18575), a past epoch is not verified
        (KAFKA-19690), and a deletion into an open transaction holds the last stable offset back to the start of a batch
        (observed: 4.4.0, but not 3.9.2).
        """
        self.topic = topic
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.on_advance: list[Callable[[], None]] = []
        self.on_release: list[Callable[[], None]] = []
        self.traffic = LogTraffic()
        self.config = config or LogConfig()
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._open_at_any_epoch = not open_for_one_epoch
        self._states = ProducerStates(now_ms)
        self._producers = self._states.entries
        self._unstable = self._states.unstable
        self._stamps_time = self.config.is_log_append_time
        self._verifications = Verifications()
        self._expected = Expected(self._producers, self._verifications, self._open_at_any_epoch)
        self._storage = storage or MemoryStorage(MemoryBudget(_NO_LIMIT))
        self._segments = Segments(
            self._storage, self._states, self.config.segment_bytes, self.config.longest_segment_ms
        )
        self._cleaner = Cleaner(self._segments, self._storage)
        self.restarted()
        self._log_start_offset = self._segments.log_start_offset
        self._least_stable_offset = self._log_start_offset
        self._log_end_offset = self._segments.log_end_offset
        self._flushed_offset = self._log_end_offset
        self._high_watermark = self._log_end_offset
        self._last_stable_offset = self._states.stable_offset(self._log_end_offset)
        self._high_watermark_held = False
        self.leader_epoch_start_offset = self._log_end_offset

    def restarted(self) -> None:
        """Forget as Kafka does at a start: from now on a retry is a duplicate only if it is a producer's last batch."""
        self._states.keep_newest_batches()
        self._is_uncleanable = False

    @property
    def log_start_offset(self) -> int:
        """Offset of the first record kept."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""
        return self._log_end_offset

    @property
    def high_watermark(self) -> int:
        """The offset below which records are replicated and visible to read_uncommitted consumers."""
        return self._high_watermark

    @property
    def is_replicated(self) -> bool:
        """Whether everything is below the high watermark."""
        return self._high_watermark == self._log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset below which all transactions are decided, and records visible to read_committed consumers."""
        return self._last_stable_offset

    def hold_high_watermark(self) -> None:
        """Keep the high watermark in place, as if the followers had stopped fetching."""
        self._high_watermark_held = True

    def release_high_watermark(self, up_to: int | None = None) -> None:
        """Let the high watermark follow the log end again, or advance to offset `up_to` and stay there.

        Raises ValueError if `up_to` is below the high watermark, beyond the log end or inside a batch, since
        followers fetch whole batches.
        """
        if up_to is None:
            self._high_watermark_held = False
        self._advance(replicated_to=None if up_to is None else self._replicable(up_to))
        if not self._high_watermark_held:
            waiting, self.on_release = self.on_release, []
            for callback in waiting:
                callback()

    def _replicable(self, offset: int) -> int:
        if not self._high_watermark <= offset <= self._log_end_offset:
            raise ValueError(f"{offset} is not between {self._high_watermark} and {self._log_end_offset}")
        batch = next(self._segments.iterate(offset), None)
        if batch is not None and parse_header(batch).base_offset != offset:
            raise ValueError(f"{offset} is inside a batch")
        return offset

    @property
    def is_high_watermark_held(self) -> bool:
        """Whether the high watermark is held in place."""
        return self._high_watermark_held

    def _advance(self, flushed_to: int | None = None, *, replicated_to: int | None = None) -> None:
        """Set the high watermark and the last stable offset; `replicated_to` None: as far as flushed and not held.

        Storage has flushed all records below `flushed_to`, so they may be acknowledged and visible from now on.
        """
        if flushed_to is not None:
            self._flushed_offset = flushed_to
        if replicated_to is None:
            replicated_to = self._high_watermark if self._high_watermark_held else self._flushed_offset
        stable = self._unstable.advance_high_watermark(replicated_to)
        if stable < self._log_start_offset:
            stable = self._least_stable_offset
        has_moved = replicated_to != self._high_watermark or stable != self._last_stable_offset
        self._high_watermark, self._last_stable_offset = replicated_to, stable
        if has_moved and self.on_advance:
            for callback in tuple(self.on_advance):
                callback()

    def read(self, fetch_offset: int, *, max_bytes: int, read_committed: bool, at_least_one: bool) -> ReadResult:
        """Read whole batches from the one with `fetch_offset`, up to `max_bytes`.

        With `at_least_one` the first batch is returned even if it alone is larger than `max_bytes`. Between the high
        watermark (or last stable offset) and the log end the result is empty; below the log start and beyond the log
        end, the error is 1.
        """
        if not self._log_start_offset <= fetch_offset <= self._log_end_offset:
            return ReadResult(ErrorCode.offset_out_of_range, b"", None, -1, -1, -1)
        limit = self._last_stable_offset if read_committed else self._high_watermark
        try:
            records, next_offset = self._segments.read(fetch_offset, limit, max_bytes, at_least_one)
        except StorageError as error:
            logger.error("%s", error)
            return ReadResult(ErrorCode.kafka_storage_error, b"", None, -1, -1, -1)
        aborted = None
        if read_committed:
            aborted = self.aborted_transactions(fetch_offset, next_offset) if records else []
        return ReadResult(
            NO_ERROR, records, aborted, self._high_watermark, self._last_stable_offset, self._log_start_offset
        )

    def aborted_transactions(self, fetch_offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in [fetch_offset, upper_bound), in marker order."""
        entries = self._segments.aborted(fetch_offset, upper_bound)
        return [AbortedTransaction(entry.producer_id, entry.first_offset) for entry in entries]

    def offset_for_timestamp(self, timestamp_ms: int, *, read_committed: bool) -> Steps[tuple[int, int]]:
        """Return (offset, timestamp) of the first record of `timestamp_ms` or later; (-1, -1) if none (ListOffsets).

        -1 means the latest offset, -2 the earliest, -3 the first record with the largest timestamp (KIP-734), which in
        Kafka may be a record removed by DeleteRecords, while its segment exists. If the broker cannot decompress the
        batch, the result for a time is the batch's first record, so that no record is missed, and for -3 its last
        record, as before KAFKA-16310. Raises RecordTooLargeError (87 INVALID_RECORD) if an earlier record of the
        compressed batch is larger than the current `max.decompressed.message.bytes`, as 4.4.0 does.
        """
        limit = self._last_stable_offset if read_committed else self._high_watermark
        return offset_for_timestamp(
            self._segments,
            timestamp_ms,
            start_offset=self.log_start_offset,
            limit=limit,
            most=self.config.max_decompressed_message_bytes,
        )

    def end_of_epoch(self, leader_epoch: int) -> EpochEnd:
        """Return the end of a leader epoch's records (OffsetForLeaderEpoch). Raises StorageError."""
        if leader_epoch == self.leader_epoch:
            return EpochEnd(leader_epoch, self._log_end_offset)
        if not 0 <= leader_epoch < self.leader_epoch:
            return UNKNOWN_EPOCH
        return end_of_epoch(
            self._epoch_at,
            leader_epoch,
            start_offset=self._log_start_offset,
            current_start_offset=self.leader_epoch_start_offset,
        )

    def leader_epoch_at(self, offset: int) -> int:
        """Return the epoch of the leader that appended the first record at `offset` or above.

        Above the last record, this is the current leader's epoch, which begins there. Raises StorageError.
        """
        batch = None if offset >= self.leader_epoch_start_offset else self._epoch_at(offset)
        return self.leader_epoch if batch is None else batch.leader_epoch

    def _epoch_at(self, offset: int) -> EpochOfBatch | None:
        batch, next_offset = self._segments.read(offset, self._log_end_offset, 1, at_least_one=True)
        if not batch:
            return None
        header = parse_header(batch)
        return EpochOfBatch(header.base_offset, next_offset, header.leader_epoch)

    def producers(self) -> list[ProducerDescription]:
        """Return every known producer, with or without an open transaction (DescribeProducers, KIP-664)."""
        return [
            ProducerDescription(
                producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
            for producer_id, entry in self._producers.items()
        ]

    def batches(self, from_offset: int = 0) -> Iterator[bytes]:
        """Yield every stored batch from the one with `from_offset`, including control batches, for replay."""
        return self._segments.iterate(max(from_offset, self.log_start_offset))

    def location(self, offset: int) -> str:
        """Return the location of the batch with `offset`, for messages."""
        return self._segments.location(offset)

    @property
    def oldest_transaction_append_ms(self) -> int | None:
        """When the earliest open transaction got its last batch; None if none is open."""
        producer_id = self._unstable.first_open_producer_id()
        return None if producer_id is None else self._producers[producer_id].last_append_ms

    @property
    def size_bytes(self) -> int:
        """Bytes of all stored batches."""
        return self._segments.size_bytes
