"""What is asked about sent records without waiting; how to wait is the face's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Self

from dualwrite.client.producer_core import ProducerCore
from dualwrite.client.records.accumulator import Batch
from dualwrite.client.records.delivery_callbacks import Part, metadata_of, stored_records
from dualwrite.client.records.record import RecordMetadata, StoredRecords
from dualwrite.client.transactions.operations import Operation
from dualwrite.errors import KafkaTimeoutError


class RecordFate:
    """Of one record."""

    __slots__ = ("_batch", "_core", "_index", "_timestamp_ms")

    def __init__(self, batch: Batch, index: int, timestamp_ms: int, core: ProducerCore) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms
        self._core = core

    def done(self) -> bool:
        """Whether the fate is known."""
        return self._batch.done

    def outcome(self) -> RecordMetadata:
        """What `result()` gives, without waiting. Raises `KafkaTimeoutError` while the fate is not known."""
        if not self.done():
            raise self._no_answer(0)
        return self._outcome()

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call `callback(this future)` once the fate is known; as `on_delivery` of `send()`."""
        self._core.callbacks.add(self._batch, self._index, self._timestamp_ms, lambda *_: callback(self))

    def _ending(self) -> Operation:
        return self._core.delivery_of(self._batch)

    def _outcome(self) -> RecordMetadata:
        return metadata_of(self._batch, self._index, self._timestamp_ms)

    def _no_answer(self, timeout_s: float) -> KafkaTimeoutError:
        return KafkaTimeoutError(
            f"the record for {self._batch.topic}-{self._batch.partition} has no answer after {timeout_s:g} s "
            f"({self._core.obstacle(timeout_s * 1000)}); it is still being sent"
        )


class RecordsFate:
    """Of the records of one `send_batch()`."""

    __slots__ = ("_core", "_parts", "_topic", "record_count")

    def __init__(self, topic: str, parts: Sequence[Part], record_count: int, core: ProducerCore) -> None:
        self.record_count: Final = record_count
        """How many records there were."""
        self._topic = topic
        self._parts = parts
        self._core = core

    def done(self) -> bool:
        """Whether all fates are known."""
        return all(part.batch.done for part in self._parts)

    def _ending(self) -> Operation:
        return self._core.deliveries_of(self._topic, [part.batch for part in self._parts])

    def _outcome(self) -> list[StoredRecords]:
        return list(stored_records(self._parts))

    def _no_answer(self, timeout_s: float) -> KafkaTimeoutError:
        return KafkaTimeoutError(
            f"records for {self._topic} have no answer after {timeout_s:g} s "
            f"({self._core.obstacle(timeout_s * 1000)}); they are still being sent"
        )
