"""The fates of sent records, for threads that wait for them."""

from __future__ import annotations

import threading

from dualwrite.client.records.record import RecordMetadata, StoredRecords
from dualwrite.client.records.record_fate import RecordFate, RecordsFate


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


class RecordFuture(RecordFate):
    """The fate of one sent record."""

    __slots__ = ()

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Where the record is stored; in a transaction, it is stored before it is committed.

        Waits up to `timeout_s` seconds (None: until known, at most about `delivery.timeout.ms`).
        Raises `KafkaTimeoutError` when the time is up, `DeliveryError` or `FatalError` when it was not stored.
        """
        if not self.done():
            _wait(self, timeout_s)
        return self._outcome()


class SentRecords(RecordsFate):
    """The fates of the records of one `send_batch()`."""

    __slots__ = ()

    def result(self, timeout_s: float | None = None) -> list[StoredRecords]:
        """Where the records are stored, in the order in which they were sent to each partition.

        Waits and raises as `RecordFuture.result`; the error is that of the first records that were not stored.
        """
        if not self.done():
            _wait(self, timeout_s)
        return self._outcome()


def _wait(fate: RecordFuture | SentRecords, timeout_s: float | None) -> None:
    waiter = Waiter()
    ending = fate._ending()
    with fate._core.lock:
        ending.listen(waiter.wake)
    try:
        ended = waiter.wait(timeout_s)
    finally:
        fate._core.give_up_waiting(ending, waiter.wake)
    if not ended:
        raise fate._no_answer(timeout_s or 0)
    if not fate.done() and ending.error is not None:
        raise ending.error
