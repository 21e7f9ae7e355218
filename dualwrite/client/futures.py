"""The fates of sent records, for threads that wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from dualwrite.client.accumulator import Batch
from dualwrite.client.engine import Engine
from dualwrite.client.fates import Part, metadata_of, stored_records
from dualwrite.client.records import RecordMetadata, StoredRecords
from dualwrite.errors import KafkaTimeoutError


class RecordFuture:
    """The fate of one sent record."""

    __slots__ = ("_batch", "_engine", "_index", "_timestamp_ms")

    def __init__(self, batch: Batch, index: int, timestamp_ms: int, engine: Engine) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms
        self._engine = engine

    def done(self) -> bool:
        """Whether the fate is known."""
        return self._batch.done

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Where the record is stored; in a transaction, it is stored before it is committed.

        Waits up to `timeout_s` seconds (None: until known, at most about `delivery.timeout.ms`).
        Raises `KafkaTimeoutError` when the time is up, `DeliveryError` or `FatalError` when it was not stored.
        """
        batch = self._batch
        if not batch.done:
            waiter = Waiter()
            fate = self._engine.fate_of(batch)
            with self._engine.lock:
                fate.listen(waiter.wake)
            if not waiter.wait(timeout_s):
                raise KafkaTimeoutError(
                    f"the record for {batch.topic}-{batch.partition} has no answer after {timeout_s or 0:g} s "
                    f"({self._engine.obstacle((timeout_s or 0) * 1000)}); it is still being sent"
                )
            if not fate.done and fate.error is not None:
                raise fate.error
        return metadata_of(batch, self._index, self._timestamp_ms)

    def add_done_callback(self, callback: Callable[[RecordFuture], object]) -> None:
        """Call `callback(this future)` once the fate is known; as `on_delivery` of `send()`."""
        self._engine.callbacks.add(self._batch, self._index, self._timestamp_ms, lambda *_: callback(self))


class Waiter:
    """A thread that waits for one event; a bare lock is the cheapest that CPython has."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        self._lock.release()

    def wait(self, timeout_s: float | None) -> bool:
        if timeout_s is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))


class SentRecords:
    """The fates of the records of one `send_batch()`."""

    __slots__ = ("_engine", "_parts", "_topic", "record_count")

    def __init__(self, topic: str, parts: Sequence[Part], record_count: int, engine: Engine) -> None:
        self.record_count: Final = record_count
        """How many records there were."""
        self._topic = topic
        self._parts = parts
        self._engine = engine

    def done(self) -> bool:
        """Whether all fates are known."""
        return all(part.batch.done for part in self._parts)

    def result(self, timeout_s: float | None = None) -> list[StoredRecords]:
        """Where the records are stored, in the order in which they were sent to each partition.

        Waits and raises as `RecordFuture.result`; the error is that of the first records that were not stored.
        """
        if not self.done():
            waiter = Waiter()
            fates = self._engine.fates_of(self._topic, [part.batch for part in self._parts])
            with self._engine.lock:
                fates.listen(waiter.wake)
            if not waiter.wait(timeout_s):
                raise KafkaTimeoutError(
                    f"records for {self._topic} have no answer after {timeout_s or 0:g} s "
                    f"({self._engine.obstacle((timeout_s or 0) * 1000)}); they are still being sent"
                )
            if not self.done() and fates.error is not None:
                raise fates.error
        return list(stored_records(self._parts))
