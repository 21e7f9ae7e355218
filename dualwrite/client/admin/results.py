"""What administration answers, as plain values with Kafka's names; times in milliseconds since 1970."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from dualwrite.client.records.record import TopicPartition
from dualwrite.config import MAX_TRANSACTION_TIMEOUT_MS


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
    """What one broker makes of a two-phase commit (KIP-939)."""

    KEEPS_PREPARED = "keeps-prepared"
    """All of it."""
    STORED_PAIR = "stored-pair"
    """Without KeepPreparedTxn, which is refused (KAFKA-20739)."""
    REFUSED = "refused"
    """`transaction.two.phase.commit.enable` is off, or this client has no right to TWO_PHASE_COMMIT (or to WRITE)."""
    NOT_OFFERED = "not-offered"
    """The broker is older, or hides it (`unstable.api.versions.enable`)."""


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """One transactional id, as ListTransactions shows it.

    `state` is one of `TransactionState`, or a name that is newer than this package.
    """

    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """What the coordinator of a transactional id knows of it (DescribeTransactions).

    `transaction_start_time_ms` is None before the first transaction; after its end it stays. `topic_partitions` are
    those of the open transaction, and while it is being ended those that have no marker yet.
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
        """False for a participant of a two-phase commit, whose transactions only their owner ends (KIP-939)."""
        return self.transaction_timeout_ms != MAX_TRANSACTION_TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """One producer that a partition remembers (DescribeProducers), with or without an open transaction.

    None for `coordinator_epoch`: no marker of it was seen. None for `current_transaction_start_offset`: it has no
    open transaction here. `last_timestamp_ms` is that of its newest record or marker here.
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

    `transactional_id` is None where no coordinator knows the producer. `last_timestamp_ms` is that of its newest record
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
    """What `force_terminate_transaction` met, and the pair at which the id stands now."""

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
class TopicIds:
    """Which topics there are behind the names: one that is created anew has another id (KIP-516)."""

    cluster_id: str | None
    ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BrokerFeatures:
    """What one broker offers: ranges (least, greatest) of versions by API key, and of feature levels by feature name.

    `finalized_features` are those of the cluster as this broker knows them, of the epoch `finalized_features_epoch`
    (-1: it does not know any).
    """

    broker_id: int
    api_versions: Mapping[int, tuple[int, int]]
    supported_features: Mapping[str, tuple[int, int]]
    finalized_features: Mapping[str, tuple[int, int]]
    finalized_features_epoch: int
