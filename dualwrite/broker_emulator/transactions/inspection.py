"""DescribeTransactions and ListTransactions: what they show of a transactional id (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.cluster.topics import TopicPartition
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.transactions.linear_pattern import LinearPattern
from dualwrite.broker_emulator.transactions.metadata import TransactionMetadata
from dualwrite.broker_emulator.transactions.states import STATE_BY_LABEL, TransactionState


class TransactionDescription(NamedTuple):
    """Response to DescribeTransactions (KIP-664) for one id; beside an error, only the first two fields count.

    While a transaction is being ended, `topic_partitions` are those whose marker is not yet acknowledged.
    """

    error: ErrorCode
    transactional_id: str
    state: str = ""
    timeout_ms: int = 0
    start_time_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    topic_partitions: tuple[TopicPartition, ...] = ()


class TransactionListing(NamedTuple):
    """One row of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str


class ListTransactionsResult(NamedTuple):
    """Response to ListTransactions (KIP-664, KIP-994, KIP-1152) for the ids that this coordinator owns."""

    error: ErrorCode
    unknown_state_filters: tuple[str, ...] = ()
    transactions: tuple[TransactionListing, ...] = ()


def describe(transactional_id: str, metadata: TransactionMetadata | None) -> TransactionDescription:
    """Return the description of one id; TRANSACTIONAL_ID_NOT_FOUND if it does not exist or is being removed."""
    if metadata is None or is_dead(metadata):
        return TransactionDescription(ErrorCode.transactional_id_not_found, transactional_id)
    return TransactionDescription(
        NO_ERROR,
        transactional_id,
        metadata.state.label,
        metadata.timeout_ms,
        metadata.start_timestamp_ms,
        metadata.producer_id,
        metadata.producer_epoch,
        tuple(sorted(metadata.topic_partitions)),
    )


def is_dead(metadata: TransactionMetadata) -> bool:
    """Return whether the id is being removed: its tombstone is being appended."""
    return metadata.pending_state is TransactionState.DEAD


@dataclass(frozen=True, slots=True)
class TransactionFilters:
    """The filters of a ListTransactions request; an id is shown if it passes all of them."""

    states: frozenset[TransactionState]
    filters_states: bool
    producer_ids: frozenset[int]
    duration_ms: int
    pattern: LinearPattern | None

    def admit(self, metadata: TransactionMetadata, now_ms: int) -> bool:
        """Return whether the id is shown.

        Ids without a transaction pass a duration filter, as in Kafka: now - (-1) is long.
        """
        if is_dead(metadata) or (self.filters_states and metadata.state not in self.states):
            return False
        if self.producer_ids and metadata.producer_id not in self.producer_ids:
            return False
        if self.duration_ms >= 0 and now_ms - metadata.start_timestamp_ms <= self.duration_ms:
            return False
        return self.pattern is None or self.pattern.fullmatch(metadata.transactional_id)


def parse_filters(
    state_filters: Collection[str], producer_id_filters: Collection[int], duration_ms: int, pattern: str | None
) -> tuple[TransactionFilters, tuple[str, ...]]:
    """Return the filters, and the state names that Kafka does not know. Raises PatternError on a bad pattern."""
    known = frozenset(STATE_BY_LABEL[name] for name in state_filters if name in STATE_BY_LABEL)
    unknown = tuple(name for name in state_filters if name not in STATE_BY_LABEL)
    compiled = LinearPattern(pattern) if pattern else None
    filters = TransactionFilters(known, bool(state_filters), frozenset(producer_id_filters), duration_ms, compiled)
    return filters, unknown
