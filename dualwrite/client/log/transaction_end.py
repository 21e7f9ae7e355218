"""Decide the end of a prepared transaction in a partition, and find its records, by the log. Without I/O.

A pair (producer id and epoch) belongs to one prepared transaction only, so its batches are that transaction's. Its end
is the first marker of its producer id behind its last record, with any epoch, because a producer id has one transaction
at a time. If everything before the last stable offset is decided, the leader's list of aborted transactions says the
same without reading as far as the marker.

A partition accepts more batches of a pair behind an operator's abort marker. Then the first records are aborted, and
the last ones are not: `HeadSearch` finds the border.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from dualwrite.client.log.codec import Fetched
from dualwrite.client.records.batch_reading import Marker, StoredBatch, StoredRecord, marker_of, records_of
from dualwrite.client.transactions.manifest import PartitionManifest
from dualwrite.prepared_state import PreparedTxnState


class PartitionEnd(Enum):
    """How a transaction ended in one partition, as consumers with read_committed see it."""

    COMMITTED = "its records are visible"
    ABORTED = "its records are stored, and never visible"
    GONE = (
        "its records are no longer stored at these offsets: they were deleted, compacted or lost, or the "
        "topic was created again"
    )


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """How a transaction ended in each partition of its manifest.

    A partition in which an operator aborted only the first records is here twice: with these, and with the rest.
    """

    by_partition: Mapping[PartitionManifest, PartitionEnd]

    @property
    def committed(self) -> bool:
        """Whether it is proven to be committed: its coordinator decides for all partitions alike, so one is enough.

        False if it has no partitions, which proves nothing.
        """
        return PartitionEnd.COMMITTED in self.by_partition.values() and not self.aborted

    @property
    def aborted(self) -> tuple[PartitionManifest, ...]:
        """The partitions in which it was aborted: its records there can be read, and published again."""
        return self._those(PartitionEnd.ABORTED)

    @property
    def gone(self) -> tuple[PartitionManifest, ...]:
        """The partitions in which nothing is left to tell the end."""
        return self._those(PartitionEnd.GONE)

    @property
    def is_visible(self) -> bool:
        """Whether it is proven to be committed in any partition."""
        return PartitionEnd.COMMITTED in self.by_partition.values()

    def _those(self, wanted: PartitionEnd) -> tuple[PartitionManifest, ...]:
        return tuple(partition for partition, end in self.by_partition.items() if end is wanted)


class Next(Enum):
    """The next step of a search that has no result yet."""

    FETCH = "another fetch, at once"
    WAIT = "another fetch after a pause: the marker or the records may still be written"


ResultT = TypeVar("ResultT")

_ENDS: Final = {Marker.COMMIT: PartitionEnd.COMMITTED, Marker.ABORT: PartitionEnd.ABORTED}


class Search(ABC, Generic[ResultT]):
    """A search in one partition, fetch by fetch, from `offset` on.

    Other partitions of a request may leave no room for a batch of this one. Only when it was requested `alone` does an
    empty response mean that nothing is stored there.
    """

    def __init__(self, part: PartitionManifest, prepared: PreparedTxnState, offset: int) -> None:
        self.part: Final = part
        self.offset = offset
        self.alone = False
        self.read_committed = False
        """Whether the next fetch is of decided records only."""
        self._prepared: Final = prepared

    @abstractmethod
    def take(self, fetched: Fetched) -> ResultT | Next:
        """Return the result by a fetch from `offset` on, or the next step."""

    @abstractmethod
    def without_topic(self) -> ResultT:
        """Return the result if the topic, or the partition, does not exist."""

    def _stored(self, fetched: Fetched) -> list[StoredBatch]:
        """Return the batches from the requested offset on."""
        return [batch for batch in fetched.batches if batch.last_offset >= self.offset]

    def _is_own(self, batch: StoredBatch) -> bool:
        pair = batch.producer_id, batch.producer_epoch
        own = self._prepared.producer_id, self._prepared.producer_epoch
        return pair == own and batch.is_transactional and not batch.is_control

    def _asks_alone(self) -> bool:
        """Return whether the same fetch is to be repeated alone, after an empty response."""
        if self.alone:
            return False
        self.alone = True
        return True

    def _advance(self, batches: Sequence[StoredBatch]) -> None:
        self.offset = batches[-1].last_offset + 1
        self.alone = False


class EndSearch(Search[PartitionEnd]):
    """The search for the end of a transaction in one partition.

    It looks first in the decided records; if the transaction is not among them, because it or another one is open, it
    looks for the marker.
    """

    def __init__(self, part: PartitionManifest, prepared: PreparedTxnState) -> None:
        super().__init__(part, prepared, part.last_offset)
        self.read_committed = True
        self._probes = False
        """Whether the fetch is from behind the last record, to see whether the log reaches as far."""
        self.has_no_marker = False
        """Whether the log was read from the last record to its end, and no marker was there."""

    def take(self, fetched: Fetched) -> PartitionEnd | Next:
        """Return the end, or the next step."""
        self.has_no_marker = False
        if fetched.out_of_range:
            return self._out_of_range()
        if self._probes:
            return self._begin_again()  # it does reach as far: a new leader does not show its whole log yet
        batches = self._stored(fetched)
        if self.read_committed:
            return self._take_decided(fetched, batches)
        return self._take_all(fetched, batches)

    def without_topic(self) -> PartitionEnd:
        """Return that nothing is left."""
        return PartitionEnd.GONE

    @property
    def _is_at_last_record(self) -> bool:
        return self.offset == self.part.last_offset

    def _out_of_range(self) -> PartitionEnd | Next:
        if self._is_at_last_record or self._probes:
            return PartitionEnd.GONE
        return self._begin_again()  # the log has lost records that were read behind the transaction

    def _begin_again(self) -> Next:
        """Look at the transaction's own records again, after a pause."""
        self.offset, self.read_committed, self.alone, self._probes = self.part.last_offset, True, False, False
        return Next.WAIT

    def _take_decided(self, fetched: Fetched, batches: Sequence[StoredBatch]) -> PartitionEnd | Next:
        if fetched.last_stable_offset <= self.part.last_offset:
            return self._look_for_marker()
        if not batches:
            return Next.FETCH if self._asks_alone() else PartitionEnd.GONE
        if not self._has_last_record(batches[0]):
            return PartitionEnd.GONE
        aborted = [
            first
            for producer_id, first in fetched.aborted
            if producer_id == self._prepared.producer_id and first <= self.part.last_offset
        ]
        if any(first >= self.part.first_offset for first in aborted):
            return PartitionEnd.ABORTED
        # A list that goes back further than needed (Kafka's does not) has earlier transactions of the producer.
        return self._look_for_marker() if aborted else PartitionEnd.COMMITTED

    def _look_for_marker(self) -> Next:
        self.read_committed = self.alone = False
        return Next.FETCH

    def _has_last_record(self, batch: StoredBatch) -> bool:
        return self._is_own(batch) and batch.base_offset <= self.part.last_offset

    def _take_all(self, fetched: Fetched, batches: Sequence[StoredBatch]) -> PartitionEnd | Next:
        if not batches:
            return self._nothing_more(fetched)
        if self._is_at_last_record and not self._has_last_record(batches[0]):
            return PartitionEnd.GONE
        for batch in batches:
            if batch.producer_id == self._prepared.producer_id and batch.base_offset > self.part.last_offset:
                marker = marker_of(self.part.topic, self.part.partition, batch)
                if marker is not None:
                    return _ENDS[marker]
        self._advance(batches)
        return Next.FETCH if self.offset < fetched.high_watermark else self._await_marker()

    def _await_marker(self) -> Next:
        self.has_no_marker = True
        return Next.WAIT

    def _nothing_more(self, fetched: Fetched) -> PartitionEnd | Next:
        if self.offset >= fetched.high_watermark:
            if self._is_at_last_record:  # the log ends here, or a new leader does not know its high watermark yet
                self.offset += 1
                self._probes = True
                return Next.FETCH
            return self._await_marker()
        if self._asks_alone():
            return Next.FETCH
        return PartitionEnd.GONE if self._is_at_last_record else Next.WAIT


def first_record_of(part: PartitionManifest) -> PartitionManifest:
    """Return where the first record is."""
    return part._replace(last_offset=part.first_offset, record_count=1)


class HeadSearch(Search[Mapping[PartitionManifest, PartitionEnd]]):
    """The search for the records that an abort marker ended before the last ones of the transaction were written.

    To be made where the first record is aborted, and the last one is committed. Records that the log has lost count as
    aborted ones, so that these cannot be taken for complete.
    """

    def __init__(self, part: PartitionManifest, prepared: PreparedTxnState) -> None:
        super().__init__(part, prepared, part.first_offset)
        self._aborted: list[StoredBatch] = []
        self._rest: list[StoredBatch] = []
        """The batches behind the last abort marker."""

    def take(self, fetched: Fetched) -> Mapping[PartitionManifest, PartitionEnd] | Next:
        """Return the two parts, or the next step. Raises as `records_of`."""
        batches = [] if fetched.out_of_range else self._stored(fetched)
        if not batches:
            may_follow = not fetched.out_of_range and self._asks_alone()
            return Next.FETCH if may_follow else self._parts()
        for batch in batches:
            if batch.base_offset <= self.part.last_offset:
                self._take_batch(batch)
        self._advance(batches)
        return Next.FETCH if self.offset <= self.part.last_offset else self._parts()

    def without_topic(self) -> Mapping[PartitionManifest, PartitionEnd]:
        """Return the parts that were read before the topic was deleted."""
        return self._parts()

    def _take_batch(self, batch: StoredBatch) -> None:
        if self._is_own(batch):
            self._rest.append(batch)
            return
        is_own_marker = batch.is_control and batch.producer_id == self._prepared.producer_id
        if is_own_marker and marker_of(self.part.topic, self.part.partition, batch) is Marker.ABORT:
            self._aborted += self._rest
            self._rest = []

    def _parts(self) -> Mapping[PartitionManifest, PartitionEnd]:
        if not (self._aborted and self._rest):
            return {self.part: PartitionEnd.GONE}
        count = sum(batch.record_count for batch in self._rest)
        border = self._aborted[-1].last_offset
        head = self.part._replace(last_offset=border, record_count=self.part.record_count - count)
        rest = self.part._replace(first_offset=self._rest[0].base_offset, record_count=count)
        return {head: PartitionEnd.ABORTED, rest: PartitionEnd.COMMITTED}


class RecordSearch(Search[list[StoredRecord]]):
    """The search for the records of a transaction in one partition. Its result lacks records that are gone."""

    def __init__(self, part: PartitionManifest, prepared: PreparedTxnState) -> None:
        super().__init__(part, prepared, part.first_offset)
        self._records: list[StoredRecord] = []
        self.has_broker_time = False
        """Whether some of the records have the broker's timestamps."""

    def take(self, fetched: Fetched) -> list[StoredRecord] | Next:
        """Return the records, or the next step. Raises as `records_of`."""
        if fetched.out_of_range:
            return self._records
        batches = self._stored(fetched)
        if not batches:
            if self.offset >= fetched.high_watermark:
                return Next.WAIT
            return Next.FETCH if self._asks_alone() else self._records
        topic, partition, first, last, _ = self.part
        for batch in batches:
            if self._is_own(batch) and batch.base_offset <= last:
                records = records_of(topic, partition, batch)
                self._records.extend(record for record in records if first <= record.offset <= last)
                self.has_broker_time |= batch.has_broker_time
        self._advance(batches)
        return Next.FETCH if self.offset <= last else self._records

    def without_topic(self) -> list[StoredRecord]:
        """Return the records that were read before the topic was deleted."""
        return self._records
