"""What the transaction coordinator answers, by Kafka's field names.

The error is always the coordinator's own: answering 47 instead of 90 to old request versions is the API's business.
"""

from __future__ import annotations

from typing import NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.cluster.topics import TopicPartition


class InitProducerIdResult(NamedTuple):
    """Answer to InitProducerId; every id and epoch is -1 beside an error.

    The ongoing pair (KIP-939) names the prepared transaction that was kept, or is (-1, -1) when nothing was open.
    """

    error: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1
    ongoing_producer_id: int = -1
    ongoing_producer_epoch: int = -1


class EndTxnResult(NamedTuple):
    """Answer to EndTxn; the pair is the one to use next (KIP-890 part 2), -1 below version 5 and beside an error."""

    error: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1


class TransactionDescription(NamedTuple):
    """Answer to DescribeTransactions (KIP-664) for one id; only `error` and `transactional_id` count beside an error.

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
    """Answer to ListTransactions (KIP-664, KIP-994, KIP-1152) for the ids that this coordinator owns."""

    error: ErrorCode
    unknown_state_filters: tuple[str, ...] = ()
    transactions: tuple[TransactionListing, ...] = ()
