"""One partition in memory: append, markers, high watermark and last stable offset, reads of both isolation levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.verification import VerificationGuard


class AppendOrigin(Enum):
    """Who appends. COORDINATOR (group and transaction coordinators) skips the checks of sequences (3.1)."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class AppendResult(NamedTuple):
    """What Produce answers for one partition."""

    error: ErrorCode
    base_offset: int = -1
    """Offset of the first record; the original one for a duplicate; -1 on errors."""
    log_append_time_ms: int = -1
    """Always -1: topics here keep the client's timestamps (message.timestamp.type=CreateTime)."""
    log_start_offset: int = -1
    error_message: str | None = None


class AbortedTransaction(NamedTuple):
    """One row of `abortedTransactions` in a Fetch answer."""

    producer_id: int
    first_offset: int


class ReadResult(NamedTuple):
    """What Fetch answers for one partition; the three offsets are -1 when out of range, as Kafka's are."""

    error: ErrorCode
    records: bytes
    aborted: list[AbortedTransaction] | None
    """None for read_uncommitted; for read_committed a list, perhaps empty, in order of the markers."""
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class ProducerDescription(NamedTuple):
    """One producer of DescribeProducers (KIP-664); -1 stands for none in every field."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class PartitionLog:
    """The log of one partition on its only replica. Not thread-safe: use it in the emulator's loop.

    `leader_epoch` is set by the cluster at each election and stamped on every batch appended afterwards.
    `on_advance` callbacks run after the high watermark or the last stable offset moved.
    """

    leader_epoch: int
    on_advance: list[Callable[[], None]]

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        leader_epoch: int = 0,
        producer_id_expiration_ms: int = 86_400_000,
        message_max_bytes: int = 1048588,
    ) -> None:
        raise NotImplementedError

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def last_stable_offset(self) -> int: ...

    def hold_high_watermark(self) -> None:
        """Keep the high watermark where it is, as if followers had stopped fetching."""

    def release_high_watermark(self) -> None:
        """Let the high watermark follow the log end again."""

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether this producer has a transaction open here with this very epoch (KAFKA-18575, KAFKA-18654)."""
        raise NotImplementedError

    def begin_verification(
        self, producer_id: int, producer_epoch: int, base_sequence: int, *, supports_epoch_bump: bool
    ) -> VerificationGuard:
        """Note that an append is being verified, and give the guard it has to present (3.2).

        `base_sequence` is -1 for offset commits. `supports_epoch_bump`: Produce v12+, TxnOffsetCommit v5+.
        """
        raise NotImplementedError

    def append(
        self,
        records: bytes | memoryview,
        *,
        now_ms: int,
        guard: VerificationGuard | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_version: int,
    ) -> AppendResult:
        """Append the batches of one partition of one request: all of them or none.

        A transactional batch needs, unless its transaction is already open here, the guard of `begin_verification`,
        whatever its origin. Bad input is answered with its error code, never raised.
        """
        raise NotImplementedError

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
        """End a producer's transaction here; the per-partition rows of WriteTxnMarkers (2.7)."""
        raise NotImplementedError

    def read(self, fetch_offset: int, *, max_bytes: int, read_committed: bool, at_least_one: bool) -> ReadResult:
        """Whole batches from the one that holds `fetch_offset`, up to `max_bytes` (2.12, 3.5).

        With `at_least_one` the first batch is given even where it alone is larger than `max_bytes`.
        """
        raise NotImplementedError

    def offset_for_timestamp(self, timestamp_ms: int, *, read_committed: bool) -> tuple[int, int]:
        """(offset, timestamp) as ListOffsets answers; (-1, -1) for none. -1 latest, -2 earliest, -3 max timestamp."""
        raise NotImplementedError

    def producers(self) -> list[ProducerDescription]:
        """Every producer known here, with or without an open transaction (2.8)."""
        raise NotImplementedError

    def batches(self, from_offset: int = 0) -> Iterator[bytes]:
        """Every stored batch from the one that holds `from_offset`, for replay; control batches included."""
        raise NotImplementedError

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers idle for producer.id.expiration.ms, never one with an open transaction (KAFKA-9144)."""
