"""Search the log for the repair of an aborted transaction: whether its records were published again already.

The row of a transactional id names the transaction that published them, so the search is needed only if the row may
have gone back: the database was restored, or failed over, to a state before the repair. A repair sends the owed records
before all others, in the same order and to the same partition. So it is a committed transaction behind the aborted one
whose first records there are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from dualwrite.client.log.codec import Fetched
from dualwrite.client.log.transaction_end import Next, Search
from dualwrite.client.records.batch_reading import Marker, StoredBatch, StoredRecord, marker_of, records_of
from dualwrite.client.records.late import original
from dualwrite.client.transactions.manifest import PartitionManifest
from dualwrite.prepared_state import PreparedTxnState


class RepairSearch(Search[PreparedTxnState | None]):
    """The search for a committed transaction that begins with the records of an aborted one, in one partition.

    Its result is the pair of that transaction, None if the log has none up to its end. `records` are the records of the
    aborted transaction that the log still has. `undecided` is an open transaction that is going to be aborted. Only
    pairs for which `may_be` returns True are compared. With `is_pinned`, another partition has named the pair by the
    timestamps, and those of the broker are not compared here.
    """

    def __init__(
        self,
        part: PartitionManifest,
        prepared: PreparedTxnState,
        records: Sequence[StoredRecord],
        undecided: PreparedTxnState,
        may_be: Callable[[PreparedTxnState], bool],
        *,
        is_pinned: bool = False,
    ) -> None:
        super().__init__(part, prepared, part.last_offset + 1)
        self._may_be: Final = may_be
        self._is_pinned: Final = is_pinned
        self._records: Final = records
        self._undecided: Final = undecided
        self._open: Final[dict[int, _Likeness]] = {}  # by producer id, which has one transaction at a time

    def take(self, fetched: Fetched) -> PreparedTxnState | Next | None:
        """Return the pair, None, or the next step. Raises as `records_of`."""
        if fetched.out_of_range:
            return self._begin_again()
        batches = self._stored(fetched)
        if not batches:
            if self.offset < fetched.high_watermark:
                return Next.FETCH if self._asks_alone() else Next.WAIT
            return self._at_end()
        for batch in batches:
            pair = self._take_batch(batch)
            if pair is not None:
                return pair
        self._advance(batches)
        return Next.FETCH if self.offset < fetched.high_watermark else self._at_end()

    def without_topic(self) -> PreparedTxnState | None:
        """Return None: without a topic there is no repair."""
        return None

    def _begin_again(self) -> Next:
        """Begin at the first record behind the transaction, after a pause: the log has lost records that were read."""
        self._open.clear()
        self.offset, self.alone = self.part.last_offset + 1, False
        return Next.WAIT

    def _at_end(self) -> PreparedTxnState | Next | None:
        """Return None, unless a transaction that looks like the repair may still be committed."""
        undecided = any(each.is_repair and each.pair != self._undecided for each in self._open.values())
        return Next.WAIT if undecided else None

    def _take_batch(self, batch: StoredBatch) -> PreparedTxnState | None:
        if not batch.is_transactional:
            return None
        if batch.is_control:
            return self._take_marker(batch)
        pair = PreparedTxnState.of(producer_id=batch.producer_id, producer_epoch=batch.producer_epoch)
        if pair == self._prepared or not self._may_be(pair):
            return None  # the former is behind the marker that an operator wrote
        likeness = self._open.get(batch.producer_id)
        if likeness is None or likeness.pair != pair:
            is_same_id = pair.producer_id == self._prepared.producer_id
            likeness = _Likeness(pair, self.part, self._records, is_same_id=is_same_id, is_pinned=self._is_pinned)
            self._open[batch.producer_id] = likeness
        likeness.take(batch)
        return None

    def _take_marker(self, batch: StoredBatch) -> PreparedTxnState | None:
        likeness = self._open.pop(batch.producer_id, None)
        if likeness is None or not likeness.is_repair:
            return None
        is_commit = marker_of(self.part.topic, self.part.partition, batch) is Marker.COMMIT
        return likeness.pair if is_commit else None


class _Likeness:
    """Match score between a transaction and the aborted one.

    If its producer id is another one, and thus maybe another application's, the original timestamps have to match too
    (`late.py`). They do not if the repair was made from a copy, or if the topic uses the broker's time: there they are
    left out if the pair `is_pinned` by another partition.
    """

    def __init__(
        self,
        pair: PreparedTxnState,
        part: PartitionManifest,
        records: Sequence[StoredRecord],
        *,
        is_same_id: bool,
        is_pinned: bool,
    ) -> None:
        self.pair: Final = pair
        self._part: Final = part
        self._records: Final = records
        self._is_same_id: Final = is_same_id
        self._is_pinned: Final = is_pinned
        self._matched = 0
        self._left = part.record_count

    @property
    def is_repair(self) -> bool:
        """Whether it begins with all records of the aborted transaction that the log still has.

        If it has none, nothing tells about another producer id.
        """
        return self._left == 0 and self._matched == len(self._records) and (self._is_same_id or self._matched > 0)

    def take(self, batch: StoredBatch) -> None:
        """Compare the next records, as long as they may be a repair's.

        If the log has lost some of the aborted records, the remaining ones are among the first records of a repair.
        """
        if self._left == 0 or self._missing > self._left:
            return
        is_timeless = self._is_same_id or (self._is_pinned and batch.has_broker_time)
        records = records_of(self._part.topic, self._part.partition, batch)
        for record in islice(records, self._left):
            self._left -= 1
            if self._missing and _is_like(self._records[self._matched], record, is_timeless=is_timeless):
                self._matched += 1

    @property
    def _missing(self) -> int:
        return len(self._records) - self._matched


def _is_like(aborted: StoredRecord, record: StoredRecord, *, is_timeless: bool) -> bool:
    ours, theirs = original(aborted.headers, aborted.timestamp_ms), original(record.headers, record.timestamp_ms)
    is_same = (aborted.key, aborted.value, ours.headers) == (record.key, record.value, theirs.headers)
    return is_same and (is_timeless or ours.timestamp_ms == theirs.timestamp_ms)
