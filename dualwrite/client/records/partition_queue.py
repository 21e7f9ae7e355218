"""Batches, their parts after a split, and the queue of each partition."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from dualwrite.client.pacing import Backoff
from dualwrite.client.records.batches import BatchRecords, BuiltBatch, EncodedBatch
from dualwrite.errors import KafkaError

NUMBERS_OF_A_BATCH: Final = 2**31
"""The distance between the numbers of consecutive batches: each has room for the numbers of its parts."""

_UNLIMITED: Final = 2**31
_BY_FIRST_INDEX: Final = attrgetter("first_index")
BY_NUMBER: Final = attrgetter("number")


class Part(NamedTuple):
    """Consecutive records of one batch."""

    batch: Batch
    first_index: int
    record_count: int


class Batch:
    """Records of one partition that are sent, stored and acknowledged together.

    A batch that is too large for its topic is split: it has `parts` then, is never sent itself, and is done when they
    are. `number` orders the batches of a producer; a part's is that of its whole plus the index of its first record.
    """

    __slots__ = (
        "_listeners",
        "append",
        "base_offset",
        "base_sequence",
        "created_ms",
        "data",
        "done",
        "error",
        "first_index",
        "log_append_time_ms",
        "may_be_stored",
        "number",
        "partition",
        "parts",
        "producer_epoch",
        "producer_id",
        "queue",
        "record_count",
        "records",
        "reserved_bytes",
        "topic",
        "whole",
    )

    def __init__(self, queue: PartitionQueue, number: int, records: BatchRecords, created_ms: float) -> None:
        self.queue = queue
        self.topic = queue.topic
        self.partition = queue.partition
        self.number = number
        self.records = records
        self.append = records.append
        self.created_ms = created_ms
        self.record_count = 0
        self.reserved_bytes = 0
        self.data: BuiltBatch = _NOT_BUILT
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.done = False
        self.error: KafkaError | None = None
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.may_be_stored = False
        """Whether a request with this batch had no response, or one after which it may have been stored."""
        self.parts: list[Batch] = []
        self.whole: Batch | None = None
        self.first_index = 0
        """Index of the first record in `whole`."""
        self._listeners: deque[Callable[[], None]] | None = None

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the outcome of this batch is known; immediately if it already is."""
        if self.done:
            listener()
        elif self._listeners is None:
            self._listeners = deque((listener,))
        else:
            self._listeners.append(listener)

    def end(self, error: KafkaError | None) -> None:
        """Set the outcome of this batch and notify its listeners; `error` is None if the batch was stored.

        Harmless when repeated, after an exception: the first outcome stays.
        """
        if not self.done:
            self.error = error
            self.done = True
        self.data = _NOT_BUILT
        self.records, self.append = _NO_RECORDS, _NO_RECORDS.append  # futures may keep this batch for long
        while self._listeners:
            self._listeners.popleft()()
        if self.whole is not None and all(part.done for part in self.whole.parts):
            self.whole.end(None)

    @property
    def doubtful(self) -> Batch | None:
        """The largest batch with these records that may be stored: this one, or one that was split into it."""
        found: Batch | None = None
        batch: Batch | None = self
        while batch is not None:
            found, batch = batch if batch.may_be_stored else found, batch.whole
        return found

    def settle_doubt(self) -> None:
        """Note that this batch is stored: its sequence has passed, so a batch that it was split from never will be."""
        batch: Batch | None = self
        while batch is not None:
            batch.may_be_stored, batch = False, batch.whole

    def follows_loss(self, producer_epoch: int) -> bool:
        """Return whether an out-of-order error only means that a batch of the same sequence was given up.

        The epoch was raised then; losses in other partitions raise it, too. Without a gap in the sequence, the broker
        has lost a batch that it had acknowledged. This one is surely not stored if no request with it may still arrive.
        """
        return self.queue.has_gap and self.producer_epoch != producer_epoch and self.doubtful is None

    def contains(self, other: Batch) -> bool:
        """Return whether `other` is this batch or was split from it."""
        return self.number <= other.number < self.number + self.record_count

    def split_into(self, parts: list[Batch]) -> None:
        """Give this batch parts, which are sent in its place."""
        self.parts = parts
        self.data = _NOT_BUILT

    def part_with(self, index: int) -> tuple[Batch, int]:
        """Return the batch that a record was sent in, this one or a part, and the record's index there."""
        batch = self
        while batch.parts:
            batch = batch.parts[bisect_right(batch.parts, index, key=_BY_FIRST_INDEX) - 1]
            index -= batch.first_index
        return batch, index

    def parts_with(self, first_index: int, record_count: int) -> Iterator[Part]:
        """Yield the batches that consecutive records were sent in."""
        end = first_index + record_count
        while first_index < end:
            batch, index = self.part_with(first_index)
            count = min(batch.record_count - index, end - first_index)
            yield Part(batch, index, count)
            first_index += count


_NOT_BUILT: Final = bytearray()
_NO_RECORDS: Final = EncodedBatch(b"", record_count=0, first_timestamp_ms=0, max_timestamp_ms=0, transactional=False)


class PartitionQueue:
    """The batches of one partition: open for more records, closed, to be sent again, in flight."""

    __slots__ = (
        "acknowledged_id",
        "backoff",
        "closed",
        "has_gap",
        "in_flight",
        "muted_until_ms",
        "next_sequence",
        "open",
        "partition",
        "producer_epoch",
        "producer_id",
        "refused_bytes",
        "retries",
        "topic",
    )

    def __init__(self, topic: str, partition: int, backoff: Backoff) -> None:
        self.topic = topic
        self.partition = partition
        self.open: Batch | None = None
        self.closed: deque[Batch] = deque()
        self.retries: list[Batch] = []
        self.in_flight: list[Batch] = []
        self.backoff = backoff
        self.muted_until_ms = 0.0
        self.producer_id = -1
        self.producer_epoch = -1
        self.next_sequence = 0
        self.has_gap = False
        """Whether a batch of the present sequence was given up."""
        self.acknowledged_id = -1
        """The producer id of the batch that was acknowledged last: the broker knows its sequence."""
        self.refused_bytes = _UNLIMITED
        """Size of the smallest batch that was too large for the topic."""

    def waiting(self) -> list[Batch]:
        """Return all batches that are not in flight, oldest first."""
        return [*self.retries, *self.closed, *([self.open] if self.open is not None else [])]

    def mend(self) -> None:
        """Finish changes that an exception has interrupted, and close the open batch.

        A batch with an outcome is in no place, one with parts has them in its place, and one that waits is not in
        flight.
        """
        found = [*self.waiting(), *self.in_flight]
        for batch in found:
            if batch.done:
                batch.end(batch.error)
        parts = [part for batch in found for part in batch.parts]
        opened = [] if self.open is None else [self.open]
        self.retries = sorted(_unsettled([*self.retries, *parts]), key=BY_NUMBER)
        self.closed, self.open = deque(_unsettled([*self.closed, *opened])), None
        self.in_flight = [batch for batch in _unsettled(self.in_flight) if batch not in self.waiting()]

    def begin_sequence(self, producer_id: int, producer_epoch: int) -> None:
        """Begin a new sequence, without a gap."""
        self.producer_id, self.producer_epoch, self.next_sequence = producer_id, producer_epoch, 0
        self.has_gap = False

    def note_loss(self, batch: Batch) -> None:
        """Note that a batch was given up: that leaves a gap if it has a place in the present sequence."""
        if (batch.producer_id, batch.producer_epoch) == (self.producer_id, self.producer_epoch):
            self.has_gap = True

    def has_unresolved_before(self, batch: Batch) -> bool:
        """Return whether the broker may lack an earlier batch, which explains an out-of-order error for this one."""
        if len(self.in_flight) == 1 and not self.retries:
            return self.in_flight[0].number < batch.number
        return any(other.number < batch.number for other in (*self.in_flight, *self.retries))


def _unsettled(batches: Iterable[Batch]) -> list[Batch]:
    """Return the batches that have no outcome and no parts, each once."""
    return [batch for batch in dict.fromkeys(batches) if not (batch.done or batch.parts)]
