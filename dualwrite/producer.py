"""The Kafka producer for threads: transactions and two-phase commit (KIP-98, KIP-890, KIP-939)."""

from __future__ import annotations

import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from dualwrite.client.io_thread import IoThread, shared_io_thread, this_process
from dualwrite.client.monotonic import monotonic_s
from dualwrite.client.operations import Operation
from dualwrite.client.producer_base import BlockedSend, ProducerBase
from dualwrite.client.records.bulk import BulkSend
from dualwrite.client.records.delivery import OnDelivery
from dualwrite.client.records.record import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    Record,
    RecordHeaders,
    RecordMetadata,
    StoredRecords,
    TopicPartition,
)
from dualwrite.client.records.record_future import RecordFuture, SentRecords, Waiter
from dualwrite.client.records.traces import end_unsent
from dualwrite.client.transactions.group_metadata import aiokafka_group_metadata, group_of, positions_of
from dualwrite.client.transactions.states import BLOCK_EXITS, ProducerState, abort_failed_note
from dualwrite.config import ProducerConfig
from dualwrite.errors import DualWriteError, IllegalStateError
from dualwrite.guarded import pass_on_signal
from dualwrite.monkey_patches import FIRST_LOCK
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.settings import ProducerSettings

__all__ = [
    "ConsumerGroupMetadata",
    "OffsetAndMetadata",
    "Producer",
    "ProducerState",
    "Record",
    "RecordFuture",
    "RecordMetadata",
    "SentRecords",
    "StoredRecords",
    "TopicPartition",
    "Transaction",
    "aiokafka_group_metadata",
]

ResultT = TypeVar("ResultT")

_CLOSE_CONNECTIONS_TIMEOUT_S: Final = 5.0

_log = logging.getLogger(__name__)


class Producer(ProducerBase[RecordFuture]):
    """A Kafka producer. Settings by Kafka's names: a mapping with dots, or keywords with underscores.

    Without a `transactional.id`: `send`, `flush`, `close`. With one: `init_transactions` once, then transactions.
    With `transaction.two.phase.commit.enable` too, a transaction can be prepared: it then survives this producer until
    a producer with the same id completes it (KIP-939).

    May be used by several threads; there is one transaction at a time, to which all their transactional calls belong.
    Not usable in a child process after `os.fork()`: create a new producer there. Every wait is bounded by
    `max.block.ms`; after that time `KafkaTimeoutError` is raised: the call may still take effect, and only the same
    call may be repeated (or `close()` called).

    Raises `ConfigError` for settings that are unknown, malformed or contradict each other.
    """

    _future = RecordFuture
    _closed = True  # for `__del__`, if `__init__` raises

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Unpack[ProducerSettings]) -> None:
        parsed = ProducerConfig.parse(config, settings)
        self._io: IoThread = shared_io_thread()
        super().__init__(parsed, self._io.loop, self._io.loop.call_soon_threadsafe)
        self._sends_values_as_they_are = self._core.sends_values_as_they_are
        self._closed = False

    # ---- transactions ---------------------------------------------------------------------------------------

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """Take over the transactional id, and fence other producers with it. Call once, before any transaction.

        An open transaction of an earlier producer is aborted, or with `keep_prepared_txn` kept: the state is then
        PREPARED_TRANSACTION, `prepared_txn_state` names it, and `complete_transaction` decides it (KIP-939).
        If `guarantee` is not of tier 1, the id is only described: nothing is fenced or changed until
        `complete_transaction` is called, or else until the first record is sent.

        Raises `AuthorizationError` (may be repeated), `UnsupportedByBrokerError`, `FencedError`, `KafkaTimeoutError`.
        """
        self._run(lambda: self._core.init_transactions(keep_prepared_txn))

    def begin_transaction(self) -> None:
        """Open a transaction. Sends no request; Kafka learns of the transaction with its first record."""
        if self._generation != this_process.generation or threading.Lock is not FIRST_LOCK:
            self._check_process()
        self._core.begin_transaction()

    def transaction(self) -> Transaction:
        """Return a context manager: begin a transaction, and commit it at the end of the `with` block.

        An exception in the block aborts the transaction, and so does an `AbortableError` of the commit. A transaction
        that may be decided already is not aborted: one that the block prepared, or one whose commit has no outcome
        yet. The exception then has a note that says how to find the outcome.
        """
        return Transaction(self)

    def prepare_transaction(self) -> PreparedTxnState:
        """Flush, and promise that this transaction can be committed.

        Returns its producer id and epoch, to be stored with the decision. Sends no request of its own (KIP-939).
        Raises `InvalidTxnStateError` without two-phase commit, and `AbortableError` if a record could not be stored.
        """
        self._run(self._core.prepare_transaction)
        return self._core.prepared_txn_state

    def complete_transaction(self, state: PreparedTxnState, *, take_over: bool = True) -> None:
        """Commit the prepared transaction if `state` names it, else abort it (KIP-939).

        After an `init_transactions(keep_prepared_txn=True)` that found nothing open, this does nothing, or (if
        `guarantee` is not of tier 1) compares `state` with how the last transaction ended, and takes the id over.
        Raises `PreparedTransactionLost` if the broker has aborted the transaction that `state` names; each recovery
        raises it again until `init_transactions()` is called without `keep_prepared_txn`. Raises `InvalidTxnStateError`
        if nothing is prepared; `TypeError` for anything but a `PreparedTxnState` (convert a stored text with
        `PreparedTxnState(text)`), because a value that compares unequal would abort; else as `commit_transaction`.

        `take_over=False` is for processes that complete transactions of others and begin none: if `guarantee` is not
        of tier 1, a commit is then EndTxn with the stored producer id and epoch and no further request, and with
        transaction.version 2 an abort is EndTxn with the id and epoch that were found. Neither can affect a transaction
        that another producer has opened since.
        """
        checked = self._checked_prepared(state)
        self._run(lambda: self._core.complete_transaction(checked, take_over=take_over))

    def commit_transaction(self) -> None:
        """Flush and commit. Returns when Kafka has decided to commit; the records become visible right after.

        Raises `AbortableError` (abort it instead), `FencedError`, `FatalError`, `KafkaTimeoutError` (repeat it).
        `CommitOutcomeUnknown` (a `FatalError`) says that a commit was sent, got no response, and cannot be repeated.
        """
        self._run(self._core.commit_transaction)

    def abort_transaction(self) -> None:
        """Drop unsent records, and abort. Raises `FencedError`, `FatalError`, `KafkaTimeoutError` (repeat it)."""
        self._run(self._core.abort_transaction)

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[Any, Any] | Iterable[Any],
        group_metadata: Any,
    ) -> None:
        """Commit consumed offsets of a group together with this transaction (KIP-447).

        `offsets` is a mapping of `TopicPartition` to numbers or `OffsetAndMetadata` (kafka-python's and aiokafka's
        too), or the list that `position()` of a confluent-kafka consumer returns; an offset is that of the next record
        to read. `group_metadata` identifies the consumer: `group_metadata()` of kafka-python,
        `consumer_group_metadata()` of confluent-kafka, `aiokafka_group_metadata(consumer)` as it was when the records
        were read, or a `ConsumerGroupMetadata`. With a group id alone, Kafka cannot refuse a consumer that has lost its
        partitions.

        Raises `AbortableError` (for example if the consumer is no longer a member), `FencedError`,
        `KafkaTimeoutError`; `TypeError` and `ValueError` for other arguments, and then nothing was sent.
        """
        group = group_of(group_metadata)
        positions = positions_of(offsets)
        if positions:
            self._run(lambda: self._core.send_offsets(positions, group))

    # ---- records --------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: RecordHeaders | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> RecordFuture:
        """Queue a record; it is sent within `linger.ms`, or with the next flush, prepare or commit.

        Key and value are bytes, strings (sent as UTF-8) or None, or values for `key.serializer` and `value.serializer`.
        Without `partition`, the setting `partitioner` decides (default: as in Kafka's own client). `timestamp_ms` is
        milliseconds since 1970 (default: now). `on_delivery(metadata, error)` is called once, with None for one of
        the two, in the I/O thread that all producers share: it should be quick, may send records, and must not wait
        for a producer; an exception that it raises is logged. Blocks only for metadata of a new topic and for
        `buffer.memory`, up to `max.block.ms`.

        Raises `InvalidRecordError` (nothing was sent), `IllegalStateError`, `AbortableError`, `KafkaTimeoutError`.
        """
        if self._generation != this_process.generation or threading.Lock is not FIRST_LOCK:
            self._check_process()
        # Most records take this path; the rest of this function would cost as much again as encoding them.
        if (
            type(value) is bytes
            and key is None
            and headers is None
            and partition is None
            and timestamp_ms is None
            and on_delivery is None
            and self._sends_values_as_they_are
            and type(topic) is str
        ):
            time_ms = time.time_ns() // 1_000_000
            filled = self._core.try_fill(topic, value, time_ms)
            if filled is not None:
                batch, index = filled
                return RecordFuture(batch, index, time_ms, self._core)
        queued = self._check_and_queue(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        return queued if type(queued) is RecordFuture else self._send_when_possible(queued)

    def _send_when_possible(self, queued: RecordFuture | BlockedSend) -> RecordFuture:
        deadline_s = self._deadline_s()
        while isinstance(queued, BlockedSend):
            on_delivery = queued.on_delivery
            try:
                self._wait_to_send(queued.reason, queued.topic, deadline_s, queued.progress)
                queued = self._try_again(queued)
            except BaseException as error:
                end_unsent(on_delivery, error)
                raise
        return queued

    def send_batch(self, topic: str, records: Any) -> SentRecords:
        """Queue many records of a topic at once: faster than `send()`, and all are checked before any is sent.

        `records` is an iterable of values, pairs `(key, value)`, mappings with the field names of `Record`, or
        `Record`s (a value that is itself a tuple or a mapping needs one). Or it is an Arrow table: an object with
        Arrow's C interface, such as `pyarrow.RecordBatch` and `Table`, with a column `value` and, optionally, `key`
        (binary or string of any kind), `headers` (a map, or a list of structs of `key` and `value`), `partition`
        (integers) and `timestamp` or `timestamp_ms` (timestamps, or milliseconds since 1970); a null means that the
        record has none. Arrow's columns are bytes: serializers are not called, and a custom `partitioner` costs a call
        per row.

        Records keep their order within each partition. An iterable is read to its end first. `InvalidRecordError`
        names the wrong record, and then none was sent. Blocks like `send()`, up to `max.block.ms` in all, while the
        records do not fit into `buffer.memory`: `KafkaTimeoutError` says how many of them were accepted. Also raises
        `IllegalStateError`, `AbortableError`, and `ConfigError` if a package is missing.
        """
        self._check_process()
        bulk = BulkSend(self._core, topic, records)
        deadline_s = self._deadline_s()
        while (operation := bulk.advance()) is not None:
            self._wait_to_send(operation, bulk.topic, deadline_s, bulk.progress)
        return SentRecords(bulk.topic, bulk.parts, bulk.record_count, self._core)

    def _wait_to_send(self, operation: Operation, topic: str, deadline_s: float, progress: Callable[[], str]) -> None:
        waiter = self._new_waiter()
        with self._core.lock:
            operation.listen(waiter.wake)
        if not waiter.wait(deadline_s - monotonic_s()):
            self._core.give_up_waiting(operation, waiter.wake)
            raise self._not_sent(operation, topic, progress())
        operation.raise_error()

    def flush(self) -> None:
        """Wait until every sent record is acknowledged or has failed; their futures and the commit report failures."""
        self._check_process()
        waiter = self._new_waiter()
        operation = self._core.flush()
        with self._core.lock:
            operation.listen(waiter.wake)
        waiter.wait(None)
        operation.raise_error()

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self, timeout_s: float | None = None, *, hand_over: bool = False) -> None:
        """Close the connections; idempotent.

        Within `timeout_s` seconds (default `max.block.ms`): without transactions, unsent records are flushed; an open
        transaction is aborted; one that is being ended is waited for. A prepared transaction is never ended here: it
        stays in doubt, by design, until the next owner of its id completes it. A warning says so, unless `hand_over`
        says that another process has its state and will complete it.
        """
        if self._closed:
            return
        self._closed = True
        if self._generation != this_process.generation or sys.is_finalizing():
            return  # a forked child's copy, whose connections belong to the parent; or the I/O thread was stopped
        ended = False
        try:
            ended = self._end_open_transaction(self._deadline_s() if timeout_s is None else monotonic_s() + timeout_s)
        finally:  # also after an interruption: `close` is not called again
            try:
                self._core.mark_closed(pending=not ended, hand_over=hand_over)
            finally:
                closing = self._io.start(self._core.close())
        try:
            closing.result(_CLOSE_CONNECTIONS_TIMEOUT_S)
        except FutureTimeoutError:
            _log.warning("the connections did not close within %g s", _CLOSE_CONNECTIONS_TIMEOUT_S)

    def _end_open_transaction(self, deadline_s: float) -> bool:
        """End an open transaction, or flush; return whether nothing is pending."""
        waiter = self._new_waiter()
        operation = self._core.last_operation()
        if operation is None:
            return True
        with self._core.lock:
            operation.listen(waiter.wake)
        if not waiter.wait(deadline_s - monotonic_s()):
            return operation.done
        self._core.log_failure_on_close(operation)
        return operation.done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Behave as in a crash if `close()` was not called: close the connections, and end no transaction."""
        if is_finalizing():
            return  # a module's names may be None by now
        if not self._closed and self._generation == this_process.generation:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            self._io.start(self._core.close())

    # ---- waiting --------------------------------------------------------------------------------------------

    def _run(self, call: Callable[[], Operation]) -> None:
        """Make a call, and block this thread until it ends."""
        if self._generation != this_process.generation:
            self._check_process()
        if threading.get_ident() == self._io.ident or sys.is_finalizing():
            self._check_may_wait()
        waiter = Waiter()
        operation = self._core.start(call, waiter.wake)
        if not operation.done:
            try:
                ended = waiter.wait(self.max_block_ms / 1000)
            except BaseException:  # KeyboardInterrupt: the caller will not get the outcome
                self._core.give_up_waiting(operation, waiter.wake)
                raise
            if not ended and self._core.give_up_waiting(operation, waiter.wake):
                raise self._no_outcome(operation)
        self._core.acknowledge(operation)  # even if it ended before it could be waited for
        operation.raise_error()

    def _read(self, reading: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run a coroutine that reads the log in the I/O thread, and block this thread until it ends."""
        try:
            self._check_process()
            self._check_may_wait()
        except DualWriteError:
            reading.close()
            raise
        result = self._io.start(reading)
        try:
            return result.result()
        except BaseException:  # KeyboardInterrupt, for example
            result.cancel()
            raise

    def _new_waiter(self) -> Waiter:
        if threading.get_ident() == self._io.ident or sys.is_finalizing():
            self._check_may_wait()
        return Waiter()

    def _check_may_wait(self) -> None:
        if threading.get_ident() == self._io.ident:
            raise IllegalStateError("cannot wait for a producer in its own I/O thread")
        if sys.is_finalizing():
            raise IllegalStateError("the interpreter is shutting down and has stopped the producer's I/O thread")

    def _deadline_s(self) -> float:
        return monotonic_s() + self.max_block_ms / 1000


class Transaction:
    """A transaction as a `with` block, see `Producer.transaction()`."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __enter__(self) -> Producer:
        self._producer.begin_transaction()
        return self._producer

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is not None:
            self._leave_by(exc)
            return
        try:
            self._producer.commit_transaction()
        except BaseException as error:
            self._leave_by(error)
            raise

    def _leave_by(self, error: BaseException) -> None:
        block_exit = BLOCK_EXITS[self._producer.state]
        if block_exit.note is not None:
            error.add_note(block_exit.note)
        if block_exit.abort:
            try:
                self._producer.abort_transaction()
            except Exception as failed:
                pass_on_signal(failed)
                error.add_note(abort_failed_note(failed))
