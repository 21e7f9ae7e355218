"""Collect records into batches, one queue per partition, and give batches out in an order that brokers accept.

No I/O and no clock. A batch has its outcome, or its next place, before it leaves a place, so that an exception between
two changes loses none: `mend` finishes them.

Within a partition, sequences must arrive without a gap (KIP-98). A batch that has to be sent again therefore goes
before all later ones, and alone: until it is acknowledged, nothing else of its partition is sent. So do the parts of a
batch that was too large for its topic; together they have the sequences of the whole.

When the epoch is raised, a batch that was sent before keeps its own, because a broker recognises only the same bytes,
and later ones wait for it. It gets the new epoch once the broker has refused it for lack of one that was given up in
the same partition. If none was, the broker has lost a batch, and the refused one fails.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Final

from dualwrite.client.metrics import Metrics
from dualwrite.client.pacing import Backoff
from dualwrite.client.records.batches import HEADER, BatchRecords, Header, restamp, stamp_and_build
from dualwrite.client.records.compression import Codec
from dualwrite.client.records.partition_queue import BY_NUMBER, NUMBERS_OF_A_BATCH, Batch, PartitionQueue
from dualwrite.client.records.splitting import halves_of
from dualwrite.errors import DeliveryError, InvalidRecordError, KafkaError

MAX_SEQUENCE: Final = 2**31 - 1
_OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45


class Accumulator:
    """The queues of all partitions of one producer. Sizes in bytes, times in milliseconds."""

    def __init__(
        self,
        *,
        new_records: Callable[[bytes | None, bytes | None, list[Header]], BatchRecords],
        new_backoff: Callable[[], Backoff],
        transactional: bool,
        idempotent: bool,
        batch_size: int,
        max_request_size: int,
        buffer_memory: int,
        linger_ms: float,
        delivery_timeout_ms: float,
        max_in_flight: int,
        codec: Codec | None = None,
    ) -> None:
        self.incomplete = 0
        self._new_records = new_records
        self._new_backoff = new_backoff
        self._transactional = transactional
        self._idempotent = idempotent
        self._batch_size = batch_size
        self._max_request_size = max_request_size
        self.limits_size = True
        """Whether a record must not be larger than `max_request_size`."""
        self._buffer_memory = buffer_memory
        self._linger_ms = linger_ms
        self._delivery_timeout_ms = delivery_timeout_ms
        self._max_in_flight = max_in_flight
        self._codec = codec
        self.metrics: Final = Metrics()
        self._used = 0
        self._numbers = 0
        self._queues: dict[str, dict[int, PartitionQueue]] = {}
        # queues with a batch that is not in flight; a dict because it keeps the insertion order
        self.active: Final[dict[PartitionQueue, None]] = {}
        """The queues with batches that wait to be sent, now or later."""
        self._open: dict[PartitionQueue, None] = {}

    # ---- appending ------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        partition: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[Header],
        now_ms: float,
    ) -> Batch | None:
        """Append a record; return its batch, whose last record it now is, or None if `buffer.memory` is exhausted."""
        queues = self._queues.get(topic)
        queue = queues.get(partition) if queues is not None else None
        if queue is None:
            queue = self._new_queue(topic, partition)
        batch = queue.open
        if batch is not None:
            if batch.append(batch.record_count, timestamp_ms, key, value, headers) is not None:
                batch.record_count += 1
                return batch
            self._close_open(queue, batch)
        return self._append_to_new(queue, timestamp_ms, key, value, headers, now_ms)

    def _new_queue(self, topic: str, partition: int) -> PartitionQueue:
        queue = PartitionQueue(topic, partition, self._new_backoff())
        self._queues.setdefault(topic, {})[partition] = queue
        return queue

    def _append_to_new(
        self,
        queue: PartitionQueue,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[Header],
        now_ms: float,
    ) -> Batch | None:
        records = self._new_records(key, value, headers)
        records.append(0, timestamp_ms, key, value, headers)
        size = records.size()
        if size > self._max_request_size and self.limits_size:
            raise InvalidRecordError(
                f"the record takes {size} bytes, more than max.request.size={self._max_request_size}; it was not sent"
            )
        reserved = max(size, self._batch_size)
        if self._used and self._used + reserved > self._buffer_memory:
            return None
        batch = self._new_batch(queue, records, 1, reserved, now_ms)
        queue.open = batch
        self._open[queue] = None
        return batch

    def _new_batch(
        self, queue: PartitionQueue, records: BatchRecords, count: int, reserved_bytes: int, now_ms: float
    ) -> Batch:
        self._numbers += NUMBERS_OF_A_BATCH
        batch = Batch(queue, self._numbers, records, now_ms)
        batch.record_count = count
        batch.reserved_bytes = reserved_bytes
        self._used += reserved_bytes
        self.incomplete += 1
        self.active[queue] = None
        return batch

    def append_full(self, topic: str, partition: int, records: BatchRecords, count: int, now_ms: float) -> Batch | None:
        """Queue a batch that is already full; return it, or None if `buffer.memory` is exhausted."""
        queues = self._queues.get(topic)
        queue = queues.get(partition) if queues is not None else None
        if queue is None:
            queue = self._new_queue(topic, partition)
        size = records.size()
        if self._used and self._used + size > self._buffer_memory:
            return None
        if queue.open is not None:
            self._close_open(queue, queue.open)
        batch = self._new_batch(queue, records, count, size, now_ms)
        queue.closed.append(batch)
        return batch

    def _close_open(self, queue: PartitionQueue, batch: Batch) -> None:
        queue.closed.append(batch)
        queue.open = None
        self._open.pop(queue, None)

    def close_open_batches(self) -> None:
        """Close all open batches, so that everything accepted so far can be sent without lingering."""
        for queue in list(self._open):
            if queue.open is not None:
                self._close_open(queue, queue.open)

    def mend(self) -> None:
        """Make everything follow from the queues again, after an exception between two changes.

        The open batches are closed: one of them may have a record more than it counts, until it is built.
        """
        for queue in [queue for queues in self._queues.values() for queue in queues.values()]:
            queue.mend()
            self.active[queue] = None
            self._deactivate_if_empty(queue)
        self._open.clear()
        batches = self.incomplete_batches()
        self.incomplete = len(batches)
        self._used = sum(batch.reserved_bytes for batch in batches)

    @property
    def buffer_used(self) -> int:
        """Bytes of `buffer.memory` in use."""
        return self._used

    @property
    def has_full_batches(self) -> bool:
        """Whether a partition has batches to send but no open one, so that they need not linger."""
        return len(self.active) > len(self._open)

    def incomplete_batches(self) -> list[Batch]:
        """Return all batches whose outcome is not known."""
        queues = [queue for queues in self._queues.values() for queue in queues.values()]
        return [batch for queue in queues for batch in (*queue.in_flight, *queue.waiting())]

    # ---- draining -------------------------------------------------------------------------------------------

    def drain(
        self, now_ms: float, leader_of: Callable[[str, int], int], producer_id: int, producer_epoch: int
    ) -> dict[int, list[Batch]]:
        """Take the batches to send now, by node: at most one per partition, and `max.request.size` bytes per node.

        `leader_of` returns the node to send to, or -1 if there is none at present.
        """
        drained: dict[int, list[Batch]] = {}
        if not self.active:
            return drained
        sizes: dict[int, int] = {}
        for queue in list(self.active):
            if not self._is_sendable(queue, now_ms, producer_id, producer_epoch):
                continue
            node_id = leader_of(queue.topic, queue.partition)
            if node_id < 0:
                continue
            self._split_refused(queue)
            batch = self._first(queue)
            assert batch is not None
            size = sizes.get(node_id, 0) + batch.records.size()
            if node_id in sizes and size > self._max_request_size:
                continue
            sizes[node_id] = size
            is_new = not batch.data
            self._take(queue, batch, producer_id, producer_epoch)
            if is_new:
                self.metrics.built(len(batch.data), now_ms - batch.created_ms)
            drained.setdefault(node_id, []).append(batch)
        return drained

    def _is_sendable(self, queue: PartitionQueue, now_ms: float, producer_id: int, producer_epoch: int) -> bool:
        """Return whether a batch of the queue may be sent now.

        A broker that does not know the producer id accepts any sequence as its first. If the first batch were refused
        while a second one is on its way, the second would be stored, and the first one never again. Nor is one of an
        earlier epoch stored after one of this epoch.
        """
        if now_ms < queue.muted_until_ms:
            return False
        if queue.retries:
            return not queue.in_flight
        if len(queue.in_flight) >= self._max_in_flight:
            return False
        if queue.in_flight and (queue.acknowledged_id != producer_id or queue.producer_epoch != producer_epoch):
            return False
        if queue.closed:
            return True
        return queue.open is not None and now_ms >= queue.open.created_ms + self._linger_ms

    def _first(self, queue: PartitionQueue) -> Batch | None:
        if queue.retries:
            return queue.retries[0]
        return queue.closed[0] if queue.closed else queue.open

    def _take(self, queue: PartitionQueue, batch: Batch, producer_id: int, producer_epoch: int) -> None:
        queue.in_flight.append(batch)  # first: if it cannot be built, the producer fails with all that it finds
        if queue.retries:
            queue.retries.pop(0)
        elif queue.closed:
            queue.closed.popleft()
        else:
            queue.open = None
            self._open.pop(queue, None)
        self._deactivate_if_empty(queue)
        self._stamp(queue, batch, producer_id, producer_epoch)

    def _deactivate_if_empty(self, queue: PartitionQueue) -> None:
        if not queue.retries and not queue.closed and queue.open is None:
            self.active.pop(queue, None)

    def _stamp(self, queue: PartitionQueue, batch: Batch, producer_id: int, producer_epoch: int) -> None:
        """Write the producer id, epoch and sequence into the batch.

        One that is sent again keeps them, for the broker to recognise it, unless its queue has begun a new sequence.
        """
        if batch.data and batch.producer_id == queue.producer_id and batch.producer_epoch == queue.producer_epoch:
            return
        if queue.producer_id != producer_id or queue.producer_epoch != producer_epoch:
            queue.begin_sequence(producer_id, producer_epoch)
        batch.producer_id = producer_id
        batch.producer_epoch = producer_epoch
        if self._idempotent:
            batch.base_sequence = queue.next_sequence
        if batch.data:
            restamp(batch.data, producer_id, producer_epoch, batch.base_sequence)
        else:
            batch.data = stamp_and_build(
                batch.records,
                producer_id,
                producer_epoch,
                batch.base_sequence,
                codec=self._codec,
            )
            batch.record_count = HEADER.unpack_from(batch.data)[-1]  # see `mend`
        if self._idempotent:
            queue.next_sequence = (queue.next_sequence + batch.record_count) & MAX_SEQUENCE

    def wake_at_ms(self, now_ms: float) -> float | None:
        """Return the next time at which `drain` or `expire` has work, if nothing else happens before."""
        if not self.active:
            return None
        return min(self._due_ms(queue, now_ms) for queue in self.active)

    def _due_ms(self, queue: PartitionQueue, now_ms: float) -> float:
        first = self._first(queue)
        assert first is not None
        expiry_ms = first.created_ms + self._delivery_timeout_ms
        if now_ms < queue.muted_until_ms:
            return min(queue.muted_until_ms, expiry_ms)
        if first is queue.open:
            linger_ms = first.created_ms + self._linger_ms
            return linger_ms if now_ms < linger_ms else expiry_ms
        return expiry_ms

    # ---- outcomes -------------------------------------------------------------------------------------------

    def delivered(self, batch: Batch, base_offset: int, log_append_time_ms: int) -> None:
        """Finish a batch that the broker stored. Offset -1: a duplicate, and the broker does not know where it is."""
        batch.queue.backoff.succeeded()
        batch.queue.acknowledged_id = batch.producer_id
        batch.settle_doubt()
        batch.base_offset = base_offset
        batch.log_append_time_ms = log_append_time_ms
        self._end(batch, None)
        batch.queue.in_flight.remove(batch)

    def failed(self, batch: Batch, error: KafkaError) -> None:
        """Finish a batch with `error`; it is not sent again.

        If a request with the whole of it may have been stored, the later parts fail too: under a new epoch the broker
        would not recognise them, and store them twice.
        """
        self._end(batch, error)
        batch.queue.in_flight.remove(batch)
        doubtful = batch.doubtful if self._idempotent else None
        if doubtful is not None:
            for part in [waiting for waiting in batch.queue.retries if doubtful.contains(waiting)]:
                self._discard(part, error)

    def split(self, batch: Batch) -> None:
        """Queue the two halves of a batch that was too large for its topic, to be sent in its place."""
        batch.queue.refused_bytes = min(batch.queue.refused_bytes, len(batch.data))
        self.metrics.resent_records += batch.record_count
        self._queue_parts(batch, batch.queue.in_flight)

    def _split_refused(self, queue: PartitionQueue) -> None:
        """Split the next batch without sending it again, if one of its size was refused and parts wait already."""
        while queue.retries:
            batch = queue.retries[0]
            if batch.record_count == 1 or len(batch.data) < queue.refused_bytes or batch.whole is None:
                return
            self._queue_parts(batch, queue.retries)

    def _queue_parts(self, batch: Batch, place: list[Batch]) -> None:
        """Queue the parts of a batch and take it out of its place, once all of them are built."""
        queue = batch.queue
        parts: list[Batch] = []
        first_index = 0
        for records, count in halves_of(batch.data, self._new_records):
            part = Batch(queue, batch.number + first_index, records, batch.created_ms)
            part.whole, part.first_index, part.record_count = batch, first_index, count
            part.producer_id, part.producer_epoch = batch.producer_id, batch.producer_epoch
            if batch.base_sequence >= 0:
                part.base_sequence = (batch.base_sequence + first_index) & MAX_SEQUENCE
            part.data = stamp_and_build(
                records, part.producer_id, part.producer_epoch, part.base_sequence, codec=self._codec
            )
            part.reserved_bytes = batch.reserved_bytes * count // batch.record_count
            parts.append(part)
            first_index += count
        parts[0].reserved_bytes += batch.reserved_bytes - sum(part.reserved_bytes for part in parts)
        batch.split_into(parts)
        for part in parts:
            insort(queue.retries, part, key=BY_NUMBER)
        place.remove(batch)
        self.incomplete += len(parts) - 1
        self.active[queue] = None

    def send_again(self, batch: Batch, now_ms: float, error_code: int | None) -> None:
        """Queue a batch again, after a back-off: the same bytes, unless an earlier one that was given up is missing."""
        self.metrics.resent_records += batch.record_count
        if error_code != _OUT_OF_ORDER_SEQUENCE_NUMBER:
            batch.may_be_stored = True
        elif not batch.queue.has_unresolved_before(batch):
            batch.producer_epoch = -1
        queue = batch.queue
        insort(queue.retries, batch, key=BY_NUMBER)
        queue.in_flight.remove(batch)
        queue.muted_until_ms = max(queue.muted_until_ms, now_ms + queue.backoff.failed(error_code))
        self.active[queue] = None

    def _end(self, batch: Batch, error: KafkaError | None) -> None:
        self._used -= batch.reserved_bytes
        self.incomplete -= 1
        if error is None:
            self.metrics.sent_records += batch.record_count
        else:
            self.metrics.failed_records += batch.record_count
            batch.queue.note_loss(batch)
        batch.end(error)

    def expire(
        self, now_ms: float, obstacle: Callable[[float], str], consequence: Callable[[], str] = str
    ) -> list[Batch]:
        """Fail all batches that have waited for `delivery.timeout.ms`, and return them.

        For the error's text, `obstacle` describes the obstacle for a batch since its creation, and `consequence` the
        consequence of its loss.
        """
        if not self.active:
            return []
        due_ms = now_ms - self._delivery_timeout_ms
        expired = [batch for queue in self.active for batch in queue.waiting() if batch.created_ms <= due_ms]
        for batch in expired:
            self._discard(
                batch,
                DeliveryError(
                    f"{batch.record_count} record(s) for {batch.topic}-{batch.partition} were not acknowledged within "
                    f"delivery.timeout.ms={self._delivery_timeout_ms:.0f} ({obstacle(batch.created_ms)})"
                    f"{consequence()}"
                ),
            )
        return expired

    def drop_waiting(self, error: KafkaError) -> None:
        """Fail all batches that are not in flight."""
        for batch in [batch for queue in self.active for batch in queue.waiting()]:
            self._discard(batch, error)

    def drop_all(self, error: KafkaError) -> None:
        """Fail all batches: the producer is closed, or failed between two changes of the queues."""
        self.mend()
        self.drop_waiting(error)
        for batch in self.incomplete_batches():
            self.failed(batch, error)

    def _discard(self, batch: Batch, error: KafkaError) -> None:
        queue = batch.queue
        self._end(batch, error)
        if batch is queue.open:
            queue.open = None
            self._open.pop(queue, None)
        else:
            (queue.retries if batch in queue.retries else queue.closed).remove(batch)
        self._deactivate_if_empty(queue)
