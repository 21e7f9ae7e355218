"""The outcome of sent batches and records: the meaning of a Produce response, and delivery callbacks.

An application's callback never runs under a producer's lock, so it may use the producer. An exception that it raises is
logged, and keeps no other callback from being called. A `BaseException` such as `SystemExit` is passed on after that:
it ends the event loop of an `AsyncProducer`, as from any other callback; the I/O thread does not end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from dualwrite.client.late_log import log_guarded
from dualwrite.client.records.partition_queue import Batch, Part
from dualwrite.client.records.record import RecordMetadata, StoredRecords
from dualwrite.errors import Api, ErrorClass, KafkaError, error_class

OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
DUPLICATE_SEQUENCE_NUMBER: Final = 46
TOO_LARGE: Final = frozenset({10, 18})
"""MESSAGE_TOO_LARGE: more than the topic's `max.message.bytes`; RECORD_LIST_TOO_LARGE: more than `segment.bytes`."""

OnDelivery = Callable[[RecordMetadata | None, KafkaError | None], object]
"""A callback that gets the place of a stored record, or the error of a record that was not stored."""

_log = logging.getLogger(__name__)


# ---- the meaning of a response for a batch ----------------------------------------------------------------------


class DeliveryResult(Enum):
    """The meaning of a Produce response for one batch."""

    DELIVERED = "stored"
    SEND_AGAIN = "send it again"
    SEND_AGAIN_AFTER_LOOKUP = "find the leader, then send it again"
    SPLIT = "send its records again in smaller batches (KAFKA-8350)"
    LOST = "this batch failed, but the producer can continue"
    FATAL = "the producer failed"


_RESULTS: Final[dict[ErrorClass, DeliveryResult]] = {
    ErrorClass.RETRIABLE: DeliveryResult.SEND_AGAIN,
    ErrorClass.RETRIABLE_AFTER_LOOKUP: DeliveryResult.SEND_AGAIN_AFTER_LOOKUP,
    ErrorClass.ABORTABLE: DeliveryResult.LOST,
    ErrorClass.REFUSED: DeliveryResult.LOST,
    ErrorClass.FENCED: DeliveryResult.FATAL,
    ErrorClass.UNSUPPORTED: DeliveryResult.FATAL,
    ErrorClass.FATAL: DeliveryResult.FATAL,
}


def delivery_result(error_code: int, *, record_count: int, unresolved_before: bool) -> DeliveryResult:
    """Return the meaning of `error_code` for a batch of that many records.

    `unresolved_before`: an earlier batch of the partition is not acknowledged, which explains a sequence gap.
    """
    if error_code in (0, DUPLICATE_SEQUENCE_NUMBER):
        return DeliveryResult.DELIVERED
    if error_code == OUT_OF_ORDER_SEQUENCE_NUMBER and unresolved_before:
        return DeliveryResult.SEND_AGAIN
    if error_code in TOO_LARGE and record_count > 1:
        return DeliveryResult.SPLIT
    return _RESULTS[error_class(Api.PRODUCE, error_code)]


# ---- where records are stored -----------------------------------------------------------------------------------


def metadata_of(batch: Batch, index: int, timestamp_ms: int) -> RecordMetadata:
    """Return where a record of a finished batch is stored; raise its error if it is not stored."""
    batch, index = batch.part_with(index)
    if batch.error is not None:
        raise batch.error
    offset = batch.base_offset + index if batch.base_offset >= 0 else -1
    time_ms = timestamp_ms if batch.log_append_time_ms == -1 else batch.log_append_time_ms
    return RecordMetadata(batch.topic, batch.partition, offset, time_ms)


def stored_records(parts: Iterable[Part]) -> Iterator[StoredRecords]:
    """Yield where the parts of finished batches are stored; raise the first error of a part that is not stored."""
    sent = (part for batch, first_index, count in parts for part in batch.parts_with(first_index, count))
    for batch, first_index, record_count in sent:
        first = metadata_of(batch, first_index, -1)
        yield StoredRecords(first.topic, first.partition, first.offset, record_count)


# ---- callbacks --------------------------------------------------------------------------------------------------


class _Registered(NamedTuple):
    record_index: int
    timestamp_ms: int
    callback: OnDelivery


class DeliveryCallbacks:
    """The delivery callbacks of one producer. `call_soon` schedules a call in the I/O thread, from any thread."""

    def __init__(self, lock: threading.Lock, call_soon: Callable[[Callable[[], object]], object]) -> None:
        self._lock: Final = lock
        self._call_soon = call_soon
        self._registered: dict[Batch, list[_Registered]] = {}

    def add(self, batch: Batch, index: int, timestamp_ms: int, callback: OnDelivery) -> None:
        """Call `callback` once, in the I/O thread, when the record's outcome is known.

        The callbacks of a batch are called in the order of their addition.
        """
        new = _Registered(index, timestamp_ms, callback)
        with self._lock:
            registered = self._registered.get(batch)
            if registered is not None:
                registered.append(new)
                return
            batch.listen(lambda: self._schedule(batch))
            self._registered[batch] = [new]  # last: nothing is registered without a listener after an exception

    def _schedule(self, batch: Batch) -> None:
        self._call_soon(partial(self._notify, batch))

    def _notify(self, batch: Batch) -> None:
        with self._lock:
            registered = self._registered.pop(batch, [])
        interruption: BaseException | None = None
        for record_index, timestamp_ms, callback in registered:
            try:
                sent, index = batch.part_with(record_index)
                if sent.error is not None:
                    callback(None, sent.error)
                else:
                    callback(metadata_of(sent, index, timestamp_ms), None)
            except BaseException as error:
                failed = "a delivery callback of a record for %s-%d failed"
                log_guarded(_log, logging.ERROR, failed, batch.topic, batch.partition, exc_info=True)
                if not isinstance(error, Exception):
                    interruption = error
        if interruption is not None:
            raise interruption
