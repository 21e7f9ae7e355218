"""What became of sent records: where they are stored, and who is told.

A callback of the application never runs under a producer's lock, so that it may use the producer, and whatever it
raises is logged: an I/O thread that died of it would take all producers of the process along.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from dualwrite.client.records.accumulator import Batch
from dualwrite.client.records.record import RecordMetadata, StoredRecords
from dualwrite.errors import KafkaError

OnDelivery = Callable[[RecordMetadata | None, KafkaError | None], object]
"""Told of a record where it is stored, or why it is not."""

_log = logging.getLogger(__name__)


def metadata_of(batch: Batch, index: int, timestamp_ms: int) -> RecordMetadata:
    """Of a record whose fate is known; raises why it is not stored."""
    if batch.error is not None:
        raise batch.error
    offset = batch.base_offset + index if batch.base_offset >= 0 else -1
    time_ms = timestamp_ms if batch.log_append_time_ms == -1 else batch.log_append_time_ms
    return RecordMetadata(batch.topic, batch.partition, offset, time_ms)


class Part(NamedTuple):
    """Records that lie side by side in a batch."""

    batch: Batch
    first_index: int
    record_count: int


def stored_records(parts: Iterable[Part]) -> Iterator[StoredRecords]:
    """Of parts whose fates are known; raises the first reason why some are not stored."""
    for batch, first_index, record_count in parts:
        first = metadata_of(batch, first_index, -1)
        yield StoredRecords(first.topic, first.partition, first.offset, record_count)


class _Listening(NamedTuple):
    place: int
    timestamp_ms: int
    callback: OnDelivery


class DeliveryCallbacks:
    """Those of one producer. `call_soon` runs something in the I/O thread, from any thread."""

    def __init__(self, lock: threading.Lock, call_soon: Callable[[Callable[[], object]], object]) -> None:
        self._lock: Final = lock
        self._call_soon = call_soon
        self._listening: dict[Batch, list[_Listening]] = {}

    def add(self, batch: Batch, index: int, timestamp_ms: int, callback: OnDelivery) -> None:
        """Call it once, in the I/O thread, when the record's fate is known; those of a batch in the order of adding."""
        new = _Listening(index, timestamp_ms, callback)
        with self._lock:
            listening = self._listening.get(batch)
            if listening is not None:
                listening.append(new)
                return
            self._listening[batch] = [new]
            batch.listen(lambda: self._schedule(batch))

    def _schedule(self, batch: Batch) -> None:
        self._call_soon(partial(self._tell, batch))

    def _tell(self, batch: Batch) -> None:
        with self._lock:
            listening = self._listening.pop(batch, [])
        for place, timestamp_ms, callback in listening:
            try:
                if batch.error is not None:
                    callback(None, batch.error)
                else:
                    callback(metadata_of(batch, place, timestamp_ms), None)
            except Exception:
                _log.exception("a delivery callback of a record for %s-%d failed", batch.topic, batch.partition)
