"""Futures of sent records: a base for threads and asyncio, and the futures of `Producer`, which block a thread.

The futures of `AsyncProducer` are in `dualwrite/async_producer.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Self

from dualwrite.client.operations import Operation
from dualwrite.client.producer_core import ProducerCore
from dualwrite.client.records.delivery import metadata_of, stored_records
from dualwrite.client.records.partition_queue import Batch, Part
from dualwrite.client.records.record import RecordMetadata, StoredRecords
from dualwrite.errors import KafkaTimeoutError
from dualwrite.monkey_patches import FIRST_LOCK, assert_real_threads


class BaseRecordFuture:
    """The future of one record, without a way to wait for it."""

    __slots__ = ("_batch", "_core", "_index", "_timestamp_ms")

    def __init__(self, batch: Batch, index: int, timestamp_ms: int, core: ProducerCore) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms
        self._core = core

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._batch.done

    @property
    def partition(self) -> int:
        """The partition that the record was sent to, or is going to be."""
        return self._batch.partition

    def outcome(self) -> RecordMetadata:
        """Return the result without waiting, as `result()`. Raises `KafkaTimeoutError` if it is not known yet."""
        if not self.done():
            raise self._timed_out(0)
        return self._outcome()

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call `callback(this future)` once the outcome is known, like `on_delivery` of `send()`."""
        self._core.check_process()
        self._core.callbacks.add(self._batch, self._index, self._timestamp_ms, lambda *_: callback(self))

    def _completion(self) -> Operation:
        return self._core.delivery_of(self._batch)

    def _outcome(self) -> RecordMetadata:
        return metadata_of(self._batch, self._index, self._timestamp_ms)

    def _check_waited(self, completion: Operation, ended: bool, timeout_s: float | None) -> None:
        """Raise the reason if a wait ended without an outcome: it timed out, or the producer failed or was closed."""
        if not ended:
            raise self._timed_out(timeout_s or 0)
        if not self.done():
            completion.raise_error()

    def _timed_out(self, timeout_s: float) -> KafkaTimeoutError:
        return KafkaTimeoutError(
            f"the record for {self._batch.topic}-{self._batch.partition} was not acknowledged within {timeout_s:g} s "
            f"({self._core.obstacle(timeout_s * 1000)}); it is still being sent"
        )


class BaseSentRecords:
    """The future of all records of one `send_batch()`, without a way to wait for it."""

    __slots__ = ("_core", "_parts", "_topic", "record_count")

    def __init__(self, topic: str, parts: Sequence[Part], record_count: int, core: ProducerCore) -> None:
        self.record_count: Final = record_count
        """The number of records."""
        self._topic = topic
        self._parts = parts
        self._core = core

    def done(self) -> bool:
        """Return whether the outcomes of all records are known."""
        return all(part.batch.done for part in self._parts)

    def _completion(self) -> Operation:
        return self._core.deliveries_of(self._topic, [part.batch for part in self._parts])

    def _outcome(self) -> list[StoredRecords]:
        return list(stored_records(self._parts))

    def _check_waited(self, completion: Operation, ended: bool, timeout_s: float | None) -> None:
        """Raise as `BaseRecordFuture._check_waited`."""
        if not ended:
            timeout_s = timeout_s or 0
            raise KafkaTimeoutError(
                f"records for {self._topic} were not acknowledged within {timeout_s:g} s "
                f"({self._core.obstacle(timeout_s * 1000)}); they are still being sent"
            )
        if not self.done():
            completion.raise_error()


class Waiter:
    """A thread waiting for one event. A bare lock is the cheapest way that CPython has."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        if threading.Lock is not FIRST_LOCK:
            assert_real_threads()
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """End the wait; call at most once."""
        self._lock.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Block until `wake()` and return True; return False after `timeout_s` seconds."""
        if timeout_s is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))


class RecordFuture(BaseRecordFuture):
    """The outcome of one sent record, now or later."""

    __slots__ = ()

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Return where the record is stored; a record of a transaction is stored before the transaction is committed.

        Waits up to `timeout_s` seconds (None: until the outcome is known, at most about `delivery.timeout.ms`).
        Raises `KafkaTimeoutError` if that time is up, `DeliveryError` or `FatalError` if the record was not stored.
        """
        if not self.done():
            completion = self._completion()
            self._check_waited(completion, _wait(self._core, completion, timeout_s), timeout_s)
        return self._outcome()


class SentRecords(BaseSentRecords):
    """The outcomes of the records of one `send_batch()`, now or later."""

    __slots__ = ()

    def result(self, timeout_s: float | None = None) -> list[StoredRecords]:
        """Return where the records are stored, in the order in which they were sent to each partition.

        Waits and raises as `RecordFuture.result`; the error is that of the first records that were not stored.
        """
        if not self.done():
            completion = self._completion()
            self._check_waited(completion, _wait(self._core, completion, timeout_s), timeout_s)
        return self._outcome()


def _wait(core: ProducerCore, completion: Operation, timeout_s: float | None) -> bool:
    waiter = Waiter()
    with core.lock:
        completion.listen(waiter.wake)
    try:
        return waiter.wait(timeout_s)
    finally:
        core.give_up_waiting(completion, waiter.wake)
