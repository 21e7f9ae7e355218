"""The transaction coordinator of one node: carries out what the pure decisions of `coordinator.py` say.

Everything here runs in the emulator's one event loop; a step between two awaits is atomic, and `pending_state` is
what protects a transactional id across them (other requests see CONCURRENT_TRANSACTIONS).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.clock import Clock
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.pause_points import PausePoints
from dualwrite.broker_emulator.topic_partition import TopicPartition
from dualwrite.broker_emulator.transactions.results import (
    EndTxnResult,
    InitProducerIdResult,
    ListTransactionsResult,
    TransactionDescription,
)


class StateLog(Protocol):
    """`__transaction_state`, as the coordinator uses it."""

    async def append(self, partition: int, key: bytes, value: bytes | None) -> ErrorCode:
        """Append one record (a tombstone when `value` is None) with acks=-1; NONE once it is replicated."""

    def replay(self, partition: int) -> Iterable[tuple[bytes, bytes | None]]:
        """Every record of the partition in order."""


class ProducerIdSource(Protocol):
    """Where fresh producer ids come from (`producer_ids.ProducerIdManager`)."""

    def next_producer_id(self) -> int:
        """A producer id that no one in the cluster was given before."""


class MarkerSender(Protocol):
    """Carries one transaction marker to the partition's leader."""

    async def send(
        self,
        topic_partition: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        transaction_version: int,
    ) -> ErrorCode | None:
        """The leader's answer by section 2.7; None when the topic was deleted, so that no leader can be asked."""


class TransactionCoordinator:
    """The transactional ids whose `__transaction_state` partition this node leads."""

    def __init__(
        self,
        *,
        node_id: int,
        config: BrokerConfig,
        clock: Clock,
        log: StateLog,
        producer_ids: ProducerIdSource,
        markers: MarkerSender,
        pause_points: PausePoints,
    ) -> None: ...

    def load_partition(self, partition: int, leader_epoch: int) -> None:
        """Become leader of a partition: replay it and resend the markers of transactions that were being ended."""
        raise NotImplementedError

    def unload_partition(self, partition: int) -> None:
        """Lose leadership: forget the partition's ids; appends in flight answer NOT_COORDINATOR."""
        raise NotImplementedError

    async def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        enable_2pc: bool = False,
        keep_prepared: bool = False,
    ) -> InitProducerIdResult:
        """InitProducerId (KIP-98, KIP-360, KIP-890, KIP-939). `timeout_ms` is ignored with `enable_2pc`."""
        raise NotImplementedError

    async def add_partitions(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        *,
        transaction_version: int,
    ) -> ErrorCode:
        """Add partitions to the transaction, opening it if need be; version 2 for brokers' implicit adds, else 0."""
        raise NotImplementedError

    def verify_partitions(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether each partition is part of the transaction (AddPartitionsToTxn with VerifyOnly, KIP-890 part 1)."""
        raise NotImplementedError

    async def end_txn(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        transaction_version: int,
    ) -> EndTxnResult:
        """End the transaction; version 2 for EndTxn v5 and later, else 0. Answers once the decision is in the log."""
        raise NotImplementedError

    def describe(self, transactional_id: str) -> TransactionDescription:
        """DescribeTransactions (KIP-664) for one id."""
        raise NotImplementedError

    def list(
        self,
        *,
        state_filters: Collection[str] = (),
        producer_id_filters: Collection[int] = (),
        duration_filter_ms: int = -1,
        pattern: str | None = None,
    ) -> ListTransactionsResult:
        """ListTransactions (KIP-664, KIP-994, KIP-1152); filters that are given are ANDed."""
        raise NotImplementedError

    def abort_timed_out(self) -> None:
        """Start aborting every transaction whose timeout has passed; to be called at intervals."""
        raise NotImplementedError

    def expire_transactional_ids(self) -> None:
        """Start removing every id that was not used for `transactional.id.expiration.ms`; to be called at intervals."""
        raise NotImplementedError

    async def shutdown(self) -> None:
        """Stop marker tasks and answer COORDINATOR_NOT_AVAILABLE or NOT_COORDINATOR from now on."""
        raise NotImplementedError

    def partition_for(self, transactional_id: str) -> int:
        """The `__transaction_state` partition that owns the id."""
        raise NotImplementedError
