"""The transactional Kafka producer with two-phase commit (KIP-98, KIP-890, KIP-939), for coroutines.

It runs in the loop in which it was created, asyncio's or uvloop's, and has no thread.

Cancellation: a call that is cancelled while it waits goes on. What it was to do may still happen, so its outcome is
kept until the same call is made again, which joins it; other calls are refused until then, except that an abort may
take the place of a prepare or of offsets. A record that `send()` still held back when it was cancelled is not sent.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import warnings
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from dualwrite.client.io_thread import process_generation, shared_io_thread
from dualwrite.client.producer_base import BlockedSend, ProducerBase
from dualwrite.client.producer_core import Engine
from dualwrite.client.records.builder import Header
from dualwrite.client.records.bulk import BulkSend
from dualwrite.client.records.delivery import OnDelivery
from dualwrite.client.records.record import (
    RecordMetadata,
    StoredRecords,
)
from dualwrite.client.records.record_future import BaseRecordFuture, BaseSentRecords
from dualwrite.client.transactions.block import LEAVING, not_aborted
from dualwrite.client.transactions.group_metadata import group_of, positions_of
from dualwrite.client.transactions.operations import Operation
from dualwrite.config import ProducerConfig
from dualwrite.errors import IllegalStateError
from dualwrite.prepared_state import PreparedTxnState

__all__ = ["AsyncProducer", "AsyncRecordFuture", "AsyncSentRecords", "AsyncTransaction", "run_in_background"]

ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)


def run_in_background(coroutine: Coroutine[Any, Any, ResultT]) -> Future[ResultT]:
    """Run a coroutine in the thread that does the I/O of all `Producer`s of this process; from any other thread.

    An `AsyncProducer` that is made there shares their connections, so a thread can drive many producers at once without
    a loop of its own. Nothing in the coroutine may block: all producers would wait for it.
    """
    return asyncio.run_coroutine_threadsafe(coroutine, shared_io_thread().loop)


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
    """The fate of one sent record: `await` it, as often as you like; cancelling that changes nothing."""

    __slots__ = ()

    async def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Where the record is stored; in a transaction, it is stored before it is committed.

        Waits up to `timeout_s` seconds (None: until known, at most about `delivery.timeout.ms`).
        Raises `KafkaTimeoutError` when the time is up, `DeliveryError` or `FatalError` when it was not stored.
        """
        if not self.done():
            completion = self._completion()
            self._check_waited(completion, await _wait(self._engine, completion, timeout_s), timeout_s)
        return self._outcome()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return self.result().__await__()


class AsyncSentRecords(BaseSentRecords):
    """The fates of the records of one `send_batch()`: `await` it, as often as you like."""

    __slots__ = ()

    async def result(self, timeout_s: float | None = None) -> list[StoredRecords]:
        """Where the records are stored, in the order in which they were sent to each partition.

        Waits and raises as `AsyncRecordFuture.result`; the error is that of the first records that were not stored.
        """
        if not self.done():
            completion = self._completion()
            self._check_waited(completion, await _wait(self._engine, completion, timeout_s), timeout_s)
        return self._outcome()

    def __await__(self) -> Generator[Any, None, list[StoredRecords]]:
        return self.result().__await__()


async def _wait(engine: Engine, completion: Operation, timeout_s: float | None) -> bool:
    waiter = _Waiter(asyncio.get_running_loop())
    with engine.lock:
        completion.listen(waiter.wake)
    try:
        return await waiter.wait(timeout_s)
    finally:
        engine.give_up_waiting(completion, waiter.wake)


class AsyncProducer(ProducerBase[AsyncRecordFuture]):
    """A Kafka producer for one event loop. Settings by Kafka's names: a mapping with dots, or keywords.

    To be created in a coroutine. Names, settings, rules and errors are those of `dualwrite.producer.Producer`; every
    call is awaited, and `await send(...)` gives a future that can be awaited for the record's place.

    May be used by several tasks of its loop; all transactional calls belong to one transaction at a time. Every wait is
    bounded by `max.block.ms`; when that is up, or when the task is cancelled, nothing is decided, and only the same
    call may be repeated (or `close()` called). `asyncio.timeout()` around a call is a cancellation like any other.

    Raises `ConfigError` for settings that are unknown, malformed or contradict each other, and `IllegalStateError`
    where no loop is running.
    """

    _future = AsyncRecordFuture

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self._closed = True  # for __del__, should the next lines raise
        parsed = ProducerConfig.parse(config, settings)
        loop = _running_loop()
        if loop is None:
            raise IllegalStateError("an AsyncProducer is created in a coroutine, because it lives in its event loop")
        self._loop = loop
        super().__init__(parsed, loop, loop.call_soon)
        self._sends_values_as_they_are = self._engine.sends_values_as_they_are
        self._lets_loop_send = False
        self._closed = False

    # ---- transactions ---------------------------------------------------------------------------------------

    async def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """Take the transactional id over; other producers with it are fenced. Once, before any transaction.

        What the id's past left open is aborted, or with `keep_prepared_txn` kept: the state is then
        PREPARED_TRANSACTION, `prepared_txn_state` names it, and `complete_transaction` decides it (KIP-939).

        Raises `AuthorizationError` (may be repeated), `UnsupportedByBrokerError`, `FencedError`, `KafkaTimeoutError`.
        """
        await self._run(lambda: self._engine.init_transactions(keep_prepared_txn))

    async def begin_transaction(self) -> None:
        """Open a transaction. Local; Kafka hears of it with its first record."""
        self._check_here()
        self._engine.begin_transaction()

    def transaction(self) -> AsyncTransaction:
        """`async with producer.transaction():` begins a transaction, and commits it at the end of the block.

        An exception in the block, and a cancellation, abort it; one of the commit that says so (`AbortableError`), too.
        Not aborted is what may be decided already: a transaction that the block prepared, and a commit without an
        outcome. The exception says then, in a note, how to find out.
        """
        return AsyncTransaction(self)

    async def prepare_transaction(self) -> PreparedTxnState:
        """Flush, and promise that this transaction can be committed. Its identity, to be stored with the decision.

        Sends no request of its own (KIP-939). Raises `InvalidTxnStateError` without two-phase commit, and
        `AbortableError` when a record could not be stored.
        """
        await self._run(self._engine.prepare_transaction)
        return self._engine.prepared_txn_state

    async def complete_transaction(self, state: PreparedTxnState, *, take_over: bool = True) -> None:
        """Commit the prepared transaction if `state` names it, else abort it (KIP-939).

        After `init_transactions(keep_prepared_txn=True)` that found nothing open, this does nothing.
        Raises `InvalidTxnStateError` when nothing is prepared; `TypeError` for anything but a `PreparedTxnState`
        (a stored text goes through `PreparedTxnState(text)`), because what compares unequal would abort; else as
        `commit_transaction`. `take_over` as in `Producer.complete_transaction`.
        """
        checked = self._checked_prepared(state)
        await self._run(lambda: self._engine.complete_transaction(checked, take_over=take_over))

    async def _complete_first(self, state: PreparedTxnState) -> None:
        """As `Producer._complete_first`."""
        checked = self._checked_prepared(state)
        await self._run(lambda: self._engine.complete_transaction(checked, own=False))

    async def _own(self) -> None:
        """As `Producer._own`."""
        await self._run(self._engine.own)

    async def _is_current(self) -> bool:
        """As `Producer._is_current`."""
        await self._run(self._engine.describe)
        return self._engine.is_current

    async def commit_transaction(self) -> None:
        """Flush and commit. Returns when Kafka has decided to commit; the records become visible right after.

        Raises `AbortableError` (abort it instead), `FencedError`, `FatalError`, `KafkaTimeoutError` (repeat it).
        `CommitOutcomeUnknown` (a `FatalError`) says that a commit was sent, not answered, and cannot be asked for.
        """
        await self._run(self._engine.commit_transaction)

    def start_commit(self) -> None:
        """Begin what `commit_transaction()` does, and do not wait for it; `commit_transaction()` then joins it.

        Until that has returned, no other transaction can be begun. Raises what forbids to commit now.
        """
        self._check_here()
        self._engine.start(self._engine.commit_transaction, in_loop=True)

    async def abort_transaction(self) -> None:
        """Drop what is unsent, and abort. Raises `FencedError`, `FatalError`, `KafkaTimeoutError` (repeat it)."""
        await self._run(self._engine.abort_transaction)

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[Any, Any] | Iterable[Any],
        group_metadata: Any,
    ) -> None:
        """Commit consumed positions of a group together with this transaction (KIP-447).

        An offset is that of the next record to read. Raises `AbortableError`, `FencedError`, `KafkaTimeoutError`.
        """
        group = group_of(group_metadata)
        positions = positions_of(offsets)
        if positions:
            await self._run(lambda: self._engine.send_offsets(positions, group))

    # ---- records --------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> AsyncRecordFuture:
        """Hand a record over; it is sent within `linger.ms`, or with the next flush, prepare or commit.

        Arguments and errors are those of `Producer.send()`; `on_delivery(metadata, error)` is called in this loop.
        Waits only for metadata of a new topic and for `buffer.memory`, up to `max.block.ms`. When that is cancelled,
        the record is not sent.
        """
        if self._generation != process_generation() or _running_loop() is not self._loop:
            self._check_here()
        if self._lets_loop_send:
            self._lets_loop_send = False
            await asyncio.sleep(0)  # a task that only sends would keep full batches from leaving until it is done
        # what most records are, as in `Producer.send()`
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
                return AsyncRecordFuture(batch, index, time_ms, self._engine)
        handed = self._hand_over(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        if isinstance(handed, BlockedSend):
            return await self._send_when_possible(handed)
        return self._handed(handed)

    async def _send_checked(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: list[Header],
        partition: int | None,
        timestamp_ms: int,
    ) -> AsyncRecordFuture:
        """`send()` of a record that has passed its checks and its serializers, as those of a dual write have."""
        self._check_here()
        if self._lets_loop_send:
            self._lets_loop_send = False
            await asyncio.sleep(0)
        handed = self._accept(topic, value, key, headers, partition, timestamp_ms)
        if isinstance(handed, BlockedSend):
            return await self._send_when_possible(handed)
        return self._handed(handed)

    def _handed(self, future: AsyncRecordFuture) -> AsyncRecordFuture:
        if future._index == 0:
            self._lets_loop_send = self._engine.can_send_after_opening(future._batch)
        return future

    async def _send_when_possible(self, held: BlockedSend) -> AsyncRecordFuture:
        deadline_s = self._deadline_s()
        handed: AsyncRecordFuture | BlockedSend = held
        while isinstance(handed, BlockedSend):
            await self._wait_to_send(handed.reason, handed.topic, deadline_s, handed.fate)
            handed = self._accept_again(handed)
        return handed

    async def send_batch(self, topic: str, records: Any) -> AsyncSentRecords:
        """Hand many records of a topic over at once: faster than `send()`, and checked as a whole.

        Arguments and errors are those of `Producer.send_batch()`. Waits, while the records do not fit into
        `buffer.memory`, up to `max.block.ms` in all; when that is cancelled, those that were accepted are sent.
        """
        self._check_here()
        bulk = BulkSend(self._engine, topic, records)
        deadline_s = self._deadline_s()
        while (operation := bulk.advance()) is not None:
            await self._wait_to_send(operation, bulk.topic, deadline_s, bulk.progress)
        return AsyncSentRecords(bulk.topic, bulk.parts, bulk.record_count, self._engine)

    async def _wait_to_send(self, operation: Operation, topic: str, deadline_s: float, fate: Callable[[], str]) -> None:
        if not await self._ends(operation, deadline_s - self._loop.time()):
            raise self._not_sent(operation, topic, fate())
        if operation.error is not None:
            raise operation.error

    async def flush(self) -> None:
        """Wait until every record sent so far has its fate; their futures and the commit tell which."""
        self._check_here()
        operation = self._engine.flush()
        await self._ends(operation, None)
        if operation.error is not None:
            raise operation.error

    # ---- the end --------------------------------------------------------------------------------------------

    async def close(self, timeout_s: float | None = None, *, hand_over: bool = False) -> None:
        """Let go of the connections; idempotent.

        Within `timeout_s` seconds (default `max.block.ms`): without transactions, unsent records are flushed; a
        transaction that is open is aborted; one that is being ended is waited for. A prepared transaction is never
        ended here: it stays in doubt, by design, until the next owner of its id completes it. A warning says so, unless
        it is left with `hand_over` to somebody who has its state and will complete it.
        When this is cancelled it waits no longer, and closes.
        """
        if self._closed:
            return
        if self._generation != process_generation():
            self._closed = True
            return  # a forked child's copy, whose connections are the parent's
        if self._loop.is_closed():
            self._closed = True
            self._engine.mark_closed(pending=True)
            return  # the connections went with the loop
        self._check_here()
        self._closed = True
        ended = False
        try:
            limit_s = self._config.max_block_ms / 1000 if timeout_s is None else timeout_s
            ended = await self._end_open_transaction(limit_s)
        finally:
            self._engine.mark_closed(pending=not ended, hand_over=hand_over)
            await self._engine.close()

    async def _end_open_transaction(self, timeout_s: float) -> bool:
        """Whether nothing is pending any more."""
        operation = self._engine.last_operation()
        if operation is None:
            return True
        await self._ends(operation, timeout_s)
        if operation.error is not None:
            _log.warning("%s failed while closing: %s", operation.name, operation.error)
        return operation.done

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        """Dropped without `close()`: as if the process had crashed. Connections go, no transaction is ended."""
        if not self._closed and self._generation == process_generation() and not sys.is_finalizing():
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            if not self._loop.is_closed():
                loop, engine = self._loop, self._engine
                loop.call_soon_threadsafe(lambda: loop.create_task(engine.close()))

    # ---- waiting --------------------------------------------------------------------------------------------

    async def _run(self, call: Callable[[], Operation]) -> None:
        """Make a call and wait for it."""
        self._check_here()
        waiter = _Waiter(self._loop)
        operation = self._engine.start(call, waiter.wake, in_loop=True)
        if not operation.done:
            await self._wait(operation, waiter)
        self._engine.heard(operation)  # also where it ended before it could be waited for
        if operation.error is not None:
            raise operation.error

    async def _wait(self, operation: Operation, waiter: _Waiter) -> None:
        try:
            ended = await waiter.wait(self._config.max_block_ms / 1000)
        except BaseException as cancelled:  # the caller will not hear how it ends
            self._engine.give_up_waiting(operation, waiter.wake)
            cancelled.add_note(
                f"{operation.name} was cancelled here while it had no outcome: it may still take effect; "
                "repeat the same call, which joins it and tells"
            )
            raise
        if not ended and self._engine.give_up_waiting(operation, waiter.wake):
            raise self._no_answer(operation)

    async def _ends(self, operation: Operation, timeout_s: float | None) -> bool:
        """Wait for what decides nothing; whether it ended, or was interrupted, in time."""
        waiter = _Waiter(self._loop)
        with self._engine.lock:
            operation.listen(waiter.wake)
        try:
            return await waiter.wait(timeout_s)
        finally:
            self._engine.give_up_waiting(operation, waiter.wake)

    def _deadline_s(self) -> float:
        return self._loop.time() + self._config.max_block_ms / 1000

    def _check_here(self) -> None:
        self._check_process()
        if _running_loop() is not self._loop:
            where = "an event loop that is closed" if self._loop.is_closed() else "another event loop"
            raise IllegalStateError(
                f"this AsyncProducer belongs to {where}, and so do its connections; nothing was done: create a new one "
                "here (init_transactions() with the same transactional.id resolves what this one left)"
            )


class AsyncTransaction:
    """A transaction as a block, see `AsyncProducer.transaction()`."""

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
        leaving = LEAVING[self._producer.state]
        if leaving.note is not None:
            error.add_note(leaving.note)
        if leaving.abort:
            try:
                await self._producer.abort_transaction()
            except Exception as failed:
                error.add_note(not_aborted(failed))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
