"""What every face of a producer shares: the state machines, the sender, and the rules between them.

Nothing here waits. A call either ends at once or gives an `Operation` that the face waits for in its own way
(a thread blocks, a coroutine awaits). Every method may be called from any thread unless it says otherwise.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from dualwrite.client.backoff import Backoff
from dualwrite.client.last_error import LastError
from dualwrite.client.records.accumulator import Accumulator, Batch
from dualwrite.client.records.builder import Header, builder_factory
from dualwrite.client.records.compression import codec_for
from dualwrite.client.records.delivery import DeliveryCallbacks
from dualwrite.client.records.encoded_batch import EncodedBatch
from dualwrite.client.records.partition_choice import PartitionChoice
from dualwrite.client.records.record import ConsumerGroupMetadata, OffsetAndMetadata, ReadyRecord, TopicPartition
from dualwrite.client.records.validation import Serializers, check_topic
from dualwrite.client.sender import Sender
from dualwrite.client.transactions.idempotence_manager import IdempotenceManager
from dualwrite.client.transactions.manager import TransactionManager
from dualwrite.client.transactions.operations import Operation
from dualwrite.client.transactions.states import ProducerState
from dualwrite.client.unfinished_on_close import unfinished_on_close
from dualwrite.client.wire.cluster import Lease, monotonic_ms
from dualwrite.client.wire.codec import ProduceEncoder
from dualwrite.config import ProducerConfig
from dualwrite.errors import AuthenticationError, FatalError, IllegalStateError, InvalidRecordError
from dualwrite.guarantee import Guarantee
from dualwrite.prepared_state import PreparedTxnState

_NO_HEADERS: Final[list[Header]] = []

_log = logging.getLogger(__name__)


class Engine:
    """One producer. `call_soon` schedules a callback in the loop that does the I/O, which is that of `cluster`."""

    def __init__(
        self, config: ProducerConfig, cluster: Lease, call_soon: Callable[[Callable[[], object]], object]
    ) -> None:
        self.config: Final = config
        self.lock: Final = threading.Lock()
        self._call_soon = call_soon
        self._wake_pending = False
        self.callbacks: Final = DeliveryCallbacks(self.lock, call_soon)
        self.serializers: Final = Serializers(config.key_serializer, config.value_serializer)
        self.choice: Final = PartitionChoice(config.partitioner)
        self.sends_values_as_they_are: Final = not self.serializers.any and self.choice.by_record is None
        self._filling = self.choice.filling
        self._memory_waiter: Operation | None = None
        self._waits: list[Operation] = []
        self._fates: dict[Batch, Operation] = {}
        self._manager = _transaction_manager(config)
        self._identity: TransactionManager | IdempotenceManager = self._manager or IdempotenceManager(
            enabled=config.enable_idempotence, backoff=_retry_backoff(config)
        )
        self._cluster = cluster
        self._topology = cluster.topology
        self._accumulator = _accumulator(config)
        self._metrics = self._accumulator.metrics
        self._began_ns: dict[Operation, int] = {}
        self._sender = self._new_sender()

    def _new_sender(self) -> Sender:
        config = self.config
        return Sender(
            lock=self.lock,
            identity=self._identity,
            accumulator=self._accumulator,
            cluster=self._cluster,
            encoder=ProduceEncoder(
                transactional_id=config.transactional_id, acks=config.acks, timeout_ms=config.request_timeout_ms
            ),
            transactional=self._manager is not None,
            expects_answers=config.acks != 0,
            max_in_flight=config.max_in_flight_requests_per_connection,
            linger_ms=config.linger_ms,
            clock_ms=monotonic_ms,
            problems=LastError(),
            on_refused=self._interrupt_waits,
        )

    def wake(self) -> None:
        """Let the loop look for work. Many wakes before it comes to that are one."""
        if not self._wake_pending:
            self._wake_pending = True
            self._call_soon(self._pump)

    def _pump(self) -> None:
        if self._wake_pending:  # else `start` has done it in the meantime
            self._pump_now()

    def _pump_now(self) -> None:
        self._wake_pending = False
        self._sender.pump()

    # ---- what is asked about --------------------------------------------------------------------------------

    @property
    def state(self) -> ProducerState:
        """Where the producer stands."""
        return self._identity.state

    @property
    def prepared_txn_state(self) -> PreparedTxnState:
        """Of the transaction that is prepared, else empty."""
        return self._manager.prepared_txn_state if self._manager is not None else PreparedTxnState()

    @property
    def next_prepared_state(self) -> PreparedTxnState:
        """What the open transaction, or else the next one, will be prepared as, if that is known."""
        with self.lock:
            return self.manager.next_prepared_state

    @property
    def guarantee(self) -> Guarantee:
        """What a prepared transaction can rely on here; `IllegalStateError` before `init_transactions()`."""
        return self.manager.guarantee

    @property
    def transaction_has_records(self) -> bool:
        """Whether the transaction has anything to commit."""
        return self._manager is not None and self._manager.has_records

    def can_send_after_opening(self, batch: Batch) -> bool:
        """Whether batches need not wait for more records: the one before this one in its partition, or any other's."""
        return bool(batch.queue.closed) or self._accumulator.has_full_batches

    def metrics(self) -> dict[str, float]:
        """What `Producer.metrics()` gives."""
        with self.lock:
            return self._metrics.snapshot(
                buffer_total=self.config.buffer_memory,
                buffer_used=self._accumulator.buffer_used,
                in_flight=self._sender.produces_in_flight,
            )

    def obstacle(self, waited_ms: float) -> str:
        """Why whoever has waited that long has no answer: the newest problem, or what is waited for."""
        return self._sender.obstacle(monotonic_ms() - waited_ms)

    # ---- transactions ---------------------------------------------------------------------------------------

    @property
    def manager(self) -> TransactionManager:
        """The transaction manager; `IllegalStateError` without a transactional id."""
        if self._manager is None:
            raise IllegalStateError("this producer has no transactional.id; set one to use transactions")
        return self._manager

    def begin_transaction(self) -> None:
        """Local: Kafka hears of a transaction with its first record."""
        manager = self.manager
        began_ns = time.perf_counter_ns()
        with self.lock:
            manager.begin_transaction()
            self._metrics.waited("begin_transaction()", time.perf_counter_ns() - began_ns)

    def start(
        self,
        call: Callable[[], Operation],
        listener: Callable[[], None] | None = None,
        *,
        in_loop: bool = False,
    ) -> Operation:
        """Make a call of the transaction manager, or join the same call made before.

        `listener` is called once it has ended; it is not when it has ended already. `in_loop`: the caller runs in the
        loop that does the I/O, so what the call leads to is sent before this returns.
        """
        with self.lock:
            operation = call()
            self._cluster.retry_refused()
            if not operation.done:
                if listener is not None:
                    operation.listen(listener)
                self._began_ns.setdefault(operation, time.perf_counter_ns())
        if not operation.done:
            if in_loop:
                self._pump_now()
            else:
                self.wake()
        return operation

    def give_up_waiting(self, operation: Operation, listener: Callable[[], None]) -> bool:
        """The caller stops waiting. False: too late, it has ended."""
        with self.lock:
            operation.stop_listening(listener)
            return not operation.done

    def _interrupt_waits(self, error: AuthenticationError) -> None:
        """Under the lock: nobody is to wait for what a broker refuses to take."""
        if self._manager is not None:
            self._manager.interrupt(error)
        for operation in self._waits:
            operation.interrupt(error)

    def _interruptible(self, operation: Operation) -> Operation:
        """Under the lock, before it is waited for."""
        self._cluster.retry_refused()
        self._waits = [wait for wait in self._waits if not wait.done and wait is not operation]
        self._waits.append(operation)
        return operation

    def heard(self, operation: Operation) -> None:
        """To be called after `start` and the wait: the outcome has been heard, and the next call may come.

        Not for a caller who was interrupted; one that waited for what goes on has not heard anything.
        """
        with self.lock:
            self.manager.heard(operation)
            began_ns = self._began_ns.pop(operation, None) if operation.done else None
            if began_ns is not None:
                self._metrics.waited(operation.name, time.perf_counter_ns() - began_ns)

    def init_transactions(self, keep_prepared_txn: bool) -> Operation:
        """To be called by `start`."""
        return self.manager.init_transactions(keep_prepared_txn)

    def prepare_transaction(self) -> Operation:
        """To be called by `start`."""
        return self._flushed(self.manager.prepare_transaction)

    def commit_transaction(self) -> Operation:
        """To be called by `start`."""
        return self._flushed(self.manager.commit_transaction)

    def abort_transaction(self) -> Operation:
        """To be called by `start`."""
        return self._flushed(self.manager.abort_transaction)

    def complete_transaction(self, state: PreparedTxnState, *, take_over: bool = True, own: bool = True) -> Operation:
        """To be called by `start`."""
        return self._flushed(lambda: self.manager.complete_transaction(state, take_over=take_over, own=own))

    def own(self) -> Operation:
        """To be called by `start`."""
        return self.manager.own()

    def describe(self) -> Operation:
        """To be called by `start`."""
        return self.manager.describe()

    @property
    def is_current(self) -> bool:
        """Whether nobody has used the id since this producer, as `describe()` found it."""
        with self.lock:
            return self.manager.is_current

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> Operation:
        """To be called by `start`."""
        return self.manager.send_offsets(offsets, group)

    def _flushed(self, call: Callable[[], Operation]) -> Operation:
        """Nothing may linger; and where nothing is left to send, no loop is needed to find that out."""
        operation = call()
        self._accumulator.close_open_batches()
        if not operation.done and self._accumulator.incomplete == 0:
            self.manager.settle_without_kafka()
        return operation

    # ---- records --------------------------------------------------------------------------------------------

    def try_send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: list[Header],
        partition: int | None,
        timestamp_ms: int,
    ) -> tuple[Batch, int] | Operation:
        """The record's batch and its place in it; or what must end before this can be tried again."""
        if self.choice.by_record is not None:
            partition = self.choice.before_lock(topic, key, value, partition, self._topology.partitions(topic))
        with self.lock:
            self._identity.check_send()
            accepted = self._append(topic, value, key, headers, partition, timestamp_ms)
            return accepted if isinstance(accepted, Operation) else (accepted, accepted.record_count - 1)

    def try_fill(self, topic: str, value: bytes, timestamp_ms: int) -> tuple[Batch, int] | None:
        """`try_send` of nothing but a value, where the batch that is being filled has room; else None.

        This is what most records are, and all that most of them need: it is as short as it can be.
        """
        with self.lock:
            self._identity.check_send()
            batch = self._filling.get(topic)
            if batch is None or batch.queue.open is not batch:
                return None
            index = batch.record_count
            if batch.append(index, timestamp_ms, None, value, _NO_HEADERS) is None:
                return None
            batch.record_count = index + 1
            return batch, index

    def _append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: list[Header],
        partition: int | None,
        timestamp_ms: int,
    ) -> Batch | Operation:
        """The batch that took the record as its last one. Under the lock."""
        fills = partition is None and (key is None or (key == b"" and self.choice.empty_key_is_none))
        if fills:
            # almost every record without a key goes where the one before it went: nothing else is asked then
            batch = self._filling.get(topic)
            if batch is not None and batch.queue.open is batch:
                index = batch.record_count
                if batch.append(index, timestamp_ms, key, value, headers) is not None:
                    batch.record_count = index + 1
                    return batch
        partitions = self._topology.partitions(topic)
        if partitions == 0:
            return self._want_topic(topic)
        if partition is None:
            partition = self.choice.choose(topic, None if fills else key, partitions)
        elif not 0 <= partition < partitions:
            raise InvalidRecordError(
                f"{topic!r} has the partitions 0 to {partitions - 1}, not {partition}; the record was not sent"
            )
        accepted = self._accumulator.append(topic, partition, timestamp_ms, key, value, headers, monotonic_ms())
        if accepted is None:
            self.wake()
            return self._memory_freed()
        if accepted.record_count == 1:
            self._opened(accepted, fills=fills)
        return accepted

    def _want_topic(self, topic: str) -> Operation:
        check_topic(topic)
        self.wake()
        return self._interruptible(self._sender.want_topic(topic))

    def _opened(self, batch: Batch, *, fills: bool) -> None:
        """A batch got its first record. A batch has the records of one transaction, so this tells of all of them."""
        self._identity.accepted()
        if fills:
            self._filling[batch.topic] = batch
        self._wake_for(batch)

    def _wake_for(self, batch: Batch) -> None:
        """After a batch was opened: the loop must be awake when its lingering ends, and if another one is full now."""
        if self.can_send_after_opening(batch) or batch.created_ms + self.config.linger_ms < self._sender.timer_at_ms:
            self.wake()

    # ---- many records at once (`client/bulk.py`) ------------------------------------------------------------

    def partitions_of(self, topic: str) -> int | Operation:
        """How many partitions the topic has; or what must end before that is known."""
        with self.lock:
            self._identity.check_send()
            return self._topology.partitions(topic) or self._want_topic(topic)

    def accept_records(
        self, topic: str, records: Iterable[ReadyRecord], took: Callable[[Batch, int, int], None]
    ) -> Operation | None:
        """Accept records in their order and tell `took` of each; what must end before the next can be accepted."""
        with self.lock:
            self._identity.check_send()
            for value, key, headers, partition, timestamp_ms in records:
                batch = self._append(topic, value, key, headers, partition, timestamp_ms)
                if isinstance(batch, Operation):
                    return batch
                took(batch, batch.record_count - 1, 1)
        return None

    def accept_values(
        self, topic: str, values: Sequence[bytes], timestamp_ms: int, took: Callable[[Batch, int, int], None]
    ) -> Operation | None:
        """`accept_records` of nothing but values: only the builder sees each of them."""
        with self.lock:
            self._identity.check_send()
            at = 0
            while at < len(values):
                batch = self._append(topic, values[at], None, _NO_HEADERS, None, timestamp_ms)
                if isinstance(batch, Operation):
                    return batch
                first = batch.record_count - 1
                index, append = first + 1, batch.append
                for value in values[at + 1 :]:
                    if append(index, timestamp_ms, None, value, _NO_HEADERS) is None:
                        break
                    index += 1
                batch.record_count = index
                took(batch, first, index - first)
                at += index - first
        return None

    def accept_encoded(self, topic: str, partition: int, encoded: EncodedBatch) -> Batch | Operation:
        """Accept records that are bytes already; or what must end before they can be."""
        with self.lock:
            self._identity.check_send()
            batch = self._accumulator.append_full(topic, partition, encoded, encoded.record_count, monotonic_ms())
            if batch is None:
                self.wake()
                return self._memory_freed()
            self._opened(batch, fills=True)
            return batch

    def deliveries_of(self, topic: str, batches: Iterable[Batch]) -> Operation:
        """Ends when the fates of all of them are known. Takes the lock itself."""
        with self.lock:
            operation = self._all_ended(f"records for {topic}", {*batches})
        self.wake()
        return operation

    def _all_ended(self, name: str, batches: Collection[Batch]) -> Operation:
        operation = Operation(name)
        left = len(batches)

        def one_less() -> None:
            nonlocal left
            left -= 1
            if left == 0 and not operation.done:
                operation.end()

        for batch in batches:
            batch.listen(one_less)
        if not batches:
            operation.end()
        return self._interruptible(operation)

    def _memory_freed(self) -> Operation:
        """Ends when any batch does."""
        if self._memory_waiter is None or self._memory_waiter.done:
            waiter = self._memory_waiter = Operation("buffer.memory")
            self._accumulator.close_open_batches()
            for batch in self._accumulator.incomplete_batches():
                batch.listen(lambda: None if waiter.done else waiter.end())
        return self._interruptible(self._memory_waiter)

    def delivery_of(self, batch: Batch) -> Operation:
        """Ends when the fate of the batch is known. Takes the lock itself."""
        with self.lock:
            operation = self._fates.get(batch)
            if operation is None:
                operation = self._fates[batch] = Operation(f"a record for {batch.topic}-{batch.partition}")
                batch.listen(lambda: self._fates.pop(batch).end())
            self._interruptible(operation)
        self.wake()
        return operation

    def flush(self) -> Operation:
        """Ends when every record accepted so far has its fate. Takes the lock itself."""
        with self.lock:
            self._accumulator.close_open_batches()
            operation = self._all_ended("flush()", self._accumulator.incomplete_batches())
            began_ns = time.perf_counter_ns()
            operation.listen(lambda: self._metrics.waited("flush()", time.perf_counter_ns() - began_ns))
        self.wake()
        return operation

    # ---- the end --------------------------------------------------------------------------------------------

    def last_operation(self) -> Operation | None:
        """What to wait for before closing: an abort of what is open and not prepared, or what is pending anyway."""
        if self._manager is None:
            return self.flush()
        with self.lock:
            operation = self._manager.operation_before_close()
            if operation is not None and self._accumulator.incomplete == 0:
                self._manager.settle_without_kafka()
        self.wake()
        return operation

    def mark_closed(self, *, pending: bool, hand_over: bool = False) -> None:
        """No more calls; whoever waits is told. `pending`: a call has no answer yet; the log says what that means.

        `hand_over`: what is prepared is left to somebody on purpose.
        """
        with self.lock:
            if self.state is ProducerState.CLOSED:
                return
            left = unfinished_on_close(
                self.state,
                self.prepared_txn_state,
                self.config,
                pending=pending,
                hand_over=hand_over,
                bounded_ms=None if self._manager is None else self._manager.bounded_ms,
            )
            if left is not None:
                _log.log(left.level, "%s", left.sentence)
            self._identity.close(FatalError("the producer was closed before this was answered; its outcome is unknown"))

    async def close(self) -> None:
        """Drop the connections; in the loop. Records without an answer fail."""
        await self._sender.close()


def _retry_backoff(config: ProducerConfig) -> Backoff:
    return Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)


def _transaction_manager(config: ProducerConfig) -> TransactionManager | None:
    if config.transactional_id is None:
        return None
    return TransactionManager(
        transactional_id=config.transactional_id,
        transaction_timeout_ms=config.transaction_timeout_ms,
        two_phase_commit=config.transaction_two_phase_commit_enable,
        accepts_bound=config.accept_bounded_guarantee,
        features_max_age_ms=config.metadata_max_age_ms,
        backoff=_retry_backoff(config),
    )


def _accumulator(config: ProducerConfig) -> Accumulator:
    transactional = config.transactional_id is not None
    return Accumulator(
        new_builder=builder_factory(transactional=transactional, batch_size=config.batch_size),
        new_backoff=lambda: _retry_backoff(config),
        transactional=transactional,
        idempotent=config.enable_idempotence,
        batch_size=config.batch_size,
        max_request_size=config.max_request_size,
        buffer_memory=config.buffer_memory,
        linger_ms=config.linger_ms,
        delivery_timeout_ms=config.delivery_timeout_ms,
        max_in_flight=config.max_in_flight_requests_per_connection,
        codec=codec_for(config.compression_type, config.compression_level),
    )
