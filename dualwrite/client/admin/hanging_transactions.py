"""Which open transactions hang, as kafka-transactions.sh find-hanging decides it (KIP-664). Pure.

A transaction hangs on a partition when it is open there and no coordinator is going to write its marker: it has been
open for longer than any transaction may be, and the producer's id is unknown to every coordinator, or the id's
transaction does not hold the partition. Its last stable offset then never moves again.
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
    """What is open and has had no record for longer than that."""
    return [
        OpenTransaction(partition, producer)
        for partition, rows in producers.items()
        for producer in rows
        if producer.current_transaction_start_offset is not None
        and now_ms - producer.last_timestamp_ms > max_transaction_timeout_ms
    ]


class Judged(NamedTuple):
    """What hangs, and what nobody can tell: its coordinator may be one that was not heard."""

    hanging: list[OpenTransaction]
    undecided: list[OpenTransaction]


def judge(
    opened: Iterable[OpenTransaction],
    transactional_ids: Mapping[int, str],
    descriptions: Mapping[str, TransactionDescription | None],
    *,
    all_coordinators_heard: bool,
) -> Judged:
    """`transactional_ids` are those that coordinators have for the producer ids; None: not known (any more)."""
    judged = Judged([], [])
    for transaction in opened:
        transactional_id = transactional_ids.get(transaction.producer.producer_id)
        if transactional_id is None:
            (judged.hanging if all_coordinators_heard else judged.undecided).append(transaction)
        elif transactional_id not in descriptions:
            judged.undecided.append(transaction)
        else:
            description = descriptions[transactional_id]
            if description is None or transaction.topic_partition not in description.topic_partitions:
                judged.hanging.append(transaction)
    return judged


def still_open(
    opened: Iterable[OpenTransaction], producers: Mapping[TopicPartition, Iterable[ActiveProducer]]
) -> list[OpenTransaction]:
    """Those that a later look at the partitions shows too.

    A transaction that was ended between the first look and the coordinator's answer would pass for hanging; with
    two-phase commit, one that is older than every timeout may be committed at any moment.
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
    """As callers get it."""
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
