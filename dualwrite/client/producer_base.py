"""What the producer for threads and the producer for coroutines share: everything but waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from dualwrite.client.io_thread import process_generation
from dualwrite.client.producer_core import Engine
from dualwrite.client.records.builder import Header
from dualwrite.client.records.delivery import OnDelivery
from dualwrite.client.records.record_future import BaseRecordFuture
from dualwrite.client.records.validation import (
    check_topic,
    checked_headers,
    checked_partition,
    checked_timestamp_ms,
    encoded,
)
from dualwrite.client.transactions.operations import Operation
from dualwrite.client.transactions.states import ProducerState
from dualwrite.client.wire.cluster import ClusterSettings, lease_cluster
from dualwrite.config import ProducerConfig
from dualwrite.errors import IllegalStateError, KafkaTimeoutError
from dualwrite.guarantee import Guarantee
from dualwrite.prepared_state import PreparedTxnState

FutureT = TypeVar("FutureT", bound=BaseRecordFuture)


class BlockedSend(NamedTuple):
    """A record that cannot be taken now: what must end first, and with what arguments to try again."""

    reason: Operation
    topic: str
    value: bytes | None
    key: bytes | None
    headers: list[Header]
    partition: int | None
    timestamp_ms: int
    on_delivery: OnDelivery | None

    @staticmethod
    def fate() -> str:
        """For whoever gives up."""
        return "the record was not sent"


class ProducerBase(Generic[FutureT]):
    """Settings, questions, checks of arguments, and the sentences of those who waited too long."""

    _future: ClassVar[Any]
    """How `send()` answers: FutureT's constructor."""

    def __init__(
        self,
        config: ProducerConfig,
        loop: asyncio.AbstractEventLoop,
        call_soon: Callable[[Callable[[], object]], object],
    ) -> None:
        self._config = config
        self._generation = process_generation()
        self._engine = Engine(config, lease_cluster(ClusterSettings.of(config), loop), call_soon)

    # ---- what is asked about --------------------------------------------------------------------------------

    @property
    def prepared_txn_state(self) -> PreparedTxnState:
        """Of the transaction that is prepared, by this producer or found by its initialisation; else empty."""
        return self._engine.prepared_txn_state

    @property
    def next_prepared_state(self) -> PreparedTxnState:
        """What `prepare_transaction()` is going to give for the transaction that is open, or else for the next one.

        Empty where that is not known before the first record: before transaction.version 2, and after some failures.
        It promises nothing: a transaction can be committed by it once `prepare_transaction()` has given the same.
        """
        return self._engine.next_prepared_state

    @property
    def guarantee(self) -> Guarantee:
        """What a prepared transaction can rely on with this broker: its tier, a sentence, and the bound, if any.

        Raises `IllegalStateError` before `init_transactions()`, which finds it out.
        """
        return self._engine.guarantee

    def metrics(self) -> dict[str, float]:
        """What this producer has done so far, by Kafka's names where Kafka has one (see docs/producer.md).

        Totals and averages since the producer was made; times in milliseconds, those named `-ns-total` in nanoseconds.
        A rate is the difference of two snapshots. Cheap, and from any thread.
        """
        return self._engine.metrics()

    @property
    def transaction_has_records(self) -> bool:
        """Whether the open transaction has a record or an offset. One without needs no commit in Kafka."""
        return self._engine.transaction_has_records

    @property
    def state(self) -> ProducerState:
        """Where this producer stands."""
        return self._engine.state

    # ---- records --------------------------------------------------------------------------------------------

    def _hand_over(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]] | None,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> FutureT | BlockedSend:
        """All of `send()` but waiting."""
        if type(topic) is not str:
            check_topic(topic)
        header_list = [] if headers is None else checked_headers(headers)
        engine = self._engine
        if engine.serializers.any:
            key, value = engine.serializers.apply(topic, key, value, header_list)
        value_bytes = value if type(value) is bytes else encoded("value", value)
        key_bytes = None if key is None else encoded("key", key)
        if partition is not None:
            partition = checked_partition(partition)
        timestamp_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else checked_timestamp_ms(timestamp_ms)
        return self._accept(topic, value_bytes, key_bytes, header_list, partition, timestamp_ms, on_delivery)

    def _accept(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: list[Header],
        partition: int | None,
        timestamp_ms: int,
        on_delivery: OnDelivery | None = None,
    ) -> FutureT | BlockedSend:
        """A record that has been checked and serialized."""
        tried = self._engine.try_send(topic, value, key, headers, partition, timestamp_ms)
        if isinstance(tried, Operation):
            return BlockedSend(tried, topic, value, key, headers, partition, timestamp_ms, on_delivery)
        batch, index = tried
        if on_delivery is not None:
            self._engine.callbacks.add(batch, index, timestamp_ms, on_delivery)
        future: FutureT = self._future(batch, index, timestamp_ms, self._engine)
        return future

    def _accept_again(self, held: BlockedSend) -> FutureT | BlockedSend:
        """What held it back has ended."""
        return self._accept(*held[1:])

    # ---- arguments ------------------------------------------------------------------------------------------

    @property
    def _bounded_ms(self) -> int | None:
        """How long a prepared transaction lasts; None where it has no limit, or nothing is known of one."""
        return self._engine.manager.bounded_ms

    @staticmethod
    def _checked_prepared(state: PreparedTxnState) -> PreparedTxnState:
        if not isinstance(state, PreparedTxnState):
            raise TypeError(
                f"complete_transaction() takes a PreparedTxnState, not {state!r}; nothing was decided: "
                "turn a stored text into one with PreparedTxnState(text)"
            )
        return state

    def _check_process(self) -> None:
        if self._generation != process_generation():
            raise IllegalStateError("this producer belongs to the process before the fork; create a new one here")

    # ---- who waited too long --------------------------------------------------------------------------------

    def _no_answer(self, operation: Operation) -> KafkaTimeoutError:
        return KafkaTimeoutError(
            f"{operation.name} has no answer within max.block.ms={self._config.max_block_ms} "
            f"({self._engine.obstacle(self._config.max_block_ms)}); {self._engine.manager.standing}, "
            "and it may still take effect: repeat the same call until it returns"
        )

    def _not_sent(self, operation: Operation, topic: str, fate: str) -> KafkaTimeoutError:
        return KafkaTimeoutError(
            f"sending to {topic!r} waited for {operation.name} longer than "
            f"max.block.ms={self._config.max_block_ms} ({self._engine.obstacle(self._config.max_block_ms)}); {fate}"
        )
