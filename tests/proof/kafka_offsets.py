"""The offsets of one consumer group in the model, as a fold over the log that stores them.

A record is `reader=offset`. It is pending under its producer id until the next marker of that producer id (KIP-98), and
the later record in the log wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.proof.kafka_log import FENCED, Batch, Log, end_offset, newest_epoch, visible
from tests.proof.kafka_requests import CommitOffset, OffsetCommitted


class Position(NamedTuple):
    """The position of the reader of one input."""

    reader: str
    offset: int


def position_of(value: bytes) -> Position:
    """Return the position that goes with the dual write of a value: `a2` has read two records of the input `a`."""
    text = value.decode()
    return Position(text[0], int(text[1:]))


def append_offset(log: Log, request: CommitOffset, *, forgets: bool) -> tuple[Log, OffsetCommitted]:
    """Append an offset of a transaction that was verified.

    `forgets`: a request with an old epoch makes the group coordinator forget the pending offsets of the producer id, as
    in Kafka 3.9. A group coordinator does not check sequences.
    """
    producer_id, epoch = request.producer_id, request.producer_epoch
    if epoch < newest_epoch(log, producer_id):
        return _without_pending(log, producer_id) if forgets else log, OffsetCommitted(FENCED)
    record = f"{request.reader}={request.offset}".encode()
    return (*log, Batch(end_offset(log), producer_id, epoch, -1, (record,))), OffsetCommitted(0)


def _without_pending(log: Log, producer_id: int) -> Log:
    """Return the log with the pending offsets of a producer id emptied: they are there, but never applied."""
    kept = list(log)
    for at in range(len(log) - 1, -1, -1):
        entry = log[at]
        if entry.producer_id == producer_id:
            if not isinstance(entry, Batch):
                break
            kept[at] = entry._replace(records=(b"",))
    return tuple(kept)


def committed_positions(log: Log) -> Iterator[Position]:
    """Yield each position that was committed, in the order of the log; the last one of a reader is where it stands."""
    for record in visible(log):
        if record:
            reader, offset = record.decode().split("=")
            yield Position(reader, int(offset))
