"""One partition of the model: a log as a value, its rules for batches and markers, and the view of its readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.producer_state import NO_COORDINATOR_EPOCH, NO_OFFSET, ProducerEntry, check_marker
from tests.proof.kafka_requests import BLOCKED, EndOf, Piece, Produce, Produced, RecordsOf, RepairOf, WriteMarker
from tests.proof.remembered import remembered

FENCED: Final = 47
_OUT_OF_ORDER: Final = 45


class Batch(NamedTuple):
    """A batch in the log."""

    offset: int
    producer_id: int
    producer_epoch: int
    sequence: int
    records: tuple[bytes, ...]


class Marker(NamedTuple):
    """A control batch in the log."""

    offset: int
    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int = 0


Log = tuple[Batch | Marker, ...]


# ---- writing --------------------------------------------------------------------------------------------------------


def is_open(log: Log, producer_id: int, epoch: int | None = None) -> bool:
    """Return whether a transaction of the producer id is open, with `epoch` of that epoch."""
    last = next((entry for entry in reversed(log) if entry.producer_id == producer_id), None)
    return isinstance(last, Batch) and epoch in (None, last.producer_epoch)


def open_pairs(log: Log) -> list[tuple[int, int]]:
    """Return the producer id and epoch of each transaction that is open."""
    found = []
    for producer_id in sorted({entry.producer_id for entry in log}):
        last = next(entry for entry in reversed(log) if entry.producer_id == producer_id)
        if isinstance(last, Batch):
            found.append((producer_id, last.producer_epoch))
    return found


def append_batch(log: Log, request: Produce) -> tuple[Log, Produced]:
    """Append the batch of a request that was verified; return the response."""
    producer_id, epoch = request.producer_id, request.producer_epoch
    mine = [entry for entry in log if entry.producer_id == producer_id]
    if epoch < newest_epoch(log, producer_id):
        return log, Produced(FENCED)
    batches = [entry for entry in mine if isinstance(entry, Batch) and entry.producer_epoch == epoch]
    for batch in batches:
        if (batch.sequence, len(batch.records)) == (request.sequence, len(request.records)):
            return log, Produced(0, batch.offset)
    expected = batches[-1].sequence + len(batches[-1].records) if batches else 0
    may_be_any = not mine and request.transaction_version < 2  # of a producer that the partition does not know
    if request.sequence != expected and not may_be_any:
        return log, Produced(_OUT_OF_ORDER)
    batch = Batch(end_offset(log), producer_id, epoch, request.sequence, request.records)
    return (*log, batch), Produced(0, batch.offset)


def newest_epoch(log: Log, producer_id: int) -> int:
    """Return the newest epoch of a producer id; -1 if the partition does not know it."""
    return max((entry.producer_epoch for entry in log if entry.producer_id == producer_id), default=-1)


def end_offset(log: Log) -> int:
    """Return the offset of the next record."""
    if not log:
        return 0
    last = log[-1]
    return last.offset + (len(last.records) if isinstance(last, Batch) else 1)


def append_marker(log: Log, marker: WriteMarker) -> tuple[Log, ErrorCode]:
    """Append a marker, by the emulator's own rule; return the leader's response."""
    entry = _entry_of(log, marker.producer_id)
    rejection = check_marker(entry, marker.producer_epoch, marker.coordinator_epoch, marker.transaction_version)
    if rejection is not None:
        return log, rejection.error
    pair = marker.producer_id, marker.producer_epoch
    return (*log, Marker(end_offset(log), *pair, marker.committed, marker.coordinator_epoch)), ErrorCode.none


def coordinator_epoch_of(log: Log, producer_id: int) -> int:
    """Return the coordinator epoch of the newest marker of a producer id; -1 if there is none."""
    markers = (entry for entry in reversed(log) if entry.producer_id == producer_id and isinstance(entry, Marker))
    return next((marker.coordinator_epoch for marker in markers), NO_COORDINATOR_EPOCH)


def _entry_of(log: Log, producer_id: int) -> ProducerEntry | None:
    epoch = newest_epoch(log, producer_id)
    if epoch < 0:
        return None
    first_open = 0 if is_open(log, producer_id) else NO_OFFSET
    return ProducerEntry(epoch, coordinator_epoch_of(log, producer_id), 0, 0, first_open, ())


# ---- reading --------------------------------------------------------------------------------------------------------


def end_of(log: Log, request: EndOf) -> object:
    """Return the response; `BLOCKED` before the marker behind the last record."""
    behind = [entry for entry in log if entry.offset >= request.first_offset]
    if not behind or behind[0][1:3] != (request.producer_id, request.producer_epoch):
        return "GONE"
    for entry in behind:
        is_behind = entry.offset > request.last_offset and entry.producer_id == request.producer_id
        if is_behind and isinstance(entry, Marker):
            return _committed_in_part(log, request) if entry.committed else "ABORTED"
    return BLOCKED


def _committed_in_part(log: Log, request: EndOf) -> object:
    """Return the response where the last record is committed: the first ones may have been aborted before."""
    aborted: list[Batch] = []
    rest: list[Batch] = []
    for entry in log:
        if isinstance(entry, Batch) and _is_asked_for(entry, request):
            rest.append(entry)
        is_between = request.first_offset < entry.offset < request.last_offset
        if is_between and isinstance(entry, Marker) and entry[1] == request.producer_id and not entry.committed:
            aborted, rest = [*aborted, *rest], []
    if not aborted:
        return "COMMITTED"
    return _piece(aborted, "ABORTED"), _piece(rest, "COMMITTED")


def _piece(batches: Sequence[Batch], end: str) -> Piece:
    counts = [len(batch.records) for batch in batches]
    return Piece(batches[0].offset, batches[-1].offset + counts[-1] - 1, sum(counts), end)


def _is_asked_for(batch: Batch, request: EndOf | RecordsOf) -> bool:
    is_own = batch[1:3] == (request.producer_id, request.producer_epoch)
    return is_own and request.first_offset <= batch.offset <= request.last_offset


def records_of(log: Log, request: RecordsOf) -> tuple[bytes, ...]:
    found: list[bytes] = []
    for entry in log:
        if isinstance(entry, Batch) and _is_asked_for(entry, request):
            found += entry.records
    return tuple(found)


def repair_of(log: Log, request: RepairOf) -> object:
    """Return the pair of the transaction that published the records of a pair again, "" if there is none.

    `BLOCKED` while a transaction that looks like it is open.
    """
    wanted = records_of(log, RecordsOf(*request[:5]))
    behind = [entry for entry in log if entry.offset > request.last_offset]
    is_blocked = False
    for at, entry in enumerate(behind):
        if entry[1:3] == request[:2] or not isinstance(entry, Batch) or entry.records[: len(wanted)] != wanted:
            continue
        pair = f"{entry.producer_id}:{entry.producer_epoch}"
        if _is_committed(behind[at:], entry):
            return pair
        is_over = any(isinstance(each, Marker) and each.producer_id == entry.producer_id for each in behind[at:])
        is_blocked = is_blocked or not (is_over or pair == request.undecided)
    return BLOCKED if is_blocked else ""


def _is_committed(behind: Sequence[Batch | Marker], batch: Batch) -> bool:
    ends = (entry for entry in behind if isinstance(entry, Marker) and entry.producer_id == batch.producer_id)
    end = next(ends, None)
    return end is not None and end.committed


@remembered
def visible(log: Log) -> list[bytes]:
    """Return the records that readers with read_committed see, also beyond the last stable offset."""
    found: list[bytes] = []
    for at, entry in enumerate(log):
        if isinstance(entry, Batch) and _is_committed(log[at:], entry):
            found += entry.records
    return found
