"""Decide which open transactions hang, by the rules of kafka-transactions.sh find-hanging (KIP-664). No I/O.

A transaction hangs on a partition if it is open there and no coordinator will write its marker: it has been open for
longer than any transaction may be, and either no coordinator knows the producer id, or the transaction of that id does
not include the partition. The partition's last stable offset then never moves again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dualwrite.client.admin.results import ActiveProducer, HangingTransaction, TransactionDescription
from dualwrite.client.records.record import TopicPartition


class OpenTransaction(NamedTuple):
    """One open transaction on one partition."""

    topic_partition: TopicPartition
    producer: ActiveProducer


def candidates(
    producers: Mapping[TopicPartition, Iterable[ActiveProducer]], *, now_ms: int, max_transaction_timeout_ms: int
) -> list[OpenTransaction]:
    """Return the open transactions without a record for longer than `max_transaction_timeout_ms`."""
    return [
        OpenTransaction(partition, producer)
        for partition, rows in producers.items()
        for producer in rows
        if producer.current_transaction_start_offset is not None
        and now_ms - producer.last_timestamp_ms > max_transaction_timeout_ms
    ]


class Classified(NamedTuple):
    """The hanging transactions, and those that are undecided because their coordinator may not have responded."""

    hanging: list[OpenTransaction]
    undecided: list[OpenTransaction]


def classify(
    opened: Iterable[OpenTransaction],
    transactional_ids: Mapping[int, str],
    descriptions: Mapping[str, TransactionDescription | None],
    *,
    all_coordinators_responded: bool,
) -> Classified:
    """Divide open transactions into hanging and undecided ones; the others do not hang.

    `transactional_ids`: by producer id, as the coordinators listed them. `descriptions`: None for an id that its
    coordinator does not know (any more).
    """
    classified = Classified([], [])
    for transaction in opened:
        transactional_id = transactional_ids.get(transaction.producer.producer_id)
        if transactional_id is None:
            (classified.hanging if all_coordinators_responded else classified.undecided).append(transaction)
        elif transactional_id not in descriptions:
            classified.undecided.append(transaction)
        else:
            description = descriptions[transactional_id]
            if description is None or transaction.topic_partition not in description.topic_partitions:
                classified.hanging.append(transaction)
    return classified


def still_open(
    opened: Iterable[OpenTransaction], producers: Mapping[TopicPartition, Iterable[ActiveProducer]]
) -> list[OpenTransaction]:
    """Return the transactions that a second description of the partitions still shows.

    A transaction that ended between the first description and the coordinator's response would look like a hanging one;
    with two-phase commit, one that is older than every timeout may be committed at any moment.
    """
    shown = {
        (partition, row.producer_id, row.current_transaction_start_offset)
        for partition, rows in producers.items()
        for row in rows
    }
    return [
        transaction
        for transaction in opened
        if (
            transaction.topic_partition,
            transaction.producer.producer_id,
            transaction.producer.current_transaction_start_offset,
        )
        in shown
    ]


def described(transaction: OpenTransaction, transactional_ids: Mapping[int, str]) -> HangingTransaction:
    """Return the public value of a hanging transaction."""
    partition, producer = transaction
    assert producer.current_transaction_start_offset is not None
    return HangingTransaction(
        topic_partition=partition,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        coordinator_epoch=producer.coordinator_epoch,
        start_offset=producer.current_transaction_start_offset,
        last_timestamp_ms=producer.last_timestamp_ms,
        transactional_id=transactional_ids.get(producer.producer_id),
    )
