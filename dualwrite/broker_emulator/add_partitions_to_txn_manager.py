"""Asks the transaction coordinator whether a producer may write to partitions (KIP-890); Kafka's class of this name.

Old clients registered the partitions themselves: the coordinator verifies that they did. New ones (Produce v12+,
TxnOffsetCommit v5+) leave it to the broker: the coordinator adds the partitions to the transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.topic_partition import TopicPartition

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster import Cluster


async def add_or_verify(
    cluster: Cluster,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Collection[TopicPartition],
    *,
    add: bool,
) -> Mapping[TopicPartition, ErrorCode]:
    """The coordinator's answer for each partition, as the coordinator gave it."""
    coordinator = cluster.transaction_coordinator(transactional_id).transactions
    if not add:
        return coordinator.verify_partitions(transactional_id, producer_id, producer_epoch, partitions)
    error = await coordinator.add_partitions(
        transactional_id, producer_id, producer_epoch, partitions, transaction_version=2
    )
    return dict.fromkeys(partitions, error)
