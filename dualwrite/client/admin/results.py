"""The results of admin calls, as plain values with Kafka's names; times in milliseconds since 1970."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from dualwrite.client.records.record import TopicPartition
from dualwrite.config import MAX_TRANSACTION_TIMEOUT_MS
from dualwrite.errors import KafkaError


class TransactionState(StrEnum):
    """The states of a transactional id at its coordinator (KIP-664), by the names that brokers use."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


class TwoPhaseCommit(StrEnum):
    """How much of two-phase commit one broker supports (KIP-939)."""

    KEEPS_PREPARED = "keeps-prepared"
    """Everything."""
    STORED_PAIR = "stored-pair"
    """Everything except KeepPreparedTxn, which it refuses (KAFKA-20739)."""
    REFUSED = "refused"
    """`transaction.two.phase.commit.enable` is off, or this client has no right to TWO_PHASE_COMMIT (or to WRITE)."""
    NOT_OFFERED = "not-offered"
    """The broker is too old, or `unstable.api.versions.enable` is off."""


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """One transactional id, as ListTransactions shows it.

    `state` is a value of `TransactionState`, or a newer name that this package does not know.
    """

    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The state of a transactional id at its coordinator (DescribeTransactions).

    `transaction_start_time_ms` is None before the first transaction, and stays after a transaction's end.
    `topic_partitions` are those of the open transaction; while it ends, those without a marker yet.
    """

    transactional_id: str
    coordinator_id: int
    state: str
    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    transaction_start_time_ms: int | None
    topic_partitions: frozenset[TopicPartition]

    @property
    def has_timeout(self) -> bool:
        """False for a two-phase commit participant, whose transactions only their owner ends (KIP-939)."""
        return self.transaction_timeout_ms != MAX_TRANSACTION_TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """One producer that a partition remembers (DescribeProducers), with or without an open transaction.

    `coordinator_epoch` is None if the partition has no marker of it, `current_transaction_start_offset` if it has no
    open transaction there. `last_timestamp_ms` is that of its newest record or marker there.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int | None
    current_transaction_start_offset: int | None


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that is open on a partition and that no coordinator will ever end.

    `transactional_id` is None if no coordinator knows the producer. `last_timestamp_ms` is that of its newest record
    on this partition.
    """

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int | None
    start_offset: int
    last_timestamp_ms: int
    transactional_id: str | None


@dataclass(frozen=True, slots=True)
class TerminatedTransaction:
    """The terminated transaction that `force_terminate_transaction` found, and the id's present pair."""

    found: TransactionDescription
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """One living broker."""

    broker_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster as one of its brokers sees it."""

    cluster_id: str | None
    controller_id: int | None
    brokers: tuple[BrokerDescription, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """Whether this client can read a topic later, and whether its log keeps every record until retention.

    `is_readable` is None if the topic does not exist, or may not be seen. `cleanup_policy` is None if unknown;
    `why_not_known` then says why. `most_age_ms` is the greatest age of a record that the topic accepts
    (`message.timestamp.before.max.ms`), None if unlimited or unknown.
    """

    is_readable: bool | None = None
    cleanup_policy: str | None = None
    why_not_known: KafkaError | None = None
    most_age_ms: int | None = None
    is_writable: bool | None = None
    """Whether this client can write to the topic; None if not known."""

    @property
    def is_compacted(self) -> bool | None:
        """Whether the log cleaner removes records, those of aborted transactions first; None if not known."""
        return None if self.cleanup_policy is None else "compact" in self.cleanup_policy


@dataclass(frozen=True, slots=True)
class TopicIds:
    """The ids of topics by name. A topic that is deleted and created again has another id (KIP-516)."""

    cluster_id: str | None
    ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BrokerFeatures:
    """The (least, greatest) versions that one broker supports by API key, and its feature levels by feature name.

    `finalized_features` are those of the cluster as this broker knows them, at the epoch `finalized_features_epoch`
    (-1: it knows none).
    """

    broker_id: int
    api_versions: Mapping[int, tuple[int, int]]
    supported_features: Mapping[str, tuple[int, int]]
    finalized_features: Mapping[str, tuple[int, int]]
    finalized_features_epoch: int

    @property
    def transaction_version(self) -> int:
        """The `transaction.version` that the cluster has finalised, as this broker knows it; 0 if it knows none."""
        return self.finalized_features.get("transaction.version", (0, 0))[1]
