"""DescribeTransactions and ListTransactions: the view of a transactional id (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.linear_pattern import LinearPattern, PatternError
from dualwrite.broker_emulator.topics.topics import TopicPartition
from dualwrite.broker_emulator.transactions.metadata import TransactionMetadata
from dualwrite.broker_emulator.transactions.states import STATE_BY_LABEL, TransactionState

_MAX_CHARACTERS_IN_LOOP: Final = 2_000


class TransactionDescription(NamedTuple):
    """Response to DescribeTransactions (KIP-664) for one id; beside an error, only the first two fields count.

    While a transaction is being ended, `topic_partitions` has the partitions whose marker is not yet acknowledged.
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


def describe(
    transactional_id: str, metadata: TransactionMetadata | None, *, stores_start_time: bool
) -> TransactionDescription:
    """Return the description of one id; TRANSACTIONAL_ID_NOT_FOUND if it does not exist or is being removed."""
    if metadata is None or is_dead(metadata):
        return TransactionDescription(ErrorCode.transactional_id_not_found, transactional_id)
    return TransactionDescription(
        NO_ERROR,
        transactional_id,
        metadata.state.label,
        metadata.timeout_ms,
        metadata.start_timestamp_ms if stores_start_time else metadata.last_update_timestamp_ms,
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

    def admit(self, metadata: TransactionMetadata, now_ms: int) -> bool:
        """Return whether the id is shown.

        Ids without a transaction pass a duration filter, as in Kafka: now - (-1) is long.
        """
        if is_dead(metadata) or (self.filters_states and metadata.state not in self.states):
            return False
        if self.producer_ids and metadata.producer_id not in self.producer_ids:
            return False
        return self.duration_ms < 0 or now_ms - metadata.start_timestamp_ms > self.duration_ms


def parse_filters(
    state_filters: Collection[str], producer_id_filters: Collection[int], duration_ms: int
) -> tuple[TransactionFilters, tuple[str, ...]]:
    """Return the filters, and the state names unknown to Kafka."""
    known = frozenset(STATE_BY_LABEL[name] for name in state_filters if name in STATE_BY_LABEL)
    unknown = tuple(name for name in state_filters if name not in STATE_BY_LABEL)
    filters = TransactionFilters(known, bool(state_filters), frozenset(producer_id_filters), duration_ms)
    return filters, unknown


async def matching(result: ListTransactionsResult, pattern: str | None) -> ListTransactionsResult:
    """Return the rows whose whole transactional id the pattern matches (KIP-1152); all rows without a pattern.

    An invalid pattern gets error INVALID_REGULAR_EXPRESSION. Matching a long id with a large pattern can take a second,
    so many characters are matched in a thread.
    """
    if not pattern or result.error is not NO_ERROR:
        return result
    try:
        matches = LinearPattern(pattern).fullmatch
    except PatternError:
        return ListTransactionsResult(ErrorCode.invalid_regular_expression)

    def matching_rows() -> tuple[TransactionListing, ...]:
        return tuple(row for row in result.transactions if matches(row.transactional_id))

    characters = sum(len(row.transactional_id) for row in result.transactions)
    is_long = characters > _MAX_CHARACTERS_IN_LOOP
    return result._replace(transactions=await asyncio.to_thread(matching_rows) if is_long else matching_rows())
