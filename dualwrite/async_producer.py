"""The Kafka producer for asyncio: transactions and two-phase commit (KIP-98, KIP-890, KIP-939).

It runs in the event loop in which it was created, asyncio's or uvloop's, and has no thread.

Cancellation: an operation goes on when the call that waits for it is cancelled. It may still take effect, so its
outcome is kept until the same call is made again, which joins it; other calls are refused until then, except that an
abort may replace a prepare or the sending of offsets. A record that `send()` had not queued yet when it was cancelled
is not sent.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from dualwrite.client.io_thread import shared_io_thread, this_process
from dualwrite.client.operations import Operation
from dualwrite.client.producer_base import BlockedSend, ProducerBase
from dualwrite.client.producer_core import ProducerCore
from dualwrite.client.records.bulk import BulkSend
from dualwrite.client.records.delivery import OnDelivery
from dualwrite.client.records.record import RecordHeaders, RecordMetadata, StoredRecords
from dualwrite.client.records.record_future import BaseRecordFuture, BaseSentRecords
from dualwrite.client.records.traces import end_unsent
from dualwrite.client.transactions.group_metadata import group_of, positions_of
from dualwrite.client.transactions.states import BLOCK_EXITS, abort_failed_note
from dualwrite.config import ProducerConfig
from dualwrite.errors import IllegalStateError
from dualwrite.guarded import pass_on_signal
from dualwrite.monkey_patches import FIRST_LOCK
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.settings import ProducerSettings

__all__ = ["AsyncProducer", "AsyncRecordFuture", "AsyncSentRecords", "AsyncTransaction", "run_in_background"]

ResultT = TypeVar("ResultT")


def run_in_background(coroutine: Coroutine[Any, Any, ResultT]) -> Future[ResultT]:
    """Run a coroutine in the I/O thread that all `Producer`s of this process share; call it from any other thread.

    An `AsyncProducer` that is created in the coroutine shares their connections, so a thread can use many producers at
    once without a loop of its own. The coroutine must not block: all producers would wait for it.
    """
    return shared_io_thread().start(coroutine)


class _Waiter:
    """A task that waits for one event."""

    __slots__ = ("_future", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[bool] = loop.create_future()

    def wake(self) -> None:
        if not self._future.done():
            self._future.set_result(True)

    def _give_up(self) -> None:
        if not self._future.done():
            self._future.set_result(False)

    async def wait(self, timeout_s: float | None) -> bool:
        if timeout_s is None:
            return await self._future
        timer = self._loop.call_later(max(timeout_s, 0.0), self._give_up)
        try:
            return await self._future
        finally:
            timer.cancel()


class AsyncRecordFuture(BaseRecordFuture):
    """The fate of one sent record: `await` it, as often as you like; cancelling the wait changes nothing."""

    __slots__ = ()

    async def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Return where the record is stored; in a transaction, it is stored before it is committed.

        Waits up to `timeout_s` seconds (None: until known, at most about `delivery.timeout.ms`).
        Raises `KafkaTimeoutError` when the time is up, `DeliveryError` or `FatalError` if it was not stored.
        """
        if not self.done():
            completion = self._completion()
            self._check_waited(completion, await _wait(self._core, completion, timeout_s), timeout_s)
        return self._outcome()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return self.result().__await__()


class AsyncSentRecords(BaseSentRecords):
    """The fates of the records of one `send_batch()`: `await` it, as often as you like."""

    __slots__ = ()

    async def result(self, timeout_s: float | None = None) -> list[StoredRecords]:
        """Return where the records are stored, in the order in which they were sent to each partition.

        Waits and raises as `AsyncRecordFuture.result`; the error is that of the first records that were not stored.
        """
        if not self.done():
            completion = self._completion()
            self._check_waited(completion, await _wait(self._core, completion, timeout_s), timeout_s)
        return self._outcome()

    def __await__(self) -> Generator[Any, None, list[StoredRecords]]:
        return self.result().__await__()


async def _wait(core: ProducerCore, completion: Operation, timeout_s: float | None) -> bool:
    waiter = _Waiter(asyncio.get_running_loop())
    with core.lock:
        completion.listen(waiter.wake)
    try:
        return await waiter.wait(timeout_s)
    finally:
        core.give_up_waiting(completion, waiter.wake)


class AsyncProducer(ProducerBase[AsyncRecordFuture]):
    """A Kafka producer for one event loop. Settings by Kafka's names: a mapping with dots, or keywords.

    Create it in a coroutine. Names, settings, rules and errors are those of `dualwrite.producer.Producer`; every call
    is awaited, and `await send(...)` returns a future that can be awaited for the record's offset.

    May be used by several tasks of its loop; there is one transaction at a time, to which all their transactional calls
    belong. Every wait is bounded by `max.block.ms`; after that time, or when the task is cancelled, the call may still
    take effect, and only the same call may be repeated (or `close()` called). `asyncio.timeout()` around a call is
    a cancellation like any other.

    Raises `ConfigError` for settings that are unknown, malformed or contradict each other, and `IllegalStateError` if
    no loop is running.
    """

    _future = AsyncRecordFuture

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Unpack[ProducerSettings]) -> None:
        self._closed = True  # for __del__, if the next lines raise
        parsed = ProducerConfig.parse(config, settings)
        loop = _running_loop()
        if loop is None:
            raise IllegalStateError("an AsyncProducer is created in a coroutine, because it lives in its event loop")
        super().__init__(parsed, loop, loop.call_soon)
        self._sends_values_as_they_are = self._core.sends_values_as_they_are
        self._closed = False

    # ---- transactions ---------------------------------------------------------------------------------------

    async def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """Take over the transactional id, and fence other producers with it. Call once, before any transaction.

        An open transaction of an earlier producer is aborted, or with `keep_prepared_txn` kept: the state is then
        PREPARED_TRANSACTION, `prepared_txn_state` names it, and `complete_transaction` decides it (KIP-939).

        Raises `AuthorizationError` (may be repeated), `UnsupportedByBrokerError`, `FencedError`, `KafkaTimeoutError`.
        """
        await self._run(lambda: self._core.init_transactions(keep_prepared_txn))

    async def begin_transaction(self) -> None:
        """Open a transaction. Sends no request; Kafka learns of the transaction with its first record."""
        self._check_here()
        self._core.begin_transaction()

    def transaction(self) -> AsyncTransaction:
        """Return a context manager: begin a transaction, and commit it at the end of the `async with` block.

        An exception or a cancellation in the block aborts the transaction, and so does an `AbortableError` of the
        commit. A transaction that may be decided already is not aborted: one that the block prepared, or one whose
        commit has no outcome yet. The exception then has a note that says how to find the outcome.
        """
        return AsyncTransaction(self)

    async def prepare_transaction(self) -> PreparedTxnState:
        """Flush, and promise that this transaction can be committed.

        Returns its producer id and epoch, to be stored with the decision. Sends no request of its own (KIP-939).
        Raises `InvalidTxnStateError` without two-phase commit, and `AbortableError` if a record could not be stored.
        """
        await self._run(self._core.prepare_transaction)
        return self._core.prepared_txn_state

    async def complete_transaction(self, state: PreparedTxnState, *, take_over: bool = True) -> None:
        """Commit the prepared transaction if `state` names it, else abort it (KIP-939).

        For `take_over`, and for a call after `init_transactions(keep_prepared_txn=True)` has found no open transaction,
        see `Producer.complete_transaction`. Raises `PreparedTransactionLost` if the broker has aborted the transaction
        that `state` names; `InvalidTxnStateError` if nothing is prepared; `TypeError` for anything but a
        `PreparedTxnState` (convert a stored text with `PreparedTxnState(text)`), because a value that compares unequal
        would abort; else as `commit_transaction`.
        """
        checked = self._checked_prepared(state)
        await self._run(lambda: self._core.complete_transaction(checked, take_over=take_over))

    async def commit_transaction(self) -> None:
        """Flush and commit. Returns when Kafka has decided to commit; the records become visible right after.

        Raises `AbortableError` (abort it instead), `FencedError`, `FatalError`, `KafkaTimeoutError` (repeat it).
        `CommitOutcomeUnknown` (a `FatalError`) says that a commit was sent, got no response, and cannot be repeated.
        """
        await self._run(self._core.commit_transaction)

    async def abort_transaction(self) -> None:
        """Drop unsent records, and abort. Raises `FencedError`, `FatalError`, `KafkaTimeoutError` (repeat it)."""
        await self._run(self._core.abort_transaction)

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[Any, Any] | Iterable[Any],
        group_metadata: Any,
    ) -> None:
        """Commit consumed offsets of a group together with this transaction (KIP-447).

        Arguments are those of `Producer.send_offsets_to_transaction`. Raises `AbortableError`, `FencedError`,
        `KafkaTimeoutError`.
        """
        group = group_of(group_metadata)
        positions = positions_of(offsets)
        if positions:
            await self._run(lambda: self._core.send_offsets(positions, group))

    # ---- records --------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: RecordHeaders | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> AsyncRecordFuture:
        """Queue a record; it is sent within `linger.ms`, or with the next flush, prepare or commit.

        Arguments and errors are those of `Producer.send()`; `on_delivery(metadata, error)` is called in this loop.
        Waits only for metadata of a new topic and for `buffer.memory`, up to `max.block.ms`. If that wait is
        cancelled, the record is not sent.
        """
        if (
            self._generation != this_process.generation
            or _running_loop() is not self._loop
            or threading.Lock is not FIRST_LOCK
        ):
            self._check_here()
        if self._core.can_send_now:
            await self._let_loop_send()
        # Most records take this path, see `Producer.send()`.
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
                return AsyncRecordFuture(batch, index, time_ms, self._core)
        queued = self._check_and_queue(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        if isinstance(queued, BlockedSend):
            return await self._send_when_possible(queued)
        return queued

    async def _let_loop_send(self) -> None:
        """Let the loop send full batches, which a task that only calls `send()` would hold up until it is done."""
        self._core.can_send_now = False
        await asyncio.sleep(0)

    async def _send_when_possible(self, blocked: BlockedSend) -> AsyncRecordFuture:
        deadline_s = self._deadline_s()
        queued: AsyncRecordFuture | BlockedSend = blocked
        while isinstance(queued, BlockedSend):
            on_delivery = queued.on_delivery
            try:
                await self._wait_to_send(queued.reason, queued.topic, deadline_s, queued.progress)
                queued = self._try_again(queued)
            except BaseException as error:
                end_unsent(on_delivery, error)
                raise
        return queued

    async def send_batch(self, topic: str, records: Any) -> AsyncSentRecords:
        """Queue many records of a topic at once: faster than `send()`, and all are checked before any is sent.

        Arguments and errors are those of `Producer.send_batch()`. Waits, while the records do not fit into
        `buffer.memory`, up to `max.block.ms` in all; if that wait is cancelled, the records already accepted are sent.
        """
        self._check_here()
        bulk = BulkSend(self._core, topic, records)
        deadline_s = self._deadline_s()
        while (operation := bulk.advance()) is not None:
            await self._wait_to_send(operation, bulk.topic, deadline_s, bulk.progress)
        return AsyncSentRecords(bulk.topic, bulk.parts, bulk.record_count, self._core)

    async def _wait_to_send(
        self, operation: Operation, topic: str, deadline_s: float, progress: Callable[[], str]
    ) -> None:
        if not await self._ends(operation, deadline_s - self._loop.time()):
            raise self._not_sent(operation, topic, progress())
        operation.raise_error()

    async def flush(self) -> None:
        """Wait until every sent record is acknowledged or has failed; their futures and the commit report failures."""
        self._check_here()
        operation = self._core.flush()
        await self._ends(operation, None)
        operation.raise_error()

    # ---- the end --------------------------------------------------------------------------------------------

    async def close(self, timeout_s: float | None = None, *, hand_over: bool = False) -> None:
        """Close the connections; idempotent.

        Within `timeout_s` seconds (default `max.block.ms`): without transactions, unsent records are flushed; an open
        transaction is aborted; one that is being ended is waited for. A prepared transaction is never ended here: it
        stays in doubt, by design, until the next owner of its id completes it. A warning says so, unless `hand_over`
        says that another process has its state and will complete it. A cancelled `close()` waits no longer, and closes.
        """
        if self._closed:
            return
        if self._generation != this_process.generation:
            self._closed = True
            return  # a forked child's copy, whose connections belong to the parent
        if self._loop.is_closed():
            self._closed = True
            self._core.mark_closed(pending=True)
            return  # the connections were closed with the loop
        self._check_here()
        self._closed = True
        ended = False
        try:
            limit_s = self.max_block_ms / 1000 if timeout_s is None else timeout_s
            ended = await self._end_open_transaction(limit_s)
        finally:
            self._core.mark_closed(pending=not ended, hand_over=hand_over)
            await self._core.close()

    async def _end_open_transaction(self, timeout_s: float) -> bool:
        """End an open transaction, or flush; return whether nothing is pending."""
        operation = self._core.last_operation()
        if operation is None:
            return True
        if await self._ends(operation, timeout_s):
            self._core.log_failure_on_close(operation)
        return operation.done

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Behave as in a crash if `close()` was not called: close the connections, and end no transaction."""
        if is_finalizing():
            return  # a module's names may be None by now
        if not self._closed and self._generation == this_process.generation:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            if not self._loop.is_closed():
                loop, core = self._loop, self._core
                loop.call_soon_threadsafe(lambda: loop.create_task(core.close()))

    # ---- waiting --------------------------------------------------------------------------------------------

    async def _run(self, call: Callable[[], Operation]) -> None:
        """Make a call, and wait until it ends."""
        if (
            self._generation != this_process.generation
            or _running_loop() is not self._loop
            or threading.Lock is not FIRST_LOCK
        ):
            self._check_here()
        waiter = _Waiter(self._loop)
        operation = self._core.start(call, waiter.wake, in_loop=True)
        if not operation.done:
            try:
                ended = await waiter.wait(self.max_block_ms / 1000)
            except BaseException as cancelled:  # the caller will not get the outcome
                self._core.give_up_waiting(operation, waiter.wake)
                cancelled.add_note(
                    f"{operation.name} was cancelled here while it had no outcome: it may still take effect; "
                    "repeat the same call, which joins it and returns the outcome"
                )
                raise
            if not ended and self._core.give_up_waiting(operation, waiter.wake):
                raise self._no_outcome(operation)
        self._core.acknowledge(operation)  # even if it ended before it could be waited for
        operation.raise_error()

    async def _ends(self, operation: Operation, timeout_s: float | None) -> bool:
        """Wait for an operation that decides nothing; return whether it ended, or was interrupted, in time."""
        waiter = _Waiter(self._loop)
        with self._core.lock:
            operation.listen(waiter.wake)
        try:
            return await waiter.wait(timeout_s)
        finally:
            self._core.give_up_waiting(operation, waiter.wake)

    def _deadline_s(self) -> float:
        return self._loop.time() + self.max_block_ms / 1000

    def _check_here(self) -> None:
        self._check_process()
        if _running_loop() is not self._loop:
            where = "an event loop that is closed" if self._loop.is_closed() else "another event loop"
            raise IllegalStateError(
                f"this AsyncProducer belongs to {where}, and so do its connections; nothing was done: create a new "
                "one here (init_transactions() with the same transactional.id resolves the transaction that this one "
                "left)"
            )


class AsyncTransaction:
    """A transaction as an `async with` block, see `AsyncProducer.transaction()`."""

    def __init__(self, producer: AsyncProducer) -> None:
        self._producer = producer

    async def __aenter__(self) -> AsyncProducer:
        await self._producer.begin_transaction()
        return self._producer

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is not None:
            await self._leave_by(exc)
            return
        try:
            await self._producer.commit_transaction()
        except BaseException as error:
            await self._leave_by(error)
            raise

    async def _leave_by(self, error: BaseException) -> None:
        block_exit = BLOCK_EXITS[self._producer.state]
        if block_exit.note is not None:
            error.add_note(block_exit.note)
        if block_exit.abort:
            try:
                await self._producer.abort_transaction()
            except Exception as failed:
                pass_on_signal(failed)
                error.add_note(abort_failed_note(failed))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
