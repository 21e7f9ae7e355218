"""The common core of `Producer` and `AsyncProducer`: the state machines, the sender, and the rules between them.

Nothing here waits. A call either ends at once or returns an `Operation`, which the producer for threads waits for by
blocking and the one for asyncio by awaiting. Every method may be called from any thread unless it says otherwise.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Final

from dualwrite.client.error_texts import LastError
from dualwrite.client.idempotence_manager import IdempotenceManager
from dualwrite.client.io_thread import this_process
from dualwrite.client.late_log import log_guarded
from dualwrite.client.monotonic import monotonic_ms
from dualwrite.client.operations import Operation
from dualwrite.client.pacing import Backoff
from dualwrite.client.records.accumulator import Accumulator
from dualwrite.client.records.batches import EncodedBatch, Header
from dualwrite.client.records.compression import codec_for
from dualwrite.client.records.delivery import DeliveryCallbacks
from dualwrite.client.records.partition_queue import Batch
from dualwrite.client.records.record import ConsumerGroupMetadata, OffsetAndMetadata, ReadyRecord, TopicPartition
from dualwrite.client.records.send_arguments import PartitionChoice, Serializers, checked_topic
from dualwrite.client.records.traces import record_tracer
from dualwrite.client.records.value_batch import records_factory
from dualwrite.client.sender import Sender
from dualwrite.client.transactions.manager import TransactionManager
from dualwrite.client.transactions.manifest import Manifest
from dualwrite.client.transactions.recovery import CoordinatorMemory
from dualwrite.client.transactions.states import ProducerState
from dualwrite.client.unfinished_on_close import failed_on_close, unfinished_on_close
from dualwrite.client.wanted_topics import WantedTopics
from dualwrite.client.wire.cluster import Lease
from dualwrite.client.wire.frames import ProduceEncoder
from dualwrite.config import ProducerConfig
from dualwrite.errors import DualWriteError, FatalError, IllegalStateError, InvalidRecordError, KafkaError
from dualwrite.guarantee import Guarantee
from dualwrite.prepared_state import PreparedTxnState

_NO_HEADERS: Final[list[Header]] = []


class _Mending:
    """Mends the accumulator if an exception of a signal's handler leaves its `with`, which is under the lock."""

    def __init__(self, core: ProducerCore) -> None:
        self._core = core

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._core.mend(error)


_log = logging.getLogger(__name__)


class ProducerCore:
    """The core of one producer. `call_soon` schedules a callback in the I/O loop, which is the loop of the cluster."""

    def __init__(
        self, config: ProducerConfig, lease: Callable[[], Lease], call_soon: Callable[[Callable[[], object]], object]
    ) -> None:
        self.config: Final = config
        self.lock: Final = threading.Lock()
        self.generation: Final = this_process.generation
        self._call_soon = call_soon
        self._wake_pending = False
        self.can_send_now = False
        """Whether a full batch could be sent when a batch was last opened; the caller may let the loop send it."""
        self.callbacks: Final = DeliveryCallbacks(self.lock, call_soon)
        self.serializers: Final = Serializers(config.key_serializer, config.value_serializer)
        self.choice: Final = PartitionChoice(config.partitioner)
        self.tracer: Final = record_tracer(config)
        self.sends_values_as_they_are: Final = (
            not self.serializers.any and self.choice.by_record is None and self.tracer is None
        )
        self._filling = self.choice.filling
        self._memory_waiter: Operation | None = None
        self._waits: list[Operation] = []
        self._deliveries: dict[Batch, Operation] = {}
        self._transaction_manager = _new_transaction_manager(config)
        self._manager: TransactionManager | IdempotenceManager = self._transaction_manager or IdempotenceManager(
            enabled=config.enable_idempotence, backoff=_retry_backoff(config)
        )
        self._accumulator = _accumulator(config)
        self._metrics = self._accumulator.metrics
        self._mending = _Mending(self)
        self._began: tuple[Operation, int] | None = None
        """The newest call of the transaction manager, and when it was made."""
        self._cluster = lease()  # after everything that may refuse the settings
        self._topology = self._cluster.topology
        self._sender = self._new_sender()

    def _new_sender(self) -> Sender:
        config = self.config
        return Sender(
            lock=self.lock,
            manager=self._manager,
            accumulator=self._accumulator,
            cluster=self._cluster,
            encoder=ProduceEncoder(
                transactional_id=config.transactional_id, acks=config.acks, timeout_ms=config.request_timeout_ms
            ),
            transactional=self._transaction_manager is not None,
            expects_responses=config.acks != 0,
            max_in_flight=config.max_in_flight_requests_per_connection,
            linger_ms=config.linger_ms,
            clock_ms=monotonic_ms,
            last_error=LastError(),
            unreachable_timeout_ms=config.unreachable_timeout_ms,
            on_obstructed=self._interrupt_waits,
        )

    def check_process(self) -> None:
        """Raise `IllegalStateError` in a forked child: nothing ends a wait there, nor the use of a lock by a thread."""
        if self.generation != this_process.generation:
            raise IllegalStateError("this producer belongs to the process before the fork; create a new one here")

    def wake(self) -> None:
        """Make the loop look for work. Further calls until it does are merged into one."""
        if not self._wake_pending:
            try:
                self._wake_pending = True
                self._call_soon(self._pump)
            except BaseException:  # of a signal handler; another thread may count on this wake-up
                self._wake_pending = False
                self._call_soon(self._sender.pump)
                raise

    def _pump(self) -> None:
        if self._wake_pending:  # else `start` has pumped in the meantime
            self._wake_pending = False
            self._sender.pump()

    # ---- state ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> ProducerState:
        """The producer's state."""
        return self._manager.state

    @property
    def prepared_txn_state(self) -> PreparedTxnState:
        """The producer id and epoch of the prepared transaction; empty if none is prepared."""
        manager = self._transaction_manager
        return PreparedTxnState() if manager is None else manager.transaction.prepared_state

    @property
    def next_prepared_state(self) -> PreparedTxnState:
        """The future prepared state of the open transaction, or else of the next one; empty while unknown."""
        self.check_process()
        with self.lock:
            return self.transaction_manager.next_prepared_state

    @property
    def manifest(self) -> Manifest | None:
        """Where the records of the prepared transaction are stored; None if none is prepared, or if unknown."""
        self.check_process()
        with self.lock:
            return self.transaction_manager.transaction.manifest(self._topology.cluster_id)

    @property
    def memory(self) -> CoordinatorMemory:
        """See `ParticipantBase.memory`."""
        with self.lock:
            return self.transaction_manager.memory

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee for a prepared transaction; raises `IllegalStateError` before `init_transactions()`."""
        return self.transaction_manager.guarantee

    @property
    def transaction_has_records(self) -> bool:
        """Whether the transaction has a record or an offset to commit."""
        return self._transaction_manager is not None and self._transaction_manager.transaction.has_records

    def metrics(self) -> dict[str, float]:
        """See `Producer.metrics()`."""
        self.check_process()
        with self.lock:
            return self._metrics.snapshot(
                buffer_total=self.config.buffer_memory,
                buffer_used=self._accumulator.buffer_used,
                in_flight=self._sender.produces_in_flight,
            )

    def obstacle(self, waited_ms: float) -> str:
        """Return the reason for a wait of that long: the last error since then, or the response that is missing."""
        return self._sender.obstacle(monotonic_ms() - waited_ms)

    def error_code_of(self, topic: str) -> int | None:
        """Return the error code with which Metadata was just answered for a topic; None if it was not."""
        return self._sender.error_code_of(topic)

    # ---- transactions ---------------------------------------------------------------------------------------

    @cached_property
    def transaction_manager(self) -> TransactionManager:
        """The transaction manager; `IllegalStateError` without a transactional id."""
        if self._transaction_manager is None:
            raise IllegalStateError("this producer has no transactional_id; set one to use transactions")
        return self._transaction_manager

    def begin_transaction(self) -> None:
        """Open a transaction. Sends no request; Kafka learns of the transaction with its first record."""
        manager = self.transaction_manager
        began_ns = time.perf_counter_ns()
        with self._manager.late_log, self.lock:
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

        `listener` is called when the operation ends; it is not called if the operation has ended already. `in_loop`:
        the caller runs in the I/O loop, so the requests of the call are sent before this returns.
        """
        with self._manager.late_log, self.lock:
            operation = call()
            self._cluster.retry_refused()
            if not operation.done:
                if listener is not None:
                    operation.listen(listener)
                if self._began is None or self._began[0] is not operation:
                    self._began = operation, time.perf_counter_ns()
        if not operation.done:
            if in_loop:
                self._wake_pending = False
                self._sender.pump()
            else:
                self.wake()
        return operation

    def give_up_waiting(self, operation: Operation, listener: Callable[[], None]) -> bool:
        """Stop notifying a caller that stops waiting. Return False if the operation has already ended."""
        with self.lock:
            operation.stop_listening(listener)
            return not operation.done

    def _interrupt_waits(self, error: KafkaError) -> None:
        """End all waits with `error`: the login is refused, or no broker can be reached. Called under the lock."""
        if self._transaction_manager is not None:
            self._transaction_manager.interrupt(error)
        for operation in self._waits:
            operation.interrupt(error)

    def _interruptible(self, operation: Operation) -> Operation:
        """Register an operation whose wait ends when no broker can be used. Call it under the lock."""
        self._cluster.retry_refused()
        self._waits = [wait for wait in self._waits if not wait.done and wait is not operation]
        self._waits.append(operation)
        return operation

    def acknowledge(self, operation: Operation) -> None:
        """Note that the caller has received the outcome of `operation`, so that another call may be made.

        Call it after `start` and the wait, but not after an interrupted wait: then the outcome is still to come.
        """
        with self.lock:
            self.transaction_manager.acknowledge(operation)
            if operation.done and self._began is not None and self._began[0] is operation:
                self._metrics.waited(operation.name, time.perf_counter_ns() - self._began[1])
                self._began = None

    # the methods from here to `send_offsets` are arguments of `start`

    def init_transactions(self, keep_prepared_txn: bool) -> Operation:
        """Take over the transactional id."""
        return self.transaction_manager.init_transactions(keep_prepared_txn)

    def prepare_transaction(self) -> Operation:
        """Flush and prepare."""
        return self._flushed(self.transaction_manager.prepare_transaction)

    def commit_transaction(self) -> Operation:
        """Flush and commit."""
        return self._flushed(self.transaction_manager.commit_transaction)

    def abort_transaction(self) -> Operation:
        """Drop unsent records and abort."""
        return self._flushed(self.transaction_manager.abort_transaction)

    def complete_transaction(
        self,
        state: PreparedTxnState,
        *,
        take_over: bool = True,
        fence_others: bool = True,
        is_over: bool = False,
    ) -> Operation:
        """Complete the prepared transaction."""
        return self._flushed(
            lambda: self.transaction_manager.complete_transaction(
                state, take_over=take_over, fence_others=fence_others, is_over=is_over
            )
        )

    def fence_others(self) -> Operation:
        """Fence producers that got the same responses in `complete_transaction(fence_others=False)`."""
        return self.transaction_manager.fence_others()

    def describe(self) -> Operation:
        """Describe the transactional id, for `is_current`."""
        return self.transaction_manager.describe()

    @property
    def is_current(self) -> bool:
        """Whether no other producer has used the id since this one, as far as `describe()` found."""
        with self.lock:
            return self.transaction_manager.is_current

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> Operation:
        """Commit consumed offsets with the transaction."""
        return self.transaction_manager.send_offsets(offsets, group)

    def _flushed(self, call: Callable[[], Operation]) -> Operation:
        """Make a call, and send open batches without lingering. If there are none, finish without waking the loop."""
        operation = call()
        with self._mending:
            self._accumulator.close_open_batches()
        if not operation.done and self._accumulator.incomplete == 0:
            self.transaction_manager.settle_without_kafka()
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
        """Return the record's batch and its index in it; or the operation that must end before another try."""
        if self.choice.by_record is not None:
            partition = self.choice.before_lock(topic, key, value, partition, self._topology.partitions(topic))
        with self.lock:
            self._manager.check_send()
            if partition is None and self.choice.by_record is not None:  # also if it has become known meanwhile
                return self._want_topic(topic)
            try:
                accepted = self._append(topic, value, key, headers, partition, timestamp_ms)
                return accepted if isinstance(accepted, Operation) else (accepted, accepted.record_count - 1)
            except BaseException as error:
                self.mend(error)
                raise

    def try_fill(self, topic: str, value: bytes, timestamp_ms: int) -> tuple[Batch, int] | None:
        """Append a record that has only a value to the batch being filled; return None if that has no room.

        Most records take this path, so it is as short as possible. `acquire()` and `release()` would take half of the
        time of `with`, but a `KeyboardInterrupt` between `acquire()` and `try` would leave the lock locked.
        """
        with self.lock:
            self._manager.check_send()
            batch = self._filling.get(topic)
            if batch is None or batch.queue.open is not batch:
                return None
            index = batch.record_count
            try:
                if batch.append(index, timestamp_ms, None, value, _NO_HEADERS) is None:
                    return None
                batch.record_count = index + 1
            except BaseException as error:
                self.mend(error)
                raise
            return batch, index

    def mend(self, error: BaseException) -> None:
        """Finish changes that an exception has interrupted. The record in hand may be sent. Call it under the lock."""
        if not isinstance(error, DualWriteError):
            self._accumulator.mend()
            if self._accumulator.incomplete:
                self._manager.accepted()
            self.wake()

    def _append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: list[Header],
        partition: int | None,
        timestamp_ms: int,
    ) -> Batch | Operation:
        """Append a record; return its batch, or the operation to wait for. Call it under the lock."""
        fills = partition is None and (key is None or (key == b"" and self.choice.empty_key_is_none))
        if fills:
            # Almost every record without a key goes to the same batch as the one before it.
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
        checked_topic(topic)
        self.wake()
        return self._interruptible(self._sender.want_topic(topic))

    def want_topics(self, topics: Collection[str], beside: Collection[str]) -> WantedTopics:
        """Request the partitions of those topics that are unknown, and of those in `beside`. Takes the lock."""
        with self.lock:
            unknown = [topic for topic in (*topics, *beside) if not self._topology.partitions(topic)]
            return WantedTopics({topic: self._want_topic(topic) for topic in unknown}, topics)

    def give_up_topics(self, wanted: WantedTopics) -> None:
        """Stop waiting for topics. Takes the lock."""
        with self.lock:
            wanted.give_up()

    def partitions(self, topic: str) -> int:
        """Return the number of partitions, 0 for an unknown topic."""
        return self._topology.partitions(topic)

    @contextmanager
    def any_size(self) -> Iterator[None]:
        """Accept records that are larger than `max.request.size`: the brokers decide about them."""
        self._accumulator.limits_size = False
        try:
            yield
        finally:
            self._accumulator.limits_size = True

    def _opened(self, batch: Batch, *, fills: bool) -> None:
        """Note that a batch got its first record. All its records are of one transaction, so once is enough."""
        self._manager.accepted()
        if fills:
            self._filling[batch.topic] = batch
        self._wake_for(batch)

    def _wake_for(self, batch: Batch) -> None:
        """Wake the loop if a batch is full now, or if it would sleep past the end of the new batch's lingering."""
        self.can_send_now = bool(batch.queue.closed) or self._accumulator.has_full_batches
        if self.can_send_now or batch.created_ms + self.config.linger_ms < self._sender.timer_at_ms:
            self.wake()

    # ---- many records at once (`client/records/bulk.py`) ----------------------------------------------------

    def partitions_of(self, topic: str) -> int | Operation:
        """Return the topic's number of partitions; or the operation that must end before it is known."""
        with self.lock:
            self._manager.check_send()
            return self._topology.partitions(topic) or self._want_topic(topic)

    def accept_records(
        self, topic: str, records: Iterable[ReadyRecord], took: Callable[[Batch, int, int], None]
    ) -> Operation | None:
        """Accept records in order and call `took` for each; return the operation that the next one must wait for."""
        with self.lock, self._mending:
            self._manager.check_send()
            for value, key, headers, partition, timestamp_ms in records:
                batch = self._append(topic, value, key, headers, partition, timestamp_ms)
                if isinstance(batch, Operation):
                    return batch
                took(batch, batch.record_count - 1, 1)
        return None

    def accept_values(
        self, topic: str, values: Sequence[bytes], timestamp_ms: int, took: Callable[[Batch, int, int], None]
    ) -> Operation | None:
        """Accept records that have only values: as `accept_records`, but many at a time."""
        with self.lock, self._mending:
            self._manager.check_send()
            at = 0
            while at < len(values):
                batch = self._append(topic, values[at], None, _NO_HEADERS, None, timestamp_ms)
                if isinstance(batch, Operation):
                    return batch
                first, at = batch.record_count - 1, at + 1
                more = batch.records.append_values(batch.record_count, timestamp_ms, values, at)
                batch.record_count += more
                took(batch, first, 1 + more)
                at += more
        return None

    def accept_encoded(self, topic: str, partition: int, encoded: EncodedBatch) -> Batch | Operation:
        """Accept a batch of records that are encoded already; or return the operation that it must wait for."""
        with self.lock, self._mending:
            self._manager.check_send()
            batch = self._accumulator.append_full(topic, partition, encoded, encoded.record_count, monotonic_ms())
            if batch is None:
                self.wake()
                return self._memory_freed()
            self._opened(batch, fills=True)
            return batch

    def deliveries_of(self, topic: str, batches: Iterable[Batch]) -> Operation:
        """Return an operation that ends when all the batches are acknowledged or failed. Takes the lock."""
        self.check_process()
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
        """Return an operation that ends when any batch is acknowledged or failed."""
        if self._memory_waiter is None or self._memory_waiter.done:
            waiter = Operation("buffer.memory")
            self._accumulator.close_open_batches()
            for batch in self._accumulator.incomplete_batches():
                batch.listen(lambda: None if waiter.done else waiter.end())
            self._memory_waiter = waiter
        return self._interruptible(self._memory_waiter)

    def delivery_of(self, batch: Batch) -> Operation:
        """Return an operation that ends when the batch is acknowledged or failed. Takes the lock."""
        self.check_process()
        with self.lock:
            operation = self._deliveries.get(batch)
            if operation is None:
                operation = Operation(f"a record for {batch.topic}-{batch.partition}")
                batch.listen(partial(self._delivered, batch, operation))
                if not operation.done:
                    self._deliveries[batch] = operation
            self._interruptible(operation)
        self.wake()
        return operation

    def _delivered(self, batch: Batch, operation: Operation) -> None:
        self._deliveries.pop(batch, None)
        operation.end()

    def flush(self) -> Operation:
        """Return an operation that ends when every record accepted so far is acknowledged or failed. Takes the lock."""
        with self.lock, self._mending:
            self._accumulator.close_open_batches()
            operation = self._all_ended("flush()", self._accumulator.incomplete_batches())
            began_ns = time.perf_counter_ns()
            operation.listen(lambda: self._metrics.waited("flush()", time.perf_counter_ns() - began_ns))
        self.wake()
        return operation

    # ---- the end --------------------------------------------------------------------------------------------

    def last_operation(self) -> Operation | None:
        """Return the operation to wait for before closing: the abort of an open transaction that is not prepared, or
        the pending call.
        """
        if self._transaction_manager is None:
            return self.flush()
        with self._manager.late_log, self.lock:
            operation = self._transaction_manager.operation_before_close()
            if operation is not None and self._accumulator.incomplete == 0:
                self._transaction_manager.settle_without_kafka()
        self.wake()
        return operation

    def log_failure_on_close(self, operation: Operation) -> None:
        """Log the failure, if any, of the call that `close()` waited for."""
        failed = failed_on_close(operation)
        if failed is not None:
            log_guarded(_log, failed.level, "%s", failed.message)

    def mark_closed(self, *, pending: bool, hand_over: bool = False) -> None:
        """Refuse further calls, end all waits with an error, and log the calls and transactions left unfinished.

        `pending`: a call has no outcome yet; `hand_over`: a prepared transaction is left to another process on purpose.
        """
        with self._manager.late_log, self.lock:
            if self.state is ProducerState.CLOSED:
                return
            unfinished = unfinished_on_close(
                self.state,
                self.prepared_txn_state,
                self.config,
                pending=pending,
                hand_over=hand_over,
                bounded_ms=None if self._transaction_manager is None else self._transaction_manager.bounded_ms,
            )
            if unfinished is not None:
                self._manager.late_log.note(_log, unfinished.level, "%s", unfinished.message)
            self._manager.close(FatalError("the producer was closed before this ended, so its outcome is unknown"))

    async def close(self) -> None:
        """Close the connections; unacknowledged records fail. Call it in the loop."""
        await self._sender.close()


def _retry_backoff(config: ProducerConfig) -> Backoff:
    return Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)


def _new_transaction_manager(config: ProducerConfig) -> TransactionManager | None:
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
        new_records=records_factory(transactional=transactional, batch_size=config.batch_size),
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
