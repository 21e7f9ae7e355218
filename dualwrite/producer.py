"""The transactional Kafka producer with two-phase commit (KIP-98, KIP-890, KIP-939), for threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from dualwrite.client.records import ConsumerGroupMetadata, OffsetAndMetadata, RecordMetadata, TopicPartition
from dualwrite.client.states import ProducerState
from dualwrite.prepared_state import PreparedTxnState

__all__ = [
    "ConsumerGroupMetadata",
    "OffsetAndMetadata",
    "Producer",
    "ProducerState",
    "RecordFuture",
    "RecordMetadata",
    "TopicPartition",
]


class RecordFuture:
    """The fate of one sent record."""

    def done(self) -> bool:
        raise NotImplementedError

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        raise NotImplementedError


class Producer:
    """Signatures first; the body follows."""

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        raise NotImplementedError

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        raise NotImplementedError

    def begin_transaction(self) -> None:
        raise NotImplementedError

    def send(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes] | Iterable[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError

    def prepare_transaction(self) -> PreparedTxnState:
        raise NotImplementedError

    def complete_transaction(self, state: PreparedTxnState) -> None:
        raise NotImplementedError

    def commit_transaction(self) -> None:
        raise NotImplementedError

    def abort_transaction(self) -> None:
        raise NotImplementedError

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata | str,
    ) -> None:
        raise NotImplementedError

    @property
    def prepared_txn_state(self) -> PreparedTxnState:
        raise NotImplementedError

    @property
    def transaction_has_records(self) -> bool:
        raise NotImplementedError

    @property
    def state(self) -> ProducerState:
        raise NotImplementedError

    def close(self, timeout_s: float | None = None) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
