"""Read a log back: the records of a coordinator at a start, and the records that consumers see.

The broker stores and serves compressed batches as they are. `record_batch.iter_records` decompresses only gzip; this
module also decompresses snappy, lz4 and zstd, with cramjam if it is installed.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dualwrite.broker_emulator.log.compression import (
    GZIP,
    MOST_BYTES,
    NAMES,
    NONE,
    CodecMissingError,
    DecompressionError,
    ExpansionError,
    decompressed,
)
from dualwrite.broker_emulator.log.record import Record
from dualwrite.broker_emulator.log.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    CorruptRecordError,
    EndTxnMarker,
    UnsupportedCompressionError,
    iter_records,
    parse_end_txn_marker,
    parse_header,
    with_records,
)
from dualwrite.broker_emulator.log.segments import StorageError

if TYPE_CHECKING:
    from dualwrite.broker_emulator.log.partition_log import PartitionLog


logger = logging.getLogger(__name__)

Apply = Callable[[BatchHeader, Record], None]

UNREADABLE = (ValueError, LookupError, TypeError, OverflowError, struct.error)
"""Errors raised by reading the fields of an invalid record."""


class UnreadableRecordError(StorageError):
    """A record that no coordinator could have written."""


class UnknownKeyVersionError(Exception):
    """A record whose key has a version of a later release, perhaps from an upgrade that was undone."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def replay(log: PartitionLog, apply: Apply) -> None:
    """Pass every record to `apply`, in order. Raises UnreadableRecordError if it cannot be read.

    A record with a key of an unknown version is ignored with a warning, as in Kafka.
    """
    for batch in log.batches() if log.log_end_offset else ():
        header = parse_header(batch)
        offset = header.base_offset
        try:
            for record in iter_records(batch):
                offset = record.offset
                _apply(log, apply, header, record)
        except UNREADABLE as error:
            raise UnreadableRecordError(
                f"{log.location(offset)}: the record at offset {offset} of {log.topic}-{log.partition} cannot be read "
                f"({str(error) or type(error).__name__}), so the coordinator of this partition cannot start. Restore "
                "the file, or delete the partition's folder and the file log-ends to start without its state"
            ) from error


def _apply(log: PartitionLog, apply: Apply, header: BatchHeader, record: Record) -> None:
    try:
        apply(header, record)
    except UnknownKeyVersionError as error:
        logger.warning(
            "%s-%d has a record with the key version %d at offset %d; ignoring it, as it may be left over from a "
            "later version",
            log.topic,
            log.partition,
            error.version,
            record.offset,
        )


class LoggedRecord(NamedTuple):
    """A record or marker, with the outcome of its transaction."""

    record: Record
    producer_id: int
    is_transactional: bool
    is_committed: bool | None
    """None if the transaction is open, or if there is none."""
    marker: EndTxnMarker | None


def visible_records(
    batches: Sequence[bytes], *, start_offset: int = 0, end_offset: int, read_committed: bool
) -> Iterator[Record]:
    """Yield the records below `end_offset`: the high watermark or, with `read_committed`, the last stable offset.

    `batches` must reach to the end of the log, because the marker of a transaction may come after `end_offset`. They
    may begin before `start_offset`, as the batch at that offset may contain deleted records. Raises
    UnsupportedCompressionError if the codec of a batch is not installed.
    """
    committed = _outcomes(batches) if read_committed else {}
    for index, batch in enumerate(batches):
        if committed.get(index) is False or parse_header(batch).is_control:
            continue
        for record in iter_records(uncompressed(batch)):
            if start_offset <= record.offset < end_offset:
                yield record


def logged_records(
    batches: Sequence[bytes], *, start_offset: int, end_offset: int, read_committed: bool, with_markers: bool
) -> Iterator[LoggedRecord]:
    """Yield the records of `visible_records` with the outcomes of their transactions and, if requested, the markers."""
    committed = _outcomes(batches)
    for index, batch in enumerate(batches):
        header = parse_header(batch)
        is_committed = committed.get(index)
        if (read_committed and is_committed is False) or (header.is_control and not with_markers):
            continue
        for record in iter_records(uncompressed(batch)):
            if start_offset <= record.offset < end_offset:
                marker = parse_end_txn_marker(record) if header.is_control else None
                yield LoggedRecord(record, header.producer_id, header.is_transactional, is_committed, marker)


def _outcomes(batches: Sequence[bytes]) -> dict[int, bool]:
    """Return which batches of ended transactions were committed, by the indexes of the batches."""
    outcomes: dict[int, bool] = {}
    open_batches: dict[int, list[int]] = {}
    for index, batch in enumerate(batches):
        header = parse_header(batch)
        if not header.is_transactional:
            continue
        if not header.is_control:
            open_batches.setdefault(header.producer_id, []).append(index)
            continue
        ended = open_batches.pop(header.producer_id, [])
        marker = parse_end_txn_marker(next(iter_records(batch)))
        if marker is not None:
            outcomes.update(dict.fromkeys(ended, marker.commit))
    return outcomes


def uncompressed(batch: bytes) -> bytes:
    """Decompress the records of a batch; an uncompressed or gzip batch is returned as it is.

    Raises UnsupportedCompressionError if cramjam is needed and not installed, CorruptRecordError if the records do not
    decompress.
    """
    header = parse_header(batch)
    if header.compression in (NONE, GZIP):
        return batch
    name = NAMES.get(header.compression, str(header.compression))
    try:
        body = decompressed(header.compression, batch[HEADER_BYTES : header.size_bytes], MOST_BYTES)
    except CodecMissingError:
        raise UnsupportedCompressionError(
            f"the records at offset {header.base_offset} are compressed with {name}; reading them needs the package "
            "cramjam. The records are intact: install cramjam, or let the producer use none or gzip"
        ) from None
    except (DecompressionError, ExpansionError) as error:
        raise CorruptRecordError(f"the records of a {name} batch do not decompress") from error
    return with_records(header, body)
