"""The common base of `Producer` and `AsyncProducer`: everything but waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from dualwrite.client.operations import Operation
from dualwrite.client.producer_core import ProducerCore
from dualwrite.client.records.batches import Header
from dualwrite.client.records.delivery import OnDelivery
from dualwrite.client.records.record import RecordHeaders
from dualwrite.client.records.record_future import BaseRecordFuture
from dualwrite.client.records.send_arguments import (
    checked_headers,
    checked_partition,
    checked_timestamp_ms,
    checked_topic,
    encoded,
)
from dualwrite.client.records.traces import SpanEnd, end_unsent
from dualwrite.client.transactions.states import ProducerState
from dualwrite.client.wire.cluster import ClusterSettings, lease_cluster
from dualwrite.config import ProducerConfig
from dualwrite.errors import KafkaTimeoutError
from dualwrite.guarantee import Guarantee
from dualwrite.monkey_patches import assert_real_threads
from dualwrite.prepared_state import PreparedTxnState

FutureT = TypeVar("FutureT", bound=BaseRecordFuture)


class BlockedSend(NamedTuple):
    """A record that cannot be queued now: the operation that must end first, and the arguments for the next try."""

    reason: Operation
    topic: str
    value: bytes | None
    key: bytes | None
    headers: list[Header]
    partition: int | None
    timestamp_ms: int
    on_delivery: OnDelivery | None

    @staticmethod
    def progress() -> str:
        """Return the fate of the record, for the error of a caller that stops waiting."""
        return "the record was not sent"


class ProducerBase(Generic[FutureT]):
    """Settings, state, checks of arguments, and the errors of calls that waited too long."""

    _future: ClassVar[Any]
    """Constructor of the futures that `send()` returns: FutureT."""

    def __init__(
        self,
        config: ProducerConfig,
        loop: asyncio.AbstractEventLoop,
        call_soon: Callable[[Callable[[], object]], object],
    ) -> None:
        self.max_block_ms = config.max_block_ms
        """How long a call may wait, in milliseconds: the setting `max.block.ms`."""
        self._loop = loop
        self._core = ProducerCore(config, lambda: lease_cluster(ClusterSettings.of(config), loop), call_soon)
        self._generation = self._core.generation

    # ---- state ----------------------------------------------------------------------------------------------

    @property
    def prepared_txn_state(self) -> PreparedTxnState:
        """Producer id and epoch of the prepared transaction, also of one found by `init_transactions`; else empty."""
        return self._core.prepared_txn_state

    @property
    def next_prepared_state(self) -> PreparedTxnState:
        """The future result of `prepare_transaction()` for the open transaction, or else for the next one.

        Empty if unknown before the first record: before transaction.version 2, and after some failures. It promises
        nothing: it can complete a transaction only after `prepare_transaction()` has returned it.
        """
        return self._core.next_prepared_state

    @property
    def bounded_ms(self) -> int | None:
        """How long a prepared transaction lasts, in milliseconds; None if unlimited, or unknown yet."""
        return self._core.transaction_manager.bounded_ms

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee for a prepared transaction with this broker: its tier, a sentence, and the bound, if any.

        Raises `IllegalStateError` before `init_transactions()`, which determines it.
        """
        return self._core.guarantee

    def metrics(self) -> dict[str, float]:
        """Return this producer's metrics so far, by Kafka's names where Kafka has one (docs/producer-reference.md).

        Totals and averages since the producer was created; times in milliseconds, those named `-ns-total` in
        nanoseconds. A rate is the difference of two snapshots. Cheap; may be called from any thread.
        """
        return self._core.metrics()

    @property
    def transaction_has_records(self) -> bool:
        """Whether the open transaction has a record or an offset. Without one it needs no commit in Kafka."""
        return self._core.transaction_has_records

    @property
    def state(self) -> ProducerState:
        """This producer's state."""
        return self._core.state

    # ---- records --------------------------------------------------------------------------------------------

    def _check_and_queue(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: RecordHeaders | None,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> FutureT | BlockedSend:
        """Implement `send()`, except for waiting."""
        if type(topic) is not str:
            topic = checked_topic(topic)
        header_list = [] if headers is None else checked_headers(headers)
        core = self._core
        if core.serializers.any:
            key, value = core.serializers.apply(topic, key, value, header_list)
        value_bytes = value if type(value) is bytes else encoded("value", value)
        key_bytes = None if key is None else encoded("key", key)
        if partition is not None:
            partition = checked_partition(partition)
        timestamp_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else checked_timestamp_ms(timestamp_ms)
        if core.tracer is not None:
            span = core.tracer.send(topic, key_bytes, value_bytes, partition, header_list)
            on_delivery = SpanEnd(span, on_delivery) if span.is_recording() else on_delivery
        try:
            return self._queue(topic, value_bytes, key_bytes, header_list, partition, timestamp_ms, on_delivery)
        except BaseException as error:
            end_unsent(on_delivery, error)
            raise

    def _queue(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: list[Header],
        partition: int | None,
        timestamp_ms: int,
        on_delivery: OnDelivery | None = None,
    ) -> FutureT | BlockedSend:
        """Queue a record that has been checked and serialized."""
        tried = self._core.try_send(topic, value, key, headers, partition, timestamp_ms)
        if isinstance(tried, Operation):
            return BlockedSend(tried, topic, value, key, headers, partition, timestamp_ms, on_delivery)
        batch, index = tried
        if on_delivery is not None:
            self._core.callbacks.add(batch, index, timestamp_ms, on_delivery)
        future: FutureT = self._future(batch, index, timestamp_ms, self._core)
        return future

    def _try_again(self, blocked: BlockedSend) -> FutureT | BlockedSend:
        """Queue a record whose `reason` has ended."""
        return self._queue(*blocked[1:])

    # ---- arguments ------------------------------------------------------------------------------------------

    @staticmethod
    def _checked_prepared(state: PreparedTxnState) -> PreparedTxnState:
        if not isinstance(state, PreparedTxnState):
            raise TypeError(
                f"complete_transaction() takes a PreparedTxnState, not {state!r}; nothing was decided: "
                "convert a stored text with PreparedTxnState(text)"
            )
        return state

    def _check_process(self) -> None:
        self._core.check_process()
        assert_real_threads()

    # ---- errors of calls that waited too long ---------------------------------------------------------------

    def _no_outcome(self, operation: Operation) -> KafkaTimeoutError:
        return KafkaTimeoutError(
            f"{operation.name} has no outcome within max.block.ms={self.max_block_ms} "
            f"({self._core.obstacle(self.max_block_ms)}); {self._core.transaction_manager.standing}, "
            "and it may still take effect: repeat the same call until it returns"
        )

    def _not_sent(self, operation: Operation, topic: str, progress: str) -> KafkaTimeoutError:
        return KafkaTimeoutError(
            f"sending to {topic!r} waited for {operation.name} longer than "
            f"max.block.ms={self.max_block_ms} ({self._core.obstacle(self.max_block_ms)}); {progress}",
            error_code=self._core.error_code_of(topic),
        )
