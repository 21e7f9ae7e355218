"""The transactional Kafka producer with two-phase commit (KIP-98, KIP-890, KIP-939), for threads."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType
from typing import Any, Final, Self

from dualwrite.client.io_thread import IoThread, process_generation, shared_io_thread
from dualwrite.client.producer_base import BlockedSend, ProducerBase
from dualwrite.client.records.builder import Header
from dualwrite.client.records.bulk import BulkSend
from dualwrite.client.records.delivery import OnDelivery
from dualwrite.client.records.record import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    Record,
    RecordMetadata,
    StoredRecords,
    TopicPartition,
)
from dualwrite.client.records.record_future import RecordFuture, SentRecords, Waiter
from dualwrite.client.transactions.block import LEAVING, not_aborted
from dualwrite.client.transactions.group_metadata import group_of, positions_of
from dualwrite.client.transactions.operations import Operation
from dualwrite.client.transactions.states import ProducerState
from dualwrite.config import ProducerConfig
from dualwrite.errors import IllegalStateError
from dualwrite.prepared_state import PreparedTxnState

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
]

_CLOSE_CONNECTIONS_TIMEOUT_S: Final = 5.0

_log = logging.getLogger(__name__)


class Producer(ProducerBase[RecordFuture]):
    """A Kafka producer. Settings by Kafka's names: a mapping with dots, or keywords with underscores.

    Without a `transactional.id`: `send`, `flush`, `close`. With one: `init_transactions` once, then transactions.
    With `transaction.two.phase.commit.enable` too, a transaction can be prepared: it then survives this producer until
    a producer with the same id completes it (KIP-939).

    May be used by several threads; all transactional calls belong to one transaction at a time. Not usable in a child
    after `os.fork()`: create a new one there. Every wait is bounded by `max.block.ms`; when that is up,
    `KafkaTimeoutError` says so, nothing is decided, and only the same call may be repeated (or `close()` called).

    Raises `ConfigError` for settings that are unknown, malformed or contradict each other.
    """

    _future = RecordFuture

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self._closed = True  # for __del__, should the next lines raise
        parsed = ProducerConfig.parse(config, settings)
        self._io: IoThread = shared_io_thread()
        super().__init__(parsed, self._io.loop, self._io.call_soon)
        self._sends_values_as_they_are = self._engine.sends_values_as_they_are
        self._closed = False

    # ---- transactions ---------------------------------------------------------------------------------------

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """Take the transactional id over; other producers with it are fenced. Once, before any transaction.

        What the id's past left open is aborted, or with `keep_prepared_txn` kept: the state is then
        PREPARED_TRANSACTION, `prepared_txn_state` names it, and `complete_transaction` decides it (KIP-939).
        Where `guarantee` is not of tier 1, nothing is fenced or changed until `complete_transaction`, or else until
        the first record is sent: what is there is only looked at.

        Raises `AuthorizationError` (may be repeated), `UnsupportedByBrokerError`, `FencedError`, `KafkaTimeoutError`.
        """
        self._run(lambda: self._engine.init_transactions(keep_prepared_txn))

    def begin_transaction(self) -> None:
        """Open a transaction. Local; Kafka hears of it with its first record."""
        self._check_process()
        self._engine.begin_transaction()

    def transaction(self) -> Transaction:
        """`with producer.transaction():` begins a transaction, and commits it at the end of the block.

        An exception in the block aborts it; one of the commit that says so (`AbortableError`), too. Not aborted is what
        may be decided already: a transaction that the block prepared, and a commit without an outcome. The exception
        says then, in a note, how to find out.
        """
        return Transaction(self)

    def prepare_transaction(self) -> PreparedTxnState:
        """Flush, and promise that this transaction can be committed. Its identity, to be stored with the decision.

        Sends no request of its own (KIP-939). Raises `InvalidTxnStateError` without two-phase commit, and
        `AbortableError` when a record could not be stored.
        """
        self._run(self._engine.prepare_transaction)
        return self._engine.prepared_txn_state

    def complete_transaction(self, state: PreparedTxnState, *, take_over: bool = True) -> None:
        """Commit the prepared transaction if `state` names it, else abort it (KIP-939).

        After `init_transactions(keep_prepared_txn=True)` that found nothing open, this does nothing, or (where
        `guarantee` is not of tier 1) compares `state` with how the last transaction ended, and takes the id over.
        Raises `PreparedTransactionLost` when the broker has aborted what `state` names, each time, until
        `init_transactions()` is called without keeping; `InvalidTxnStateError` when nothing is prepared; `TypeError`
        for anything but a `PreparedTxnState` (a stored text goes through `PreparedTxnState(text)`), because what
        compares unequal would abort; else as `commit_transaction`.

        `take_over=False` is for who completes what others prepared, and begins no transaction: where `guarantee` is not
        of tier 1, a commit is then EndTxn with the stored pair and no request more, and with transaction.version 2 an
        abort is EndTxn with the pair that was found. Nothing that others opened since can be hit by it.
        """
        checked = self._checked_prepared(state)
        self._run(lambda: self._engine.complete_transaction(checked, take_over=take_over))

    def _complete_first(self, state: PreparedTxnState) -> None:
        """`complete_transaction` for who looks at its lock again: the id is this producer's alone after `_own`."""
        checked = self._checked_prepared(state)
        self._run(lambda: self._engine.complete_transaction(checked, own=False))

    def _own(self) -> None:
        """Fence whoever was answered as this producer was in `_complete_first`."""
        self._run(self._engine.own)

    def _is_current(self) -> bool:
        """Between transactions: whether nobody has used the transactional id since. Asks the coordinator."""
        self._run(self._engine.describe)
        return self._engine.is_current

    def commit_transaction(self) -> None:
        """Flush and commit. Returns when Kafka has decided to commit; the records become visible right after.

        Raises `AbortableError` (abort it instead), `FencedError`, `FatalError`, `KafkaTimeoutError` (repeat it).
        `CommitOutcomeUnknown` (a `FatalError`) says that a commit was sent, not answered, and cannot be asked for.
        """
        self._run(self._engine.commit_transaction)

    def start_commit(self) -> None:
        """Begin what `commit_transaction()` does, and do not wait for it; `commit_transaction()` then joins it.

        Until that has returned, no other transaction can be begun. Raises what forbids to commit now.
        """
        self._check_process()
        self._engine.start(self._engine.commit_transaction)

    def abort_transaction(self) -> None:
        """Drop what is unsent, and abort. Raises `FencedError`, `FatalError`, `KafkaTimeoutError` (repeat it)."""
        self._run(self._engine.abort_transaction)

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[Any, Any] | Iterable[Any],
        group_metadata: Any,
    ) -> None:
        """Commit consumed positions of a group together with this transaction (KIP-447).

        `offsets` is a mapping by `TopicPartition` to numbers or `OffsetAndMetadata`, kafka-python's and aiokafka's
        too, or the list that `position()` of a confluent-kafka consumer gives; an offset is that of the next record
        to read. `group_metadata` is what the consumer says of itself: `group_metadata()` of kafka-python,
        `consumer_group_metadata()` of confluent-kafka, an aiokafka consumer, or a `ConsumerGroupMetadata`. With a
        group id alone, Kafka cannot refuse a consumer that has lost its partitions.

        Raises `AbortableError` (a consumer that is no longer a member, for one), `FencedError`, `KafkaTimeoutError`;
        `TypeError` and `ValueError` for what is neither of these, and nothing was sent then.
        """
        group = group_of(group_metadata)
        positions = positions_of(offsets)
        if positions:
            self._run(lambda: self._engine.send_offsets(positions, group))

    # ---- records --------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> RecordFuture:
        """Hand a record over; it is sent within `linger.ms`, or with the next flush, prepare or commit.

        Key and value are bytes, texts (sent as UTF-8) or None, or what `key.serializer` and `value.serializer` take.
        Without `partition`, the setting `partitioner` decides (default: as in Kafka's own client). `timestamp_ms` is
        milliseconds since 1970 (default: now). `on_delivery(metadata, error)` is called once, with None for one of
        the two, in the I/O thread that all producers share: it should be quick, may send records, and cannot wait for
        anything of a producer; what it raises is logged. Blocks only for metadata of a new topic and for
        `buffer.memory`, up to `max.block.ms`.

        Raises `InvalidRecordError` (nothing was sent), `IllegalStateError`, `AbortableError`, `KafkaTimeoutError`.
        """
        if self._generation != process_generation():
            self._check_process()
        # what most records are: the rest of this function would cost as much again as encoding them
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
            filled = self._engine.try_fill(topic, value, time_ms)
            if filled is not None:
                batch, index = filled
                return RecordFuture(batch, index, time_ms, self._engine)
        handed = self._hand_over(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        return handed if type(handed) is RecordFuture else self._send_when_possible(handed)

    def _send_checked(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: list[Header],
        partition: int | None,
        timestamp_ms: int,
    ) -> RecordFuture:
        """`send()` of a record that has passed its checks and its serializers, as those of a dual write have."""
        self._check_process()
        handed = self._accept(topic, value, key, headers, partition, timestamp_ms)
        return handed if type(handed) is RecordFuture else self._send_when_possible(handed)

    def _send_when_possible(self, handed: RecordFuture | BlockedSend) -> RecordFuture:
        deadline_s = self._deadline_s()
        while isinstance(handed, BlockedSend):
            self._wait_to_send(handed.reason, handed.topic, deadline_s, handed.fate)
            handed = self._accept_again(handed)
        return handed

    def send_batch(self, topic: str, records: Any) -> SentRecords:
        """Hand many records of a topic over at once: faster than `send()`, and checked as a whole.

        `records` is an iterable of values, pairs `(key, value)`, mappings with names as in `Record`, or `Record`s (a
        value that is itself a tuple or a mapping needs one). Or it is an Arrow table: anything with Arrow's C
        interface, as `pyarrow.RecordBatch` and `Table`, whose columns are `value` and, where wanted, `key` (binary or
        string of any kind), `headers` (a map, or a list of structs of `key` and `value`), `partition` (whole numbers)
        and `timestamp` or `timestamp_ms` (timestamps, or milliseconds since 1970); a null is a record without it.
        Arrow's columns are bytes: serializers are not asked, and a `partitioner` of your own costs a call per row.

        Records keep their order within each partition. An iterable is read to its end first. `InvalidRecordError`
        says which record is wrong, and then none was sent. Blocks as `send()`, up to `max.block.ms` in all, while the
        records do not fit into `buffer.memory`: `KafkaTimeoutError` says how many of them were
        accepted. Raises also `IllegalStateError`, `AbortableError`, and `ConfigError` where a package is missing.
        """
        self._check_process()
        bulk = BulkSend(self._engine, topic, records)
        deadline_s = self._deadline_s()
        while (operation := bulk.advance()) is not None:
            self._wait_to_send(operation, topic, deadline_s, bulk.progress)
        return SentRecords(topic, bulk.parts, bulk.record_count, self._engine)

    def _wait_to_send(self, operation: Operation, topic: str, deadline_s: float, fate: Callable[[], str]) -> None:
        waiter = self._new_waiter()
        with self._engine.lock:
            operation.listen(waiter.wake)
        if not waiter.wait(deadline_s - time.monotonic()):
            self._engine.give_up_waiting(operation, waiter.wake)
            raise self._not_sent(operation, topic, fate())
        if operation.error is not None:
            raise operation.error

    def flush(self) -> None:
        """Wait until every record sent so far has its fate; their futures and the commit tell which."""
        self._check_process()
        waiter = self._new_waiter()
        operation = self._engine.flush()
        with self._engine.lock:
            operation.listen(waiter.wake)
        waiter.wait(None)
        if operation.error is not None:
            raise operation.error

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self, timeout_s: float | None = None, *, hand_over: bool = False) -> None:
        """Let go of the connections; idempotent.

        Within `timeout_s` seconds (default `max.block.ms`): without transactions, unsent records are flushed; a
        transaction that is open is aborted; one that is being ended is waited for. A prepared transaction is never
        ended here: it stays in doubt, by design, until the next owner of its id completes it. A warning says so, unless
        it is left with `hand_over` to somebody who has its state and will complete it.
        """
        if self._closed:
            return
        self._closed = True
        if self._generation != process_generation() or sys.is_finalizing():
            return  # a forked child's copy, whose connections are the parent's; or the I/O thread has been stopped
        ended = self._end_open_transaction(self._deadline_s() if timeout_s is None else time.monotonic() + timeout_s)
        self._engine.mark_closed(pending=not ended, hand_over=hand_over)
        try:
            self._io.start(self._engine.close()).result(_CLOSE_CONNECTIONS_TIMEOUT_S)
        except FutureTimeoutError:
            _log.warning("the connections did not close within %g s", _CLOSE_CONNECTIONS_TIMEOUT_S)

    def _end_open_transaction(self, deadline_s: float) -> bool:
        """Whether nothing is pending any more."""
        waiter = self._new_waiter()
        operation = self._engine.last_operation()
        if operation is None:
            return True
        with self._engine.lock:
            operation.listen(waiter.wake)
        if not waiter.wait(deadline_s - time.monotonic()):
            return operation.done
        if operation.error is not None:
            _log.warning("%s failed while closing: %s", operation.name, operation.error)
        return operation.done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        """Dropped without `close()`: as if the process had crashed. Connections go, no transaction is ended."""
        if not self._closed and self._generation == process_generation() and not sys.is_finalizing():
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            self._io.start(self._engine.close())

    # ---- waiting --------------------------------------------------------------------------------------------

    def _run(self, call: Callable[[], Operation]) -> None:
        """Make a call and wait for it in this thread."""
        self._check_process()
        waiter = self._new_waiter()
        operation = self._engine.start(call, waiter.wake)
        if not operation.done:
            self._wait(operation, waiter)
        self._engine.heard(operation)  # also where it ended before it could be waited for
        if operation.error is not None:
            raise operation.error

    def _wait(self, operation: Operation, waiter: Waiter) -> None:
        try:
            ended = waiter.wait(self._config.max_block_ms / 1000)
        except BaseException:  # KeyboardInterrupt: the caller will not hear how it ends
            self._engine.give_up_waiting(operation, waiter.wake)
            raise
        if not ended and self._engine.give_up_waiting(operation, waiter.wake):
            raise self._no_answer(operation)

    def _new_waiter(self) -> Waiter:
        if self._io.is_current:
            raise IllegalStateError("a producer cannot be waited for in its own I/O thread")
        if sys.is_finalizing():
            raise IllegalStateError("the interpreter is shutting down and has stopped the producer's I/O thread")
        return Waiter()

    def _deadline_s(self) -> float:
        return time.monotonic() + self._config.max_block_ms / 1000


class Transaction:
    """A transaction as a block, see `Producer.transaction()`."""

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
        leaving = LEAVING[self._producer.state]
        if leaving.note is not None:
            error.add_note(leaving.note)
        if leaving.abort:
            try:
                self._producer.abort_transaction()
            except Exception as failed:
                error.add_note(not_aborted(failed))
